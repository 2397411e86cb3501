package job

import (
	"bytes"
	"cmp"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/lexer"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"
)

// CapBytes bounds a job file. Nobody writes a longer one by hand, and the YAML parser's time grows with the square of some.
const CapBytes = 64 << 10

// maxDepth bounds how deep values lie in each other. A job needs 4 and a model's config may need more; a hostile file could
// otherwise have the parser recurse, and search, tens of thousands deep.
const maxDepth = 32

// kind is what a node of a YAML document is.
type kind uint8

const (
	null kind = iota
	boolean
	integer // text that an integer was written as; whether it fits is the field's business
	float
	text
	list
	mapping
	refused // an anchor, alias or tag, or too deep; reported when it is read
)

// String names a kind with its article, for messages.
func (k kind) String() string {
	return [...]string{"nothing", "a truth value", "a whole number", "a number", "text", "a list", "a mapping", "a refused value"}[k]
}

// node is a YAML value with its place. The parser's own tree is converted to it because that one follows the older number
// syntax (1e3 is text, 010 is 8), reports only the first duplicate key, and has features that a job file refuses.
type node struct {
	kind    kind
	scalar  string // of a boolean, integer, float or text
	items   []*node
	entries []entry
	at      place
}

// entry is one key of a mapping.
type entry struct {
	name  string
	at    place
	value *node
}

// find returns the index of a key in a mapping, -1 without it.
func (n *node) find(name string) int {
	for i := range n.entries {
		if n.entries[i].name == name {
			return i
		}
	}
	return -1
}

// found describes a node in a message: "text "abc"", "a list".
func (n *node) found() string {
	switch n.kind {
	case boolean, integer, float:
		return n.scalar
	case text:
		return "text " + strconv.Quote(n.scalar)
	case null, list, mapping, refused:
	}
	return n.kind.String()
}

// fault is a problem at a place, while no Positions exist yet.
type fault struct {
	at      place
	key     string
	message string
	nearest string
}

// builder converts a parsed document to nodes.
type builder struct {
	of       string // what is read, for messages; "": a job file
	limit    int    // of its bytes; 0: CapBytes
	override int    // of the places
	shift    int    // columns before the text
	depth    int    // of the value being converted
	faults   []fault
}

// kind is what is read.
func (b *builder) kind() string { return cmp.Or(b.of, "a job file") }

func (b *builder) place(t *token.Token) place {
	if t == nil || t.Position == nil {
		return place{override: b.override, line: 1, column: 1 + b.shift}
	}
	p := place{override: b.override, line: t.Position.Line, column: t.Position.Column}
	if p.line == 1 {
		p.column += b.shift
	}
	return p
}

func (b *builder) fault(at place, format string, args ...any) {
	b.faults = append(b.faults, fault{at: at, message: fmt.Sprintf(format, args...)})
}

// read parses one YAML document. The returned node is nil for an empty one, and when there are faults.
func (b *builder) read(source []byte) *node {
	if f := b.unreadable(source); f != nil {
		f.at.override = b.override
		if f.at.line == 1 {
			f.at.column += b.shift
		}
		b.faults = append(b.faults, *f)
		return nil
	}
	tokens := lexer.Tokenize(string(source))
	if t := deep(tokens); t != nil {
		b.fault(b.place(t), "more than %d values in each other; %s needs few", maxDepth, b.kind())
		return nil
	}
	file, err := parse(tokens)
	if err != nil {
		b.syntax(source, tokens, err)
		return nil
	}
	var root *node
	for _, doc := range file.Docs {
		switch {
		case doc.Body == nil:
		case root != nil:
			b.fault(b.node(doc.Body).at, "a second YAML document; %s is one", b.kind())
			return nil
		default:
			root = b.node(doc.Body)
		}
	}
	return root
}

// parse calls the YAML parser, which may panic on input that is far from YAML; that is the file's fault, not the
// daemon's end.
func parse(tokens token.Tokens) (file *ast.File, err error) {
	defer func() {
		if r := recover(); r != nil {
			file, err = nil, fmt.Errorf("the parser gave up (%v)", r)
		}
	}()
	return parser.Parse(tokens, 0, parser.AllowDuplicateMapKey())
}

// deep returns the token that goes deeper than maxDepth on the ways that take a byte or two a level, brackets and dashes in
// a line; nil when none does. The other way, indentation, takes so many bytes that the cap bounds it.
func deep(tokens token.Tokens) *token.Token {
	open, dashes, line := 0, 0, 0
	for _, t := range tokens {
		if t.Position.Line != line {
			dashes, line = 0, t.Position.Line
		}
		switch t.Type {
		case token.MappingStartType, token.SequenceStartType:
			open++
		case token.MappingEndType, token.SequenceEndType:
			open--
		case token.SequenceEntryType, token.MappingKeyType:
			dashes++
		default:
		}
		if open+dashes > maxDepth {
			return t
		}
	}
	return nil
}

