package job

import (
	"fmt"
	"slices"
	"strings"
)

// Flat is a YAML file of keys with a value, or a list of values, each: the daemon's configuration, a file of costs. It is read as
// strictly as a job file, and reports problems in the same form.
type Flat struct {
	at       *Positions
	root     *node
	problems Problems
}

// Value is a value of a Flat.
type Value struct {
	Key   string  // "forward", "forward[1]"
	Text  string  // as it is written; "" of nothing, a list or a mapping
	Found string  // what it is, for messages
	Null  bool    // there is nothing
	Plain bool    // it is neither nothing nor a list nor a mapping
	Items []Value // of a list
}

// ReadFlat reads a file of at most so many bytes. Its kind, "a configuration", is for messages; keys are those that it may have.
func ReadFlat(file string, source []byte, kind string, limit int, keys []string) *Flat {
	source = []byte(strings.TrimPrefix(string(source), byteOrderMark))
	f := &Flat{root: &node{kind: mapping}, at: &Positions{
		file: file, lines: splitLines(source), values: map[string]place{}, keys: map[string]place{}, kind: kind,
	}}
	b := builder{of: kind, limit: limit}
	if root := b.read(source); root != nil {
		f.root = root
	}
	if len(b.faults) == 0 && f.root.kind != mapping {
		b.fault(f.root.at, "%s is a mapping of %s; found %s", kind, strings.Join(keys, ", "), f.root.found())
	}
	for _, x := range b.faults {
		f.problems = append(f.problems, f.at.at(x.at, x.key, x.message, x.nearest))
	}
	f.at.locate(f.root, "")
	for _, e := range f.root.entries {
		if !slices.Contains(keys, e.name) {
			f.problems = append(f.problems, f.at.UnknownKey(e.name, keys))
		}
	}
	return f
}

// Value is that of a key, if the file has it.
func (f *Flat) Value(key string) (v Value, found bool) {
	i := f.root.find(key)
	if i < 0 {
		return v, false
	}
	return valueOf(key, f.root.entries[i].value), true
}

func valueOf(key string, n *node) Value {
	v := Value{Key: key, Text: n.scalar, Found: n.found(), Null: n.kind == null}
	v.Plain = n.kind == boolean || n.kind == integer || n.kind == float || n.kind == text
	for i, item := range n.items {
		v.Items = append(v.Items, valueOf(fmt.Sprintf("%s[%d]", key, i), item))
	}
	return v
}

// Refuse notes a problem with the value of a key, or with the file where it does not have the key.
func (f *Flat) Refuse(key, nearest, format string, args ...any) {
	f.problems = append(f.problems, f.at.Problem(key, fmt.Sprintf(format, args...), nearest))
}

// Err is all that is wrong so far, in the order of lines; nil when nothing is.
func (f *Flat) Err() error {
	f.at.order(f.problems)
	return f.problems.err()
}
