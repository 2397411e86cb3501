package strictyaml

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/lexer"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"
)

// maxDepth bounds how deep values lie in each other. A job needs 4 and a model's config may need more; a hostile file could
// otherwise have the parser recurse, and search, tens of thousands deep.
const maxDepth = 32

// Kind is what a value is.
type Kind uint8

// The kinds of value.
const (
	Null Kind = iota
	Bool
	Int // text that an integer was written as; whether it fits is the field's business
	Float
	Text
	List
	Mapping
	Refused // an anchor, alias or tag, or too deep; reported when it is read
)

// Node is a value with its place. The parser's own tree is converted to it because that one follows the older number
// syntax (1e3 is text, 010 is 8), reports only the first duplicate key, and has features that are refused here.
type Node struct {
	Key     string // "train.batch", "data.files[1]"; "" at the top
	Kind    Kind
	Scalar  string // of Bool ("true", "false"), Int, Float, Text
	Quoted  bool   // of Text: it cannot be meant as anything else
	Items   []*Node
	Entries []Entry

	at, keyAt place // that of the key; of an entry of a list its own
}

// Entry is one key of a mapping.
type Entry struct {
	Name  string
	Kind  Kind // as which a value would be read: Text, unless it is a number or the like
	Value *Node
	at    place
}

// Child returns the value of a key in a mapping; nil without it.
func (n *Node) Child(name string) *Node {
	if i := n.find(name); i >= 0 {
		return n.Entries[i].Value
	}
	return nil
}

// find returns the index of a key in a mapping, -1 without it.
func (n *Node) find(name string) int {
	return slices.IndexFunc(n.Entries, func(e Entry) bool { return e.Name == name })
}

// Plain reports whether a value is neither nothing nor a list nor a mapping.
func (n *Node) Plain() bool {
	return n.Kind == Bool || n.Kind == Int || n.Kind == Float || n.Kind == Text
}

// Found describes a node in a message: "text "abc"", "a list".
func (n *Node) Found() string {
	switch n.Kind {
	case Bool, Int, Float:
		return n.Scalar
	case Text:
		return "text " + strconv.Quote(n.Scalar)
	case Null:
		return "nothing"
	case List:
		return "a list"
	case Mapping:
		return "a mapping"
	case Refused:
	}
	return "a refused value"
}

// Number returns the value of a node that is a number, which may be infinite or none.
func (n *Node) Number() (float64, bool) {
	if n.Kind != Int && n.Kind != Float {
		return 0, false
	}
	if u, err := strconv.ParseUint(n.Scalar, 0, 64); err == nil { // 0x10 is no float to strconv
		return float64(u), true
	}
	x, err := strconv.ParseFloat(dotted.ReplaceAllString(n.Scalar, "$1"), 64)
	return x, err == nil || errors.Is(err, strconv.ErrRange)
}

// Whole returns the value of a node that is a whole number, written as one or as 1e4.
func (n *Node) Whole() (int64, bool) {
	if n.Kind == Int {
		if i, err := strconv.ParseInt(n.Scalar, 0, 64); err == nil {
			return i, true
		}
	}
	x, ok := n.Number()
	if !ok || x != math.Trunc(x) || math.Abs(x) > 1<<53 {
		return 0, false
	}
	return int64(x), true
}

// Natural returns the value of a node that is a whole number of at least 0.
func (n *Node) Natural() (uint64, bool) {
	if n.Kind == Int {
		if u, err := strconv.ParseUint(strings.TrimPrefix(n.Scalar, "+"), 0, 64); err == nil {
			return u, true
		}
	}
	i, ok := n.Whole()
	return uint64(max(i, 0)), ok && i >= 0
}

// builder converts parsed text to nodes: the file's, or that of an override.
type builder struct {
	*Document
	override int    // of the places
	key      string // that the override sets
	shift    int    // columns before the text
	depth    int    // of the value being converted
}

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
	b.report(at, b.key, "", format, args...)
}

