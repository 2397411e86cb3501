package job

import (
	"fmt"
	"slices"
	"sort"
	"strconv"
	"strings"
	"unicode"

	"github.com/avgpipe/avgpipe/internal/nearest"
)

// Problem is one thing wrong with a job file.
type Problem struct {
	File    string // as the caller named it; "--set" for an override
	Line    int    // from 1
	Column  int    // in characters, from 1
	Text    string // the offending line, or `--set train.steps=abc`
	Key     string // "train.batch"
	Message string // what is wrong and what is allowed
	Nearest string // the nearest valid key or value; "" when nothing is near
}

// window is how many characters of a long line are shown on each side of the caret.
const window = 60

// Error renders `file:line:column: message`, the offending line with a caret under the column, and the nearest valid key
// or value.
func (p Problem) Error() string {
	var b strings.Builder
	if p.Line == 0 { // a job that was built in Go, not read from a file
		fmt.Fprintf(&b, "%s: %s", p.File, p.Message)
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

// Problems is everything wrong with a job file, in the order of its lines, overrides last. It is the type of the errors
// of Parse and Validate.
type Problems []Problem

// Error renders one problem after the other.
func (p Problems) Error() string {
	texts := make([]string, len(p))
	for i := range p {
		texts[i] = p[i].Error()
	}
	return strings.Join(texts, "\n")
}

// err returns the problems as an error, nil when there are none.
func (p Problems) err() error {
	if len(p) == 0 {
		return nil
	}
	return p
}

// place is where a key or a value stands.
type place struct {
	override     int // 0 in the file; n in the n-th override
	line, column int // from 1
}

// Positions knows where each key of a job file stands, so that whoever finds a problem later (missing data, more stages
// than layers) can report it at its line. A nil Positions, of a job that was built in Go, knows nothing and reports keys
// only.
type Positions struct {
	file      string
	kind      string   // "a configuration"; "": a job file
	lines     []string // of the file, without line ends
	overrides []string
	values    map[string]place // by key: "train.batch", "data.files[1]"
	keys      map[string]place
}

// Has reports whether the key is in the file or in an override.
func (p *Positions) Has(key string) bool {
	if p == nil {
		return false
	}
	_, ok := p.values[key]
	return ok
}

// Problem returns a problem with the value of a key. When the file does not have the key, it points to the nearest
// enclosing one.
func (p *Positions) Problem(key, message, nearest string) Problem {
	if p == nil {
		return Problem{File: key, Key: key, Message: message, Nearest: nearest}
	}
	at := place{line: 1, column: 1}
	for k := key; k != ""; k = parent(k) {
		if v, ok := p.values[k]; ok {
			at = v
			break
		}
	}
	return p.at(at, key, message, nearest)
}

// UnknownKey returns the problem that a key is none of the allowed ones, pointing to the key itself. It is also for keys
// below model.config, which only the model's family knows.
func (p *Positions) UnknownKey(key string, allowed []string) Problem {
	allowed = slices.Sorted(slices.Values(allowed))
	section, name := p.split(key)
	where := section
	if section == "" {
		where = "the job file"
		if p != nil && p.kind != "" {
			where = p.kind
		}
	}
	message := fmt.Sprintf("unknown key %q; %s allows %s", name, where, strings.Join(allowed, ", "))
	near := nearest.Word(name, allowed)
	if p == nil {
		return Problem{File: key, Key: key, Message: message, Nearest: near}
	}
	at, ok := p.keys[key]
	if !ok {
		at = place{line: 1, column: 1}
	}
	return p.at(at, key, message, near)
}

// split parts a key into its section and its name. The name may have dots of its own; the longest section that is in the
// file tells.
func (p *Positions) split(key string) (section, name string) {
	if p != nil && p.Has(key) {
		for section = parent(key); section != "" && !p.Has(section); {
			section = parent(section)
		}
	} else {
		section = parent(key)
	}
	return section, strings.TrimPrefix(key[len(section):], ".")
}

// at returns a problem at a place, which is moved inside the text if it lies outside.
func (p *Positions) at(at place, key, message, nearest string) Problem {
	file, text := "--set", ""
	if at.override > 0 {
		at.line, text = 1, "--set "+p.overrides[at.override-1]
	} else {
		file = p.file
		at.line = min(max(at.line, 1), len(p.lines))
		text = p.lines[at.line-1]
	}
	text = strings.ToValidUTF8(text, "\uFFFD")
	at.column = min(max(at.column, 1), len([]rune(text))+1)
	return Problem{
		File: file, Line: at.line, Column: at.column, Text: text, Key: key, Message: message, Nearest: nearest,
	}
}

// order sorts problems by place: the file's lines first, then the overrides in the order given.
func (p *Positions) order(problems Problems) {
	rank := func(q Problem) int {
		for i, s := range p.overrides {
			if q.File == "--set" && q.Text == "--set "+strings.ToValidUTF8(s, "\uFFFD") {
				return i + 1
			}
		}
		return 0
	}
	sort.SliceStable(problems, func(i, j int) bool {
		a, b := problems[i], problems[j]
		if ra, rb := rank(a), rank(b); ra != rb {
			return ra < rb
		}
		if a.Line != b.Line {
			return a.Line < b.Line
		}
		return a.Column < b.Column
	})
}

// parent returns the key that encloses a key: "a.b" of "a.b.c", "a.b" of "a.b[1]", "" at the top.
func parent(key string) string {
	if i := strings.LastIndexAny(key, ".["); i >= 0 {
		return key[:i]
	}
	return ""
}

// last returns the last part of a key.
func last(key string) string {
	return key[strings.LastIndexByte(key, '.')+1:]
}

// join returns the key of a name below a key.
func join(key, name string) string {
	if key == "" {
		return name
	}
	return key + "." + name
}
