package strictyaml

import (
	"slices"
	"strings"
	"unicode/utf8"
)

// override applies one `key=value` to the tree: `train.steps=50`, `data.files=[a.txt, b.txt]`. The value is YAML. A key
// that is not there yet is added, the sections around it too.
func (d *Document) override(root *Node, number int, setting string) {
	at := place{override: number, line: 1, column: 1 + len("--set ")}
	key, value, ok := strings.Cut(setting, "=")
	names := strings.Split(key, ".")
	switch {
	case !ok:
		d.report(at, "", "", "--set %s: no `=`; write key=value, as in train.steps=50", setting)
		return
	case strings.ContainsAny(setting, "\r\n"):
		d.report(at, "", "", "an override is one line; write lists as [a, b]")
		return
	case slices.ContainsFunc(names, func(name string) bool { return name == "" || strings.TrimSpace(name) != name }):
		d.report(at, "", "", "%q is not a key; write the sections and the name with dots between, as in train.steps=50", key)
		return
	}
	b := builder{Document: d, override: number, key: key, shift: len("--set ") + utf8.RuneCountInString(key) + len("=")}
	before := len(d.problems)
	n := b.read([]byte(value))
	switch {
	case len(d.problems) > before:
		return
	case n == nil:
		n = &Node{at: b.place(nil)}
	}
	section := root
	for _, name := range names[:len(names)-1] {
		section = section.section(name, at)
	}
	section.become(Mapping, at)
	section.put(Entry{Name: names[len(names)-1], at: at, Value: n})
}

// section returns the section of a name, made if need be.
func (n *Node) section(name string, at place) *Node {
	n.become(Mapping, at)
	if i := n.find(name); i >= 0 {
		if n.Entries[i].Value.Kind != Mapping {
			n.Entries[i].at = at // whoever makes a section of it answers for it
		}
		return n.Entries[i].Value
	}
	section := &Node{Kind: Mapping, at: at}
	n.put(Entry{Name: name, at: at, Value: section})
	return section
}

// become turns a node of another kind into an empty one of this kind: an override of `a.b` says that `a` is a section.
func (n *Node) become(k Kind, at place) {
	if n.Kind != k {
		*n = Node{Kind: k, at: at}
	}
}

// put sets a key.
func (n *Node) put(e Entry) {
	if i := n.find(e.Name); i >= 0 {
		n.Entries[i] = e
		return
	}
	n.Entries = append(n.Entries, e)
}