// read parses one YAML document. The returned node is nil for an empty one, and when there are faults.
func (b *builder) read(source []byte) *Node {
	if b.unreadable(source) {
		return nil
	}
	tokens := lexer.Tokenize(string(source))
	if t := deep(tokens); t != nil {
		b.fault(b.place(t), "more than %d values in each other; %s needs few", maxDepth, b.schema.Name)
		return nil
	}
	file, err := parse(tokens)
	if err != nil {
		b.syntax(source, tokens, err)
		return nil
	}
	var root *Node
	for _, doc := range file.Docs {
		switch {
		case doc.Body == nil:
		case root != nil:
			b.fault(b.node(doc.Body).at, "a second YAML document; %s is one", b.schema.Name)
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
func (b *builder) unreadable(source []byte) bool {
	if len(source) > b.schema.MaxBytes {
		b.fault(b.place(nil), "%d bytes; %s has at most %d", len(source), b.schema.Name, b.schema.MaxBytes)
		return true
	}
	if utf8.Valid(source) {
		return false
	}
	if bytes.HasPrefix(source, []byte("\xff\xfe")) || bytes.HasPrefix(source, []byte("\xfe\xff")) {
		b.fault(b.place(nil), "the text is UTF-16; save it as UTF-8")
		return true
	}
	good := 0
	for r, size := utf8.DecodeRune(source); r != utf8.RuneError || size > 1; r, size = utf8.DecodeRune(source[good:]) {
		good += size
	}
	line := source[bytes.LastIndexByte(source[:good], '\n')+1 : good]
	at := place{override: b.override, line: 1 + bytes.Count(source[:good], []byte("\n")), column: 1 + utf8.RuneCount(line)}
	if at.line == 1 {
		at.column += b.shift
	}
	b.fault(at, "byte 0x%02x is not UTF-8 text", source[good])
	return true
}

// node converts one value.
func (b *builder) node(n ast.Node) *Node {
	out := &Node{at: b.place(first(n))}
	if b.depth++; b.depth > maxDepth {
		b.fault(out.at, "more than %d values in each other; %s needs few", maxDepth, b.schema.Name)
		b.depth--
		out.Kind = Refused
		return out
	}
	defer func() { b.depth-- }()
	switch n := n.(type) {
	case *ast.MappingNode:
		out.Kind = Mapping
		for _, v := range n.Values {
			b.entry(out, v)
		}
	case *ast.MappingValueNode:
		out.Kind = Mapping
		b.entry(out, n)
	case *ast.SequenceNode:
		out.Kind = List
		for _, v := range n.Values {
			out.Items = append(out.Items, b.node(v))
		}
	case *ast.AnchorNode, *ast.AliasNode, *ast.TagNode:
		out.Kind = Refused
		b.fault(out.at, "anchors, aliases and tags are not allowed in %s; write the value out", b.schema.Name)
	case *ast.LiteralNode:
		out.Kind, out.Scalar, out.Quoted = Text, n.Value.Value, true
	default:
		out.Kind, out.Scalar = scalar(n.GetToken())
		out.Quoted = quoted(n.GetToken())
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
func (b *builder) entry(out *Node, v *ast.MappingValueNode) {
	t := v.Key.GetToken()
	at := b.place(t)
	if v.Key.IsMergeKey() {
		b.fault(at, "merge keys are not allowed in %s; write the keys out", b.schema.Name)
		return
	}
	if t.Type != token.StringType && t.Type != token.SingleQuoteType && t.Type != token.DoubleQuoteType &&
		t.Type != token.IntegerType && t.Type != token.FloatType && t.Type != token.BoolType {
		b.fault(at, "%q cannot be a key; write a name", t.Value)
		return
	}
	value := b.node(v.Value)
	if i := out.find(t.Value); i >= 0 {
		b.fault(at, "key %q is here twice; it stands first at line %d", t.Value, out.Entries[i].at.line)
		return
	}
	kind, _ := scalar(t)
	out.Entries = append(out.Entries, Entry{Name: t.Value, Kind: kind, at: at, Value: value})
}

var (
	dotted   = regexp.MustCompile(`\.([a-zA-Z])`) // .inf, .nan
	integers = regexp.MustCompile(`^([-+]?(0|[1-9][0-9]*)|0x[0-9a-fA-F]+|0o[0-7]+)$`)
	floats   = regexp.MustCompile(`^[-+]?(\.[0-9]+|(0|[1-9][0-9]*)(\.[0-9]*)?)([eE][-+]?[0-9]+)?$|^[-+]?\.(inf|Inf|INF)$|^\.(nan|NaN|NAN)$`)
)

// scalar resolves a plain scalar by the core schema of YAML 1.2 (section 10.3.2), but for numbers with leading zeros,
// which that schema and its predecessor read differently: those are text, so a field that wants a number refuses them.
func scalar(t *token.Token) (Kind, string) {
	if t == nil {
		return Null, ""
	}
	v := t.Value
	switch {
	case quoted(t):
		return Text, v
	case v == "" || v == "~" || v == "null" || v == "Null" || v == "NULL":
		return Null, ""
	case v == "true" || v == "True" || v == "TRUE" || v == "false" || v == "False" || v == "FALSE":
		return Bool, strings.ToLower(v)
	case integers.MatchString(v):
		return Int, v
	case floats.MatchString(v):
		return Float, v
	}
	return Text, v
}

func quoted(t *token.Token) bool {
	return t != nil && (t.Type == token.SingleQuoteType || t.Type == token.DoubleQuoteType)
}
