package program

import (
	"slices"

	"github.com/avgpipe/avgpipe/stage/device"
)

// Passes are the programs of a stage. Which of them run is the plan's choice: Whole, or Input and Weight of each micro-batch.
type Passes struct {
	Forward, Whole, Input, Weight *Program
	// Saved is the bytes that a micro-batch keeps from its forward to its backward, Kept from the input half to the weight half, and Arena
	// what one pass at a time needs besides.
	Saved, Kept, Arena int
}

// lists are the operations of each pass, with what nobody reads left out.
type lists struct{ forward, whole, input, weight []entry }

// Passes makes the programs of a builder that took a forward and a backward down, or a forward alone.
func (b *Builder) Passes() Passes {
	b.joinSums()
	var l lists
	needed := b.needed(func(_ *entry, v *value) bool { return v.external >= 0 })
	half := b.needed(func(e *entry, v *value) bool { return v.boundary || v.external >= 0 && (v.into || e.unsplit) })
	for i, e := range b.entries {
		switch {
		case !needed[i] || b.again(&e):
		case !e.backward:
			l.forward = append(l.forward, e)
		default:
			l.whole = append(l.whole, e)
			if half[i] {
				l.input = append(l.input, e)
			} else {
				l.weight = append(l.weight, e)
			}
		}
	}
	for _, list := range []*[]entry{&l.forward, &l.whole, &l.input, &l.weight} {
		*list = append(b.madeAgain(*list), *list...)
	}
	return b.plan(l)
}

// again reports whether an operation makes what each pass makes that reads it (Again).
func (b *Builder) again(e *entry) bool {
	return slices.ContainsFunc(e.uses, func(u use) bool { return u.writes && b.values[u.id].again })
}

// madeAgain are the operations that make what a list reads and each pass makes.
func (b *Builder) madeAgain(list []entry) (out []entry) {
	read := b.uses(list)
	for _, e := range b.entries {
		if b.again(&e) && read[e.uses[0].id] {
			out = append(out, e)
		}
	}
	return out
}

// needed says of each operation whether something that is a root, or that a needed operation after it touches, is written by it.
func (b *Builder) needed(root func(*entry, *value) bool) []bool {
	needed := make([]bool, len(b.entries))
	read := make([]bool, len(b.values))
	for i := len(b.entries) - 1; i >= 0; i-- {
		uses := b.entries[i].uses
		needed[i] = slices.ContainsFunc(uses, func(u use) bool { return u.writes && (read[u.id] || root(&b.entries[i], &b.values[u.id])) })
		if needed[i] {
			for _, u := range uses {
				read[u.id] = true
			}
		}
	}
	return needed
}

// joinSums has a norm's backward add what the next operation on its result adds, which saves a pass over memory.
func (b *Builder) joinSums() {
	for i, e := range b.entries {
		norm, ok := e.op.(*device.NormBackward)
		if !ok || !norm.Plus.Absent() {
			continue
		}
		at, add := b.sumAfter(i, norm.DX)
		if add == nil {
			continue
		}
		plus := add.A
		if plus == norm.DX {
			plus = add.B
		}
		if id, ok := b.id(plus); !ok || add.Out == plus || plus.Type() != device.F32 || b.values[id].mem != plus || !b.still(id, i, at) {
			continue
		}
		joined := *norm
		joined.DX, joined.Plus = add.Out, plus
		b.entries[i] = b.entry(&joined, e.backward)
		b.entries[i].unsplit = e.unsplit
		b.entries[at] = b.entry(&device.Zero{}, e.backward) // of nothing, so nobody needs it
	}
}

// sumAfter is the operation that adds something to x, when that is the first to touch x after operation i and no other does later.
func (b *Builder) sumAfter(i int, x device.Mem) (at int, add *device.Add) {
	want, _ := b.id(x)
	for j := i + 1; j < len(b.entries); j++ {
		if touches, _ := b.entries[j].touches(want); !touches {
			continue
		}
		found, ok := b.entries[j].op.(*device.Add)
		if add != nil || !ok || found.Out.Type() != device.F32 || found.A != x && found.B != x {
			if add != nil && add.Out == x {
				return at, add // it lives on as the sum
			}
			return 0, nil
		}
		at, add = j, found
	}
	return at, add
}

// still reports whether a value is the same at operation j as at operation i, and there already.
func (b *Builder) still(value, i, j int) bool {
	there := b.values[value].external >= 0
	for k := range b.entries[:j] {
		_, written := b.entries[k].touches(value)
		if written && k >= i {
			return false
		}
		there = there || written
	}
	return there
}
