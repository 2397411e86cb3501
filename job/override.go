package job

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// override applies one `key=value` to the tree: `train.steps=50`, `data.files=[a.txt, b.txt]`. The value is YAML. A key
// that is not there yet is added, the sections around it too.
func override(root *node, number int, setting string) []fault {
	at := place{override: number, line: 1, column: 1 + len("--set ")}
	key, value, ok := strings.Cut(setting, "=")
	switch {
	case !ok:
		return []fault{{at: at, message: fmt.Sprintf("--set %s: no `=`; write key=value, as in train.steps=50", setting)}}
	case strings.ContainsAny(setting, "\r\n"):
		return []fault{{at: at, message: "an override is one line; write lists as [a, b]"}}
	}
	names := strings.Split(key, ".")
	for _, name := range names {
		if name == "" || strings.TrimSpace(name) != name {
			return []fault{{
				at:      at,
				message: fmt.Sprintf("%q is not a key; write the sections and the name with dots between, as in train.steps=50", key),
			}}
		}
	}
	shift := len("--set ") + utf8.RuneCountInString(key) + len("=")
	b := builder{override: number, shift: shift}
	n := b.read([]byte(value))
	if len(b.faults) > 0 {
		for i := range b.faults {
			b.faults[i].key = key
		}
		return b.faults
	}
	if n == nil {
		n = &node{kind: null, at: place{override: number, line: 1, column: 1 + shift}}
	}
	section := root
	for _, name := range names[:len(names)-1] {
		section = section.child(name, at)
	}
	section.become(mapping, at)
	section.put(entry{name: names[len(names)-1], at: at, value: n})
	return nil
}

// child returns the section of a name, made if need be.
func (n *node) child(name string, at place) *node {
	n.become(mapping, at)
	if i := n.find(name); i >= 0 {
		if n.entries[i].value.kind != mapping {
			n.entries[i].at = at // whoever makes a section of it answers for it
		}
		return n.entries[i].value
	}
	section := &node{kind: mapping, at: at}
	n.put(entry{name: name, at: at, value: section})
	return section
}

// become turns a node of another kind into an empty one of this kind: an override of `a.b` says that `a` is a section.
func (n *node) become(k kind, at place) {
	if n.kind != k {
		*n = node{kind: k, at: at}
	}
}

// put sets a key.
func (n *node) put(e entry) {
	if i := n.find(e.name); i >= 0 {
		n.entries[i] = e
		return
	}
	n.entries = append(n.entries, e)
}
