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
	root.set(names, at, n)
}

// set sets the value of a key below a mapping. What lies around it becomes a mapping: an override of `a.b` says that `a` is a section.
func (n *Node) set(names []string, at place, value *Node) {
	if n.Kind != Mapping {
		*n = Node{Kind: Mapping, at: at}
	}
	i := n.find(names[0])
	if i < 0 {
		i = len(n.Entries)
		n.Entries = append(n.Entries, Entry{Name: names[0], Kind: Text, at: at, Value: &Node{Kind: Mapping, at: at}})
	}
	e := &n.Entries[i]
	if len(names) == 1 {
		e.at, e.Value = at, value
		return
	}
	if e.Value.Kind != Mapping {
		e.at = at // whoever makes a section of it answers for it
	}
	e.Value.set(names[1:], at, value)
}
