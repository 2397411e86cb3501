package job

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
	"unicode/utf8"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/token"
)

// byteOrderMark starts files of some editors; it is no part of the text.
const byteOrderMark = "\ufeff"

// variable is a text that starts with a variable, up to what ends it inside of a list or a mapping in braces.
var variable = regexp.MustCompile(`^[^\[\]{}, ]*(\$\{[^}]*\}[^\[\]{},]*)+`)

// syntax reports text that the parser does not take. Where the parser's words or place would mislead, it says what is written.
func (b *builder) syntax(source []byte, tokens token.Tokens, err error) {
	at, message := b.place(nil), err.Error()
	if located, ok := errors.AsType[yaml.Error](err); ok {
		at, message = b.place(located.GetToken()), printable(located.GetMessage())
	}
	f := fault{at: at, message: "not YAML: " + message}
	lines := splitLines(source)
	if t := variableInBraces(tokens); t != nil {
		f = b.unquoted(t, lines)
	} else if p := b.tab(lines, at); p != nil {
		f = fault{at: *p, message: "not YAML: the line is indented by a tab; YAML allows only spaces there"}
	} else if message == "mapping value is not allowed in this context" {
		f = b.misplaced(tokens, at, lines, f)
	}
	b.faults = append(b.faults, f)
}

// variableInBraces returns the token before the brace of a ${NAME} that begins a mapping; nil without one.
func variableInBraces(tokens token.Tokens) *token.Token {
	for i, t := range tokens[min(1, len(tokens)):] {
		before := tokens[i]
		adjacent := before.Position.Line == t.Position.Line && before.Position.Column+utf8.RuneCountInString(before.Value) == t.Position.Column
		if t.Type == token.MappingStartType && before.Type == token.StringType && strings.HasSuffix(before.Value, "$") && adjacent {
			return before
		}
	}
	return nil
}

// unquoted is the fault of a ${NAME} that needs quotes.
func (b *builder) unquoted(t *token.Token, lines []string) fault {
	f := fault{at: b.place(t), message: "not YAML: inside of brackets or braces the { of a variable begins a mapping; put the text between quotes"}
	line := []rune(lines[min(t.Position.Line, len(lines))-1])
	if text := strings.TrimSpace(variable.FindString(string(line[min(t.Position.Column-1, len(line)):]))); text != "" {
		f.nearest = `"` + text + `"`
	}
	return f
}

// tab returns the place of a tab that indents the line of a fault; nil without one.
func (b *builder) tab(lines []string, at place) *place {
	if at.override > 0 || at.line > len(lines) {
		return nil
	}
	line := lines[at.line-1]
	indent := line[:len(line)-len(strings.TrimLeft(line, " \t"))]
	i := strings.IndexByte(indent, '\t')
	if i < 0 {
		return nil
	}
	return &place{line: at.line, column: i + 1}
}

// misplaced is the fault of a colon where no key can be. The parser gives the place of the text before it, which begins lines
// above where lines were joined.
func (b *builder) misplaced(tokens token.Tokens, at place, lines []string, otherwise fault) fault {
	for _, t := range tokens {
		p := b.place(t)
		if t.Type != token.MappingValueType || p.line < at.line || p.line == at.line && p.column <= at.column {
			continue
		}
		line := ""
		if p.override == 0 && p.line <= len(lines) {
			line = lines[p.line-1]
		}
		indent := len(line) - len(strings.TrimLeft(line, " "))
		switch {
		case p.line == at.line:
			return fault{at: p, message: "not YAML: a second `: ` in one line; put a text that holds one between quotes"}
		case indent == p.column-1:
			return fault{at: p, message: "not YAML: no key stands before the colon"}
		}
		p.column = indent + 1
		return fault{at: p, message: fmt.Sprintf("not YAML: this key is indented as if it belonged to the value that begins at line %d; "+
			"start it in the column of the keys around it", at.line)}
	}
	return otherwise
}
