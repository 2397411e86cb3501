package tokenizer

import (
	"crypto/sha256"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"
)

// None stands for a token that a tokenizer does not have.
const None = -1

// Special are the ids of tokens that are no text; None for those that the tokenizer does not have.
type Special struct {
	Pad       int32 // fills a sample up
	Unknown   int32 // stands for what the vocabulary has no piece for
	Class     int32 // begins a text that is classified
	Separator int32 // ends a text that is classified
	Mask      int32 // hides a token
	Begin     int32 // begins a generated text
	End       int32 // ends a document or a generated text
}

// Padding fills a sample up; whatever does for it where there is no such token: a mask hides it.
func (s Special) Padding() int32 {
	for _, id := range [...]int32{s.Pad, s.End} {
		if id != None {
			return id
		}
	}
	return 0
}

// Start is what a decoder is given first: the begin token, else padding (Raffel et al. 2020, section 2.1), else the end token.
func (s Special) Start() int32 {
	if s.Begin != None {
		return s.Begin
	}
	return s.Padding()
}

// Bytes of text that stand for special tokens of the tokenizer of bytes: control characters of ASCII whose meaning this is.
const (
	ByteEnd       = 0x00 // null: also padding
	ByteBegin     = 0x02 // start of text: also class
	ByteSeparator = 0x03 // end of text
	ByteMask      = 0x1a // substitute
)

// Item is one part of a template: a token, or all tokens of a text.
type Item struct {
	Text int   // 0 or 1; None for a token
	ID   int32 // of the token
	Type int32 // the token type of whatever stands here
}

// Template says what a model is given for one text, or for a pair.
type Template []Item

// Special is how many tokens a template adds.
func (t Template) Special() int {
	n := 0
	for _, i := range t {
		if i.Text == None {
			n++
		}
	}
	return n
}

// Tokenizer is a vocabulary and the steps to and from it. It does not change, and any number of goroutines may use it.
type Tokenizer struct {
	Vocabulary int               // the number of ids: they are below it
	Digest     [sha256.Size]byte // SHA-256 of the file; zero when tokens are bytes
	Special    Special           // the tokens that are no text
	Single     Template          // what a model is given for one text
	Pair       Template          // what a model is given for two; nil when there is nothing to separate them by

	tokens []string // by id; "" where there is none
	hidden []bool   // by id: a special token, that Decode leaves out

	added       added // cut out of the text as it is
	addedAfter  added // cut out of the normalized text
	normalize   []normalizer
	preTokenize []preTokenizer
	model       model // nil: bytes
	decode      []decoder
}

// model cuts a word into tokens.
type model interface {
	// append appends the ids of a word, which is not empty, or reports text that has none.
	append(ids []int32, word string) ([]int32, error)
}

// UnknownError is text that the vocabulary has no token for.
type UnknownError struct{ Text string }

// Error names the text.
func (e *UnknownError) Error() string {
	return fmt.Sprintf("%q has no token in the vocabulary, which has no token for unknown text either", e.Text)
}

// vocabulary are the tokens of a model, and what it makes of text without one.
type vocabulary struct {
	ids          map[string]int32
	longest      int   // bytes of the longest token
	unknown      int32 // None: unknown text is an error
	byteFallback bool  // unknown text is the tokens <0xNN> of its bytes, if all of them are there
}

// give appends what stands for unknown text.
func (v *vocabulary) give(ids []int32, text string) ([]int32, error) {
	out := ids
	for _, b := range []byte(text) {
		id, ok := v.ids[fmt.Sprintf("<0x%02X>", b)]
		if !ok || !v.byteFallback {
			if v.unknown == None {
				return ids, &UnknownError{Text: text}
			}
			return append(ids, v.unknown), nil
		}
		out = append(out, id)
	}
	return out, nil
}

// Bytes is the tokenizer whose tokens are the 256 values of a byte.
func Bytes() *Tokenizer {
	class, separator := Item{Text: None, ID: ByteBegin}, Item{Text: None, ID: ByteSeparator}
	return &Tokenizer{
		Vocabulary: 256,
		Special: Special{
			Pad: ByteEnd, Unknown: None, Class: ByteBegin, Separator: ByteSeparator, Mask: ByteMask, Begin: ByteBegin, End: ByteEnd,
		},
		Single: Template{class, {Text: 0}, separator},
		Pair:   Template{class, {Text: 0}, separator, {Text: 1, Type: 1}, {Text: None, ID: ByteSeparator, Type: 1}},
	}
}

