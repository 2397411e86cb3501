package foreign

import (
	"slices"

	"github.com/avgpipe/avgpipe/stage/device"
)

// bound is a set of parameters: consecutive modules, and where the tensors of them lie.
type bound struct {
	bind bindRequest
	told bool // the process knows it
	// Of a framework that computes with copies: where the values lie and where the gradients do, as spans that do not touch.
	values, gradients []span
	changed           bool // the values, since the process was told to copy them
	pending           bool // the process has added to its own gradients, and not to these
}

// set is the parameters that lie here, which the process is told when they are new to it.
func (d *Device) set(o *device.ModulesForward) *bound {
	d.says(o.First, len(o.Streams)) // several may begin with the same
	d.lie(o.Params, o.Grads, o.Sums)
	b, ok := d.sets[string(d.key)]
	if !ok {
		b = d.newSet(o)
		d.sets[string(d.key)] = b
		d.all = append(d.all, b)
	}
	if !b.told {
		d.lock(o.Params, o.Grads)
		d.queue = append(d.queue, b.bind)
		b.told, b.changed = true, true
	}
	return b
}

func (d *Device) newSet(o *device.ModulesForward) *bound {
	b := &bound{bind: bindRequest{Request: "bind", Set: len(d.all), First: o.First, Last: o.First + len(o.Streams), Parameters: make([][2]*int, len(o.Params))}}
	for i := range o.Params {
		second := o.Grads[i]
		if second.Absent() {
			second = o.Sums[i]
		}
		b.bind.Parameters[i] = [2]*int{d.place(o.Params[i]), d.place(second)}
	}
	if d.process.copies {
		b.values, b.gradients = d.spans(o.Params), d.spans(o.Grads)
	}
	return b
}

// spans are where tensors lie, ascending; those that touch are one.
func (d *Device) spans(all []device.Mem) (out []span) {
	for _, m := range all {
		if !m.Absent() {
			out = append(out, span{d.at(m), m.Bytes()})
		}
	}
	slices.SortFunc(out, func(a, b span) int { return a.from - b.from })
	joined := out[:0]
	for _, s := range out {
		if n := len(joined); n > 0 && s.from <= joined[n-1].to() {
			joined[n-1].bytes = max(joined[n-1].to(), s.to()) - joined[n-1].from
			continue
		}
		joined = append(joined, s)
	}
	return joined
}

// overlap reports whether memory lies in one of spans.
func overlap(all []span, s span) bool {
	at, _ := slices.BinarySearchFunc(all, s.from, func(of span, from int) int { return of.to() - 1 - from }) // the first that ends behind the beginning
	return at < len(all) && all[at].from < s.to()
}

// touch is called before something reads memory, or writes to it. What the process has of gradients there is fetched, and it is told that values there have
// changed. Of a framework that computes where tensors lie, neither is apart from the arena.
func (d *Device) touch(m device.Mem, writes bool) {
	if m.Absent() || d.process == nil || !d.process.copies {
		return
	}
	s := span{d.at(m), m.Bytes()}
	for _, b := range d.all {
		if b.pending && overlap(b.gradients, s) {
			b.pending = false
			d.queue = append(d.queue, gatherRequest{"gather", b.bind.Set})
		}
		b.changed = b.changed || writes && overlap(b.values, s)
	}
}

// touchAll is touch of the operands of an operation.
func (d *Device) touchAll(op device.Op) {
	if !d.process.copies {
		return
	}
	results := device.Results(op)
	device.Operands(op, func(m *device.Mem) {
		d.touch(*m, results > 0)
		results--
	})
}
