package tokenizer

import (
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"strings"
	"unicode"

	"github.com/dlclark/regexp2"
	"github.com/rivo/uniseg"
	"golang.org/x/text/unicode/norm"
)

// normalizer changes a text before it is cut into words. It fails only where a search for a pattern takes too long.
type normalizer func(text string) (string, error)

// change is a normalizer that cannot fail.
func change(f func(string) string) normalizer {
	return func(text string) (string, error) { return f(text), nil }
}

// runes is a normalizer that replaces each character by what f writes.
func runes(f func(b *strings.Builder, r rune)) normalizer {
	return change(func(text string) string {
		var b strings.Builder
		b.Grow(len(text))
		for _, r := range text {
			f(&b, r)
		}
		return b.String()
	})
}

// lower maps each character alone, as Unicode's full mapping does: one character changes its length by it.
var lower = runes(func(b *strings.Builder, r rune) {
	if r == 'İ' {
		b.WriteString("i̇")
		return
	}
	b.WriteRune(unicode.ToLower(r))
})

// trim drops white space at the ends.
func trim(left, right bool) normalizer {
	return change(func(text string) string {
		if left {
			text = strings.TrimLeftFunc(text, unicode.IsSpace)
		}
		if right {
			text = strings.TrimRightFunc(text, unicode.IsSpace)
		}
		return text
	})
}

// without drops the characters of a table.
func without(table *unicode.RangeTable) normalizer {
	return runes(func(b *strings.Builder, r rune) {
		if !unicode.Is(table, r) {
			b.WriteRune(r)
		}
	})
}

// cleaned drops control characters, and makes all white space blanks (BERT's tokenization.py, _clean_text).
var cleaned = runes(func(b *strings.Builder, r rune) {
	switch {
	case r == '\t' || r == '\n' || r == '\r' || unicode.IsSpace(r) && !unicode.IsControl(r):
		b.WriteByte(' ')
	case r == 0 || r == unicode.ReplacementChar || unicode.Is(unicode.C, r):
	default:
		b.WriteRune(r)
	}
})

// spaced puts blanks around ideographs, so that each becomes a word (BERT's tokenization.py, _tokenize_chinese_chars).
var spaced = runes(func(b *strings.Builder, r rune) {
	if unicode.Is(ideographs, r) {
		b.WriteByte(' ')
		b.WriteRune(r)
		b.WriteByte(' ')
		return
	}
	b.WriteRune(r)
})

// ideographs are those that BERT's tokenization.py lists in _is_chinese_char.
var ideographs = &unicode.RangeTable{
	R16: []unicode.Range16{{0x3400, 0x4DBF, 1}, {0x4E00, 0x9FFF, 1}, {0xF900, 0xFAFF, 1}},
	R32: []unicode.Range32{
		{0x20000, 0x2A6DF, 1}, {0x2A700, 0x2B73F, 1}, {0x2B740, 0x2B81F, 1}, {0x2B920, 0x2CEAF, 1}, {0x2F800, 0x2FA1F, 1},
	},
}

// bertNormalizer are the steps of BERT's basic tokenizer.
func bertNormalizer(c component) []normalizer {
	var steps []normalizer
	if or(c.CleanText, true) {
		steps = append(steps, cleaned)
	}
	if or(c.HandleChinese, true) {
		steps = append(steps, spaced)
	}
	lowers := or(c.Lowercase, true)
	if c.StripAccents != nil && *c.StripAccents || c.StripAccents == nil && lowers {
		steps = append(steps, change(norm.NFD.String), without(unicode.Mn))
	}
	if lowers {
		steps = append(steps, lower)
	}
	return steps
}

// replacement replaces what a pattern matches.
type replacement struct {
	text    string          // matched literally, if pattern is nil
	pattern *regexp2.Regexp // else
	content string
}

func (r replacement) normalize(text string) (string, error) {
	if r.pattern == nil {
		return strings.ReplaceAll(text, r.text, r.content), nil
	}
	all, err := parts(r.pattern, text)
	var b strings.Builder
	for _, part := range all {
		if part.match {
			b.WriteString(r.content)
		} else {
			b.WriteString(part.text)
		}
	}
	return b.String(), err
}

// charsMap is SentencePiece's table of replacements: a double array (Aoe 1989, in the units of the library Darts-clone)
// from text to the place of what replaces it.
type charsMap struct {
	units []uint32
	texts string // each ends with a zero byte
}

// newCharsMap reads the table: the bytes of the double array, little-endian, the array, the texts.
func newCharsMap(encoded string) (charsMap, error) {
	raw, err := base64.StdEncoding.DecodeString(encoded)
	if err != nil {
		return charsMap{}, fmt.Errorf("precompiled_charsmap: %w", err)
	}
	if len(raw) < 4 {
		return charsMap{}, fmt.Errorf("precompiled_charsmap has %d bytes, too few for its length", len(raw))
	}
	n := int64(binary.LittleEndian.Uint32(raw))
	if n%4 != 0 || n == 0 || n > int64(len(raw)-4) {
		return charsMap{}, fmt.Errorf("precompiled_charsmap has a table of %d bytes within %d", n, len(raw)-4)
	}
	m := charsMap{units: make([]uint32, n/4), texts: string(raw[4+n:])}
	_, err = binary.Decode(raw[4:], binary.LittleEndian, m.units)
	return m, err
}

// shortCluster is the bytes of a cluster of characters that may be replaced as a whole; of longer ones, each character is.
const shortCluster = 6

func (m charsMap) normalize(text string) (string, error) {
	var b strings.Builder
	b.Grow(len(text))
	state := -1
	for len(text) > 0 {
		var cluster string
		cluster, text, _, state = uniseg.FirstGraphemeClusterInString(text, state)
		if len(cluster) < shortCluster {
			if with, ok := m.find(cluster); ok {
				b.WriteString(with)
				continue
			}
		}
		for _, r := range cluster {
			if with, ok := m.find(string(r)); ok {
				b.WriteString(with)
			} else {
				b.WriteRune(r)
			}
		}
	}
	return b.String(), nil
}

// find is what replaces the shortest prefix of a text that the table has.
func (m charsMap) find(text string) (string, bool) {
	node := offsetOf(m.units[0])
	for _, b := range []byte(text) {
		node ^= uint32(b)
		if b == 0 || int64(node) >= int64(len(m.units)) || m.units[node]&(1<<31|0xff) != uint32(b) {
			return "", false
		}
		unit := m.units[node]
		node ^= offsetOf(unit)
		if unit>>8&1 == 0 {
			continue // no replacement ends here
		}
		if int64(node) >= int64(len(m.units)) {
			return "", false
		}
		at := m.units[node] & (1<<31 - 1)
		if int64(at) >= int64(len(m.texts)) {
			return "", false
		}
		with, _, _ := strings.Cut(m.texts[at:], "\x00")
		return with, true
	}
	return "", false
}

// offsetOf is how far a unit's children lie away.
func offsetOf(unit uint32) uint32 { return unit >> 10 << (unit & (1 << 9) >> 6) }
