package strictyaml

import (
	"errors"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/token"
)

// variable is a text that starts with a variable, up to what ends it inside of a list or a mapping in braces.
var variable = regexp.MustCompile(`^[^\[\]{}, ]*(\$\{[^}]*\}[^\[\]{},]*)+`)

// words are a part of what the parser says, and what that means to whoever wrote the file.
type words struct{ parser, plain string }

var plainWords = []words{
	{"sequence end token ']' not found", "a list is not closed; write ] at its end"},
	{"',' or ']' must be specified", "the entries of a list need commas between them, and ] at the end"},
	{"but found ','", "a comma without an entry before it"},
	{"flow mapping end token '}' not found", "a mapping is not closed; write } at its end"},
	{"could not find flow mapping end token", "a mapping is not closed; write } at its end"},
	{"',' or '}' must be specified", "the keys of a mapping need commas between them, and } at the end"},
	{"corresponding to ']'", "a ] without a [ before it; put a text that holds one between quotes"},
	{"corresponding to '}'", "a } without a { before it; put a text that holds one between quotes"},
	{"end character of double-quoted", "a double quote is not closed"},
	{"end character of single-quoted", "a single quote is not closed"},
	{"reserved character", "a value cannot begin with @ or a backquote; put the text between quotes"},
	{"that cannot start any token", "a value cannot begin with a tab"},
	{"directive", "a line that begins with % is a directive of YAML; put the text between quotes"},
	{"anchor", "a & begins an anchor, which is not allowed; put the text between quotes"},
	{"alias", "a * begins an alias, which is not allowed; put the text between quotes"},
	{"tag", "a ! begins a tag, which is not allowed; put the text between quotes"},
	{"header option", "nothing may follow the | or > that begins a text of several lines"},
	{"non-map value is specified", "a key and a colon are missing before this text, or a colon behind it"},
	{"unexpected key name", "a colon is missing behind this key"},
	{"value is not allowed in this context", "this value does not belong here; is it indented as the lines around it?"},
	{"block sequence entries", "a list with dashes begins on a line of its own"},
	{"document separator", "nothing may follow --- in its line"},
}

// syntax reports text that the parser does not take, in words about what is written.
func (b *builder) syntax(source []byte, tokens token.Tokens, err error) {
	at, message := b.place(nil), ""
	if located, ok := errors.AsType[yaml.Error](err); ok {
		at, message = b.place(located.GetToken()), located.GetMessage()
	}
	lines := splitLines(source)
	if t := variableInBraces(tokens); t != nil {
		b.unquoted(t, lines)
	} else if p := b.tab(lines, at); p != nil {
		b.fault(*p, "not YAML: the line is indented by a tab; YAML allows only spaces there")
	} else if message != "mapping value is not allowed in this context" || !b.misplaced(tokens, at, lines) {
		plain := "this cannot be read; look at quotes, brackets and indentation here and in the lines before"
		if i := slices.IndexFunc(plainWords, func(w words) bool { return strings.Contains(message, w.parser) }); i >= 0 {
			plain = plainWords[i].plain
		}
		b.fault(at, "not YAML: %s", plain)
	}
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

// unquoted reports a ${NAME} that needs quotes.
func (b *builder) unquoted(t *token.Token, lines []string) {
	line, near := []rune(lines[min(t.Position.Line, len(lines))-1]), ""
	if text := strings.TrimSpace(variable.FindString(string(line[min(t.Position.Column-1, len(line)):]))); text != "" {
		near = `"` + text + `"`
	}
	b.report(b.place(t), b.key, near, "not YAML: inside of brackets or braces the { of a variable begins a mapping; put the text between quotes")
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

// misplaced reports a colon where no key can be, if it finds one. The parser gives the place of the text before it, which begins lines
// above where lines were joined.
func (b *builder) misplaced(tokens token.Tokens, at place, lines []string) bool {
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
			b.fault(p, "not YAML: a second `: ` in one line; put a text that holds one between quotes")
		case indent == p.column-1:
			b.fault(p, "not YAML: no key stands before the colon")
		default:
			p.column = indent + 1
			b.fault(p, "not YAML: this key is indented as if it belonged to the value that begins at line %d; "+
				"start it in the column of the keys around it", at.line)
		}
		return true
	}
	return false
}