// IsBytes reports whether tokens are bytes.
func (t *Tokenizer) IsBytes() bool { return t.model == nil }

// IsSpecial reports whether an id is of a token that is no text.
func (t *Tokenizer) IsSpecial(id int32) bool {
	if t.model == nil {
		return id == ByteEnd || id == ByteBegin || id == ByteSeparator || id == ByteMask
	}
	return id >= 0 && int(id) < len(t.hidden) && t.hidden[id]
}

// maxRemembered bounds the words that an encoder remembers, and maxWord the bytes of each: together below 64 MiB.
const (
	maxRemembered = 1 << 16
	maxWord       = 128
)

// Encoder turns text into ids. It belongs to one goroutine.
type Encoder struct {
	t     *Tokenizer
	words map[string][]int32 // what was looked up before; most words of a text are few
}

// NewEncoder returns an encoder.
func (t *Tokenizer) NewEncoder() *Encoder { return &Encoder{t: t, words: map[string][]int32{}} }

// Append appends the ids of a text, without those of a template. Bytes that are no UTF-8 count as the replacement character,
// unless tokens are bytes. The error is an *UnknownError, or of a pattern of the file that takes too long.
func (e *Encoder) Append(ids []int32, text string) ([]int32, error) {
	if e.t.model == nil {
		for i := range len(text) {
			ids = append(ids, int32(text[i]))
		}
		return ids, nil
	}
	var err error
	first := true
	for _, outer := range e.t.added.split(valid(text)) {
		if outer.id != None {
			ids, first = append(ids, outer.id), false
			continue
		}
		normal := outer.text
		for _, n := range e.t.normalize {
			if normal, err = n(normal); err != nil {
				return ids, err
			}
		}
		for _, inner := range e.t.addedAfter.split(normal) {
			if inner.id != None {
				ids, first = append(ids, inner.id), false
				continue
			}
			if ids, err = e.pieces(ids, inner.text, first); err != nil {
				return ids, err
			}
			first = false
		}
	}
	return ids, nil
}

// pieces cuts a text without added tokens into words and appends their ids. First tells whether the whole text starts here.
func (e *Encoder) pieces(ids []int32, text string, first bool) ([]int32, error) {
	if text == "" {
		return ids, nil
	}
	var err error
	words := []string{text}
	for _, c := range e.t.preTokenize {
		var next []string
		for i, w := range words {
			if next, err = c.cut(next, w, first && i == 0); err != nil {
				return ids, err
			}
		}
		words = next
	}
	for _, w := range words {
		if w == "" {
			continue
		}
		if known, ok := e.words[w]; ok {
			ids = append(ids, known...)
			continue
		}
		from := len(ids)
		if ids, err = e.t.model.append(ids, w); err != nil {
			return ids, err
		}
		if len(w) <= maxWord && len(e.words) < maxRemembered {
			e.words[w] = slices.Clone(ids[from:])
		}
	}
	return ids, nil
}

// Decode is the text of ids, without special tokens. Ids beyond the vocabulary are left out; bytes that are no UTF-8
// become the replacement character.
func (t *Tokenizer) Decode(ids []int32) string {
	if t.model == nil {
		text := make([]byte, 0, len(ids))
		for _, id := range ids {
			if id >= 0 && id < 256 && !t.IsSpecial(id) {
				text = append(text, byte(id))
			}
		}
		return string(text)
	}
	var parts []string
	for _, id := range ids {
		if id >= 0 && int(id) < len(t.tokens) && !t.hidden[id] {
			parts = append(parts, t.tokens[id])
		}
	}
	for _, d := range t.decode {
		parts = d(parts)
	}
	separator := ""
	if len(t.decode) == 0 { // the file says nothing about decoding
		separator = " "
	}
	return valid(strings.Join(parts, separator))
}

// valid replaces what is no UTF-8.
func valid(s string) string {
	if utf8.ValidString(s) {
		return s
	}
	return string([]rune(s))
}
