package strictyaml

import (
	"fmt"
	"strconv"
	"strings"
	"unicode"
)

// Problem is one thing wrong with a file.
type Problem struct {
	File    string `json:"file"`              // as the caller named it; "--set" for an override
	Line    int    `json:"line"`              // from 1
	Column  int    `json:"column"`            // in characters, from 1
	Text    string `json:"text"`              // the offending line, or `--set train.steps=abc`
	Key     string `json:"key"`               // "train.batch"
	Message string `json:"message"`           // what is wrong and what is allowed
	Nearest string `json:"nearest,omitempty"` // the nearest valid key or value
}

// window is how many characters of a long line are shown on each side of the caret.
const window = 60

// Error renders `file:line:column: message`, the offending line with a caret under the column, and the nearest valid key
// or value.
func (p Problem) Error() string {
	var b strings.Builder
	if p.Line == 0 { // nobody has found its place yet
		if !strings.HasPrefix(p.Message, p.Key) {
			b.WriteString(p.Key + ": ")
		}
		b.WriteString(p.Message)
	} else {
		fmt.Fprintf(&b, "%s:%d:%d: %s", p.File, p.Line, p.Column, p.Message)
		number := strconv.Itoa(p.Line)
		text, column := excerpt(p.Text, p.Column)
		fmt.Fprintf(&b, "\n  %s | %s\n  %*s | %*s^", number, text, len(number), "", column-1, "")
	}
	if p.Nearest != "" {
		fmt.Fprintf(&b, "\n  nearest: %s", p.Nearest)
	}
	return b.String()
}

// excerpt returns the part of a line around a column, fit for a terminal: one cell for each character, nothing that a
// terminal would obey. The returned column is the caret's place in it.
func excerpt(text string, column int) (string, int) {
	runes := []rune(printable(text))
	column = min(max(column, 1), len(runes)+1)
	if end := column + window; end < len(runes) {
		runes = append(runes[:end:end], '…')
	}
	if start := column - window; start > 1 {
		runes = append([]rune{'…'}, runes[start:]...)
		column -= start - 1
	}
	return string(runes), column
}

// printable replaces every character that a terminal would obey instead of showing it.
func printable(text string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == '\t':
			return ' '
		case !unicode.IsPrint(r):
			return unicode.ReplacementChar
		}
		return r
	}, text)
}

// Problems is everything wrong with a file, in the order of its lines, overrides last.
type Problems []Problem

// Error renders one problem after the other.
func (p Problems) Error() string {
	texts := make([]string, len(p))
	for i := range p {
		texts[i] = p[i].Error()
	}
	return strings.Join(texts, "\n")
}

// place is where a key or a value stands.
type place struct {
	override     int // 0 in the file; n in the n-th override
	line, column int // from 1
}

// Parent returns the key that encloses a key: "a.b" of "a.b.c", "a.b" of "a.b[1]", "" at the top.
func Parent(key string) string { return key[:max(0, strings.LastIndexAny(key, ".["))] }

// Join returns the key of a name below a key.
func Join(key, name string) string { return strings.TrimPrefix(key+"."+name, ".") }

// Item is the key of an entry of a list.
func Item(key string, i int) string { return fmt.Sprintf("%s[%d]", key, i) }

// splitLines cuts text into lines without their ends; there is at least one.
func splitLines(source []byte) []string {
	return strings.Split(strings.ReplaceAll(string(source), "\r\n", "\n"), "\n")
}
