// Package strictyaml reads files of YAML that people write, and keeps where everything stands: job files, the daemon's configuration,
// files of costs. It refuses what surprises: keys that are there twice, anchors and tags, numbers that versions of YAML read differently.
// Whatever is wrong is reported at once, each with its line.
package strictyaml

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/avgpipe/avgpipe/internal/nearest"
)

// Document is a file that was read. It collects what is wrong with it.
type Document struct {
	Root *Node // a mapping; nil where the text is none, which is a problem then

	file      string
	schema    *Schema
	lines     []string // of the file, without line ends
	overrides []string
	nodes     map[string]*Node // by key: "train.batch", "data.files[1]"
	problems  []located
	refused   map[string]bool // keys that have a problem
}

// located is a problem at its place.
type located struct {
	place
	Problem
}

// Read reads a file, and applies overrides such as train.steps=50. Its name is for messages.
func (s *Schema) Read(file string, source []byte, set ...string) *Document {
	source = bytes.TrimPrefix(source, []byte("\ufeff")) // some editors write it; it is no part of the text
	d := &Document{
		file: file, schema: s, lines: splitLines(source), overrides: set,
		nodes: map[string]*Node{}, refused: map[string]bool{},
	}
	b := builder{Document: d}
	root := b.read(source)
	switch {
	case root == nil && len(d.problems) > 0:
		return d
	case root == nil:
		root = &Node{Kind: Mapping, at: place{line: 1, column: 1}}
	case root.Kind != Mapping:
		d.report(root.at, "", "", "%s is a mapping of keys to values: %s; found %s", s.Name, strings.Join(s.names(""), ", "), root.Found())
		return d
	}
	for i, one := range set {
		d.override(root, i+1, one)
	}
	d.Root = root
	d.locate(root)
	return d
}

// locate notes every key below a node.
func (d *Document) locate(n *Node) {
	for _, e := range n.Entries {
		v := e.Value
		v.Key, v.keyAt = Join(n.Key, e.Name), e.at
		d.nodes[v.Key], d.refused[v.Key] = v, v.Kind == Refused
		d.locate(v)
	}
	for i, item := range n.Items {
		item.Key, item.keyAt = Item(n.Key, i), item.at
		d.nodes[item.Key] = item
		d.locate(item)
	}
}

// Value is the value of a key; nil where neither the file nor an override has it.
func (d *Document) Value(key string) *Node { return d.nodes[key] }

// Has reports whether the key is in the file or in an override.
func (d *Document) Has(key string) bool { return d.nodes[key] != nil }

// Refused reports whether a key, or one that encloses it, has a problem.
func (d *Document) Refused(key string) bool {
	for ; key != ""; key = Parent(key) {
		if d.refused[key] {
			return true
		}
	}
	return false
}

// Refuse notes a problem with the value of a key. Where the file does not have the key, it points to the nearest enclosing one.
func (d *Document) Refuse(key, nearest, format string, args ...any) {
	at := place{line: 1, column: 1}
	for k := key; k != ""; k = Parent(k) {
		if n := d.nodes[k]; n != nil {
			if at = n.at; n.Kind == Mapping {
				at = n.keyAt
			}
			break
		}
	}
	d.report(at, key, nearest, format, args...)
}

// UnknownKey notes that a section has a name that is none of the allowed ones. near is the key that is meant; where it is empty, one of
// those that looks like it is.
func (d *Document) UnknownKey(section, name, near string, allowed []string) {
	key := Join(section, name)
	allowed = slices.Sorted(slices.Values(allowed))
	near = cmp.Or(near, nearest.Word(name, allowed), nearest.Beginning(name, allowed))
	at := place{line: 1, column: 1}
	if n := d.nodes[key]; n != nil {
		at = n.keyAt
	}
	d.report(at, key, near, "unknown key %q; %s allows %s", name, cmp.Or(section, d.schema.Name), strings.Join(allowed, ", "))
}

// report notes a problem at a place, which is moved inside the text if it lies outside.
func (d *Document) report(at place, key, nearest, format string, args ...any) {
	p := Problem{File: "--set", Key: key, Message: fmt.Sprintf(format, args...), Nearest: nearest}
	if at.override > 0 {
		at.line, p.Text = 1, "--set "+d.overrides[at.override-1]
	} else {
		at.line = min(max(at.line, 1), len(d.lines))
		p.File, p.Text = d.file, d.lines[at.line-1]
	}
	p.Text = strings.ToValidUTF8(p.Text, "\uFFFD")
	p.Line, p.Column = at.line, min(max(at.column, 1), len([]rune(p.Text))+1)
	at.column = p.Column
	d.problems = append(d.problems, located{at, p})
	if key != "" {
		d.refused[key] = true
	}
}

// Err is all that is wrong so far, Problems in the order of lines, those of overrides last; nil when nothing is.
func (d *Document) Err() error {
	if len(d.problems) == 0 {
		return nil
	}
	slices.SortStableFunc(d.problems, func(a, b located) int {
		return cmp.Or(cmp.Compare(a.override, b.override), cmp.Compare(a.line, b.line), cmp.Compare(a.column, b.column))
	})
	all := make(Problems, len(d.problems))
	for i, p := range d.problems {
		all[i] = p.Problem
	}
	return all
}