// unreadable reports text that is too long, or not UTF-8, at its place.
func (b *builder) unreadable(source []byte) *fault {
	if most := cmp.Or(b.limit, CapBytes); len(source) > most {
		return &fault{
			at:      place{line: 1, column: 1},
			message: fmt.Sprintf("%d bytes; %s has at most %d", len(source), b.kind(), most),
		}
	}
	if utf8.Valid(source) {
		return nil
	}
	good := 0
	for good < len(source) {
		r, size := utf8.DecodeRune(source[good:])
		if r == utf8.RuneError && size == 1 {
			break
		}
		good += size
	}
	if bytes.HasPrefix(source, []byte("\xff\xfe")) || bytes.HasPrefix(source, []byte("\xfe\xff")) {
		return &fault{at: place{line: 1, column: 1}, message: "the text is UTF-16; save it as UTF-8"}
	}
	line := source[bytes.LastIndexByte(source[:good], '\n')+1 : good]
	return &fault{
		at:      place{line: 1 + bytes.Count(source[:good], []byte("\n")), column: 1 + utf8.RuneCount(line)},
		message: fmt.Sprintf("byte 0x%02x is not UTF-8 text", source[good]),
	}
}

// node converts one value.
func (b *builder) node(n ast.Node) *node {
	out := &node{at: b.place(first(n))}
	if b.depth++; b.depth > maxDepth {
		b.fault(out.at, "more than %d values in each other; %s needs few", maxDepth, b.kind())
		b.depth--
		out.kind = refused
		return out
	}
	defer func() { b.depth-- }()
	switch n := n.(type) {
	case *ast.MappingNode:
		out.kind = mapping
		for _, v := range n.Values {
			b.entry(out, v)
		}
	case *ast.MappingValueNode:
		out.kind = mapping
		b.entry(out, n)
	case *ast.SequenceNode:
		out.kind = list
		for _, v := range n.Values {
			out.items = append(out.items, b.node(v))
		}
	case *ast.AnchorNode, *ast.AliasNode, *ast.TagNode:
		out.kind = refused
		b.fault(out.at, "anchors, aliases and tags are not allowed in %s; write the value out", b.kind())
	case *ast.LiteralNode:
		out.kind, out.scalar = text, n.Value.Value
	default:
		out.kind, out.scalar = scalar(n.GetToken())
	}
	return out
}

// first returns the token that a value starts with. The parser gives the first colon for a mapping without braces.
func first(n ast.Node) *token.Token {
	switch n := n.(type) {
	case *ast.MappingNode:
		if !n.IsFlowStyle && len(n.Values) > 0 {
			return n.Values[0].Key.GetToken()
		}
	case *ast.MappingValueNode:
		return n.Key.GetToken()
	}
	return n.GetToken()
}

// entry converts one key and its value. A key that is there twice is a fault, and the first value holds.
func (b *builder) entry(out *node, v *ast.MappingValueNode) {
	t := v.Key.GetToken()
	at := b.place(t)
	if v.Key.IsMergeKey() {
		b.fault(at, "merge keys are not allowed in %s; write the keys out", b.kind())
		return
	}
	if t.Type != token.StringType && t.Type != token.SingleQuoteType && t.Type != token.DoubleQuoteType &&
		t.Type != token.IntegerType && t.Type != token.FloatType && t.Type != token.BoolType {
		b.fault(at, "%q cannot be a key; write a name", t.Value)
		return
	}
	value := b.node(v.Value)
	if i := out.find(t.Value); i >= 0 {
		b.fault(at, "key %q is here twice; it stands first at line %d", t.Value, out.entries[i].at.line)
		return
	}
	out.entries = append(out.entries, entry{name: t.Value, at: at, value: value})
}

var (
	integers = regexp.MustCompile(`^([-+]?(0|[1-9][0-9]*)|0x[0-9a-fA-F]+|0o[0-7]+)$`)
	floats   = regexp.MustCompile(`^[-+]?(\.[0-9]+|(0|[1-9][0-9]*)(\.[0-9]*)?)([eE][-+]?[0-9]+)?$|^[-+]?\.(inf|Inf|INF)$|^\.(nan|NaN|NAN)$`)
)

// scalar resolves a plain scalar by the core schema of YAML 1.2 (section 10.3.2), but for numbers with leading zeros,
// which that schema and its predecessor read differently: those are text, so a field that wants a number refuses them.
func scalar(t *token.Token) (kind, string) {
	if t == nil {
		return null, ""
	}
	v := t.Value
	switch {
	case t.Type == token.SingleQuoteType || t.Type == token.DoubleQuoteType:
		return text, v
	case v == "" || v == "~" || v == "null" || v == "Null" || v == "NULL":
		return null, ""
	case v == "true" || v == "True" || v == "TRUE" || v == "false" || v == "False" || v == "FALSE":
		return boolean, strings.ToLower(v)
	case integers.MatchString(v):
		return integer, v
	case floats.MatchString(v):
		return float, v
	}
	return text, v
}
