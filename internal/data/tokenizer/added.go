package tokenizer

import (
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// addedToken is a token that is cut out of the text before anything else.
type addedToken struct {
	ID         int32  `json:"id"`
	Content    string `json:"content"`
	SingleWord bool   `json:"single_word"` // only where no letter or digit is beside it
	LeftStrip  bool   `json:"lstrip"`      // takes the white space before it along
	RightStrip bool   `json:"rstrip"`      // and after it
	Normalized bool   `json:"normalized"`  // looked for in the normalized text
	Special    bool   `json:"special"`
}

// added finds added tokens: by first byte, longest first.
type added struct {
	byFirst map[byte][]addedToken
}

func newAdded(tokens []addedToken) added {
	a := added{byFirst: map[byte][]addedToken{}}
	for _, t := range tokens {
		a.byFirst[t.Content[0]] = append(a.byFirst[t.Content[0]], t)
	}
	for _, same := range a.byFirst {
		slices.SortStableFunc(same, func(x, y addedToken) int { return len(y.Content) - len(x.Content) })
	}
	return a
}

// span is a part of a text: a token, or text between tokens (id None).
type span struct {
	text string
	id   int32
}

// split cuts added tokens out of a text: the leftmost first, of several the longest.
func (a added) split(text string) []span {
	if len(a.byFirst) == 0 {
		return []span{{text: text, id: None}}
	}
	var spans []span
	rest := func(part string) {
		if part != "" {
			spans = append(spans, span{text: part, id: None})
		}
	}
	from := 0
	for i := 0; i < len(text); {
		t, ok := a.at(text, i)
		if !ok {
			i++
			continue
		}
		start, end := i, i+len(t.Content)
		if t.LeftStrip {
			start = from + len(strings.TrimRightFunc(text[from:start], unicode.IsSpace))
		}
		if t.RightStrip {
			end = len(text) - len(strings.TrimLeftFunc(text[end:], unicode.IsSpace))
		}
		rest(text[from:start])
		spans = append(spans, span{text: text[start:end], id: t.ID})
		from, i = end, end
	}
	rest(text[from:])
	return spans
}

// at is the token that stands at a place.
func (a added) at(text string, i int) (addedToken, bool) {
	for _, t := range a.byFirst[text[i]] {
		if !strings.HasPrefix(text[i:], t.Content) {
			continue
		}
		if t.SingleWord {
			before, _ := utf8.DecodeLastRuneInString(text[:i])
			after, _ := utf8.DecodeRuneInString(text[i+len(t.Content):])
			if i > 0 && isWord(before) || i+len(t.Content) < len(text) && isWord(after) {
				continue
			}
		}
		return t, true
	}
	return addedToken{}, false
}
