package tokenizer

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/dlclark/regexp2"
)

// preTokenizer cuts text into words.
type preTokenizer interface {
	// cut appends the words of text. First tells whether the text is where the whole one starts. It fails only where a search
	// for a pattern takes too long.
	cut(words []string, text string, first bool) ([]string, error)
}

// part is a stretch of text that a pattern matched, or that lies between matches.
type part struct {
	text  string
	match bool
}

// behavior is what becomes of matches.
type behavior string

const (
	removed      behavior = "Removed"
	isolated     behavior = "Isolated"
	contiguous   behavior = "Contiguous"
	withPrevious behavior = "MergedWithPrevious"
	withNext     behavior = "MergedWithNext"
)

var behaviors = []string{string(removed), string(isolated), string(contiguous), string(withPrevious), string(withNext)}

// arrange appends the words that the parts of a text make.
func (b behavior) arrange(words []string, text string, parts []part) []string {
	start, at := 0, 0 // of the word, and of the part
	cut := func() {
		if at > start {
			words = append(words, text[start:at])
		}
		start = at
	}
	for i, p := range parts {
		previous := i > 0 && parts[i-1].match
		switch b {
		case removed, isolated:
			cut()
		case contiguous:
			if p.match != previous {
				cut()
			}
		case withPrevious: // a match joins what is before it, unless that is a match
			if !p.match || previous {
				cut()
			}
		case withNext: // a match starts a word, and what follows a match joins it
			if p.match || !previous {
				cut()
			}
		}
		at += len(p.text)
		if b == removed && p.match {
			start = at
		}
	}
	cut()
	return words
}

// byRune cuts around characters.
type byRune struct {
	match    func(r rune) bool
	behavior behavior
}

func (c byRune) cut(words []string, text string, _ bool) ([]string, error) {
	var parts []part
	from := 0
	for i, r := range text {
		if !c.match(r) {
			continue
		}
		if i > from {
			parts = append(parts, part{text: text[from:i]})
		}
		from = i + utf8.RuneLen(r)
		parts = append(parts, part{text: text[i:from], match: true})
	}
	if from < len(text) {
		parts = append(parts, part{text: text[from:]})
	}
	return c.behavior.arrange(words, text, parts), nil
}

// byPattern cuts around what a pattern matches, or, inverted, around what it does not match.
type byPattern struct {
	pattern  *regexp2.Regexp
	invert   bool
	behavior behavior
}

func (c byPattern) cut(words []string, text string, _ bool) ([]string, error) {
	all, err := parts(c.pattern, text)
	if c.invert {
		for i := range all {
			all[i].match = !all[i].match
		}
	}
	return c.behavior.arrange(words, text, all), err
}

// parts takes a text apart around the matches of a pattern. It fails where a search exceeds the pattern's time.
func parts(pattern *regexp2.Regexp, text string) ([]part, error) {
	var all []part
	runes := []rune(text)
	from := 0
	match, err := pattern.FindRunesMatch(runes)
	for err == nil && match != nil {
		if match.Length > 0 {
			if match.Index > from {
				all = append(all, part{text: string(runes[from:match.Index])})
			}
			from = match.Index + match.Length
			all = append(all, part{text: string(runes[match.Index:from]), match: true})
		}
		match, err = pattern.FindNextMatch(match)
	}
	if from < len(runes) {
		all = append(all, part{text: string(runes[from:])})
	}
	if err != nil {
		return nil, fmt.Errorf("the pattern %q takes more than %v: %w", pattern, pattern.MatchTimeout, err)
	}
	return all, nil
}

// isWord is \w as Unicode has it (UTS 18, annex C).
func isWord(r rune) bool {
	return unicode.In(r, unicode.L, unicode.M, unicode.Nd, unicode.Nl, unicode.Pc, unicode.Other_Alphabetic, unicode.Join_Control)
}

// isPunctuation is what BERT isolates: also the symbols of ASCII.
func isPunctuation(r rune) bool {
	if r < utf8.RuneSelf {
		return r > ' ' && r < 0x7f && !unicode.IsLetter(r) && !unicode.IsDigit(r)
	}
	return unicode.IsPunct(r)
}

// metaspace writes blanks as a visible character, and cuts before each.
type metaspace struct {
	mark    string
	prepend string // always, first or never
	split   bool
}

func (c metaspace) cut(words []string, text string, first bool) ([]string, error) {
	text = strings.ReplaceAll(text, " ", c.mark)
	if (c.prepend == "always" || c.prepend == "first" && first) && !strings.HasPrefix(text, c.mark) {
		text = c.mark + text
	}
	if !c.split {
		return append(words, text), nil
	}
	mark, _ := utf8.DecodeRuneInString(c.mark)
	return byRune{match: func(r rune) bool { return r == mark }, behavior: withNext}.cut(words, text, first)
}

// byteLevel writes bytes as characters that can be seen (Radford et al. 2019, section 2.2, and its encoder.py), after
// cutting text into words with their blank before them.
type byteLevel struct {
	addPrefixSpace bool
	cuts           bool
}

func (c byteLevel) cut(words []string, text string, _ bool) ([]string, error) {
	if c.addPrefixSpace && !strings.HasPrefix(text, " ") {
		text = " " + text
	}
	if !c.cuts {
		return append(words, visible(text)), nil
	}
	for len(text) > 0 {
		n := nextWord(text)
		words = append(words, visible(text[:n]))
		text = text[n:]
	}
	return words, nil
}

// contractions are words of their own after an apostrophe.
var contractions = []string{"'s", "'t", "'re", "'ve", "'m", "'ll", "'d"}

// nextWord is the length of the first match of GPT-2's pattern:
//
//	's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
func nextWord(text string) int {
	for _, c := range contractions {
		if strings.HasPrefix(text, c) {
			return len(c)
		}
	}
	at := 0
	if text[0] == ' ' {
		at = 1
	}
	if r, _ := utf8.DecodeRuneInString(text[at:]); at < len(text) && !unicode.IsSpace(r) {
		return at + lengthOf(text[at:], kindOf(r))
	}
	n := lengthOf(text, kindSpace)
	_, last := utf8.DecodeLastRuneInString(text[:n])
	if n == len(text) || n == last {
		return n
	}
	return n - last // the last blank belongs to the word after it
}

// Kinds of characters of GPT-2's pattern.
const (
	kindSpace = iota
	kindLetter
	kindNumber
	kindOther
)

func kindOf(r rune) int {
	switch {
	case unicode.IsLetter(r):
		return kindLetter
	case unicode.IsNumber(r):
		return kindNumber
	case unicode.IsSpace(r):
		return kindSpace
	}
	return kindOther
}

// lengthOf is the bytes at the start of a text that are of one kind.
func lengthOf(text string, kind int) int {
	for i, r := range text {
		if kindOf(r) != kind {
			return i
		}
	}
	return len(text)
}

// byteRunes maps a byte to its character: itself if it can be seen, else one from U+0100 on. runeBytes maps it back.
var byteRunes, runeBytes = func() (forth [256]rune, back map[rune]byte) {
	back = map[rune]byte{}
	next := rune(0x100)
	for b := range 256 {
		r := rune(b)
		if seen := '!' <= r && r <= '~' || '¡' <= r && r <= '¬' || '®' <= r && r <= 'ÿ'; !seen {
			r, next = next, next+1
		}
		forth[b], back[r] = r, byte(b)
	}
	return forth, back
}()

func visible(text string) string {
	var b strings.Builder
	b.Grow(2 * len(text))
	for i := range len(text) {
		b.WriteRune(byteRunes[text[i]])
	}
	return b.String()
}
