package program

import (
	"slices"

	"github.com/avgpipe/avgpipe/stage/device"
)

// Align is the multiple of bytes at which every tensor begins.
const Align = 64

func padded(bytes int) int { return (bytes + Align - 1) / Align * Align }

// region is memory that values lie in: one of the three of the program, or from bindings on the external tensor with an index.
type region = int

// The regions of a program.
const (
	arena region = iota // of one pass
	saved               // from a micro-batch's forward to its backward
	kept                // from the input half to the weight half
	bindings
)

// home is where a value lies.
type home struct {
	region region
	offset int // bytes
}

// plan decides where everything lies.
func (b *Builder) plan(l lists) (p Passes) {
	homes := make([]home, len(b.values))
	inForward, inBackward := b.uses(l.forward), b.uses(l.whole)
	inInput, inWeight := b.uses(l.input), b.uses(l.weight)
	for id := range b.values {
		switch v := &b.values[id]; {
		case v.external >= 0:
			homes[id].region = bindings + v.external
		case v.again:
		case inForward[id] && inBackward[id]:
			homes[id] = home{saved, p.Saved}
			p.Saved += padded(v.mem.Bytes())
		}
	}
	halves := slices.Clone(homes)
	for id := range b.values {
		if halves[id].region == arena && inInput[id] && inWeight[id] && !b.values[id].again {
			halves[id] = home{kept, p.Kept}
			p.Kept += padded(b.values[id].mem.Bytes())
		}
	}
	later := slices.Clone(halves)
	for id := range b.values {
		if v := b.values[id]; v.passing && inWeight[id] {
			copied := b.New(v.mem.Type(), v.mem.Len())
			at := home{kept, p.Kept}
			p.Kept += padded(v.mem.Bytes())
			later[id] = at
			homes, halves, later = append(homes, home{}), append(halves, at), append(later, at)
			l.input = slices.Insert(l.input, 0, b.entry(&device.Copy{Y: copied, X: v.mem}, true))
		}
	}
	for _, one := range []struct {
		to    **Program
		list  []entry
		homes []home
	}{{&p.Forward, l.forward, homes}, {&p.Whole, l.whole, homes}, {&p.Input, l.input, halves}, {&p.Weight, l.weight, later}} {
		var bytes int
		*one.to, bytes = b.place(one.list, slices.Clone(one.homes))
		p.Arena = max(p.Arena, bytes)
	}
	return p
}

// uses says of each value whether a list touches it.
func (b *Builder) uses(list []entry) []bool {
	uses := make([]bool, len(b.values))
	for _, e := range list {
		for _, u := range e.uses {
			uses[u.id] = true
		}
	}
	return uses
}

// life is the operations of a list, first to last, between which a value is in use.
type life struct{ first, last int }

// place gives each value of a list that lies in the arena its place there, and makes the program. It returns the length of the arena.
func (b *Builder) place(list []entry, homes []home) (*Program, int) {
	lives := make([]life, len(b.values))
	for i, e := range list {
		for _, u := range e.uses {
			if lives[u.id].last == 0 {
				lives[u.id].first = i + 1
			}
			lives[u.id].last = i + 1
		}
	}
	owner := b.share(list, homes, lives)
	bytes := b.pack(homes, lives, owner)
	return b.program(list, homes), bytes
}

// share has results of operations take the memory of operands that nobody reads after them. The operand's place is then that of the result:
// owner is the value in whose place each value lies.
func (b *Builder) share(list []entry, homes []home, lives []life) (owner []int) {
	owner = make([]int, len(b.values))
	for id := range owner {
		owner[id] = id
	}
	// From the end, so that the owner of a result is known before its operand moves in.
	for i, e := range slices.Backward(list) {
		taken := -1
		device.InPlace(e.op, func(result, operand *device.Mem) {
			r, ok := b.id(*result)
			o, is := b.id(*operand)
			if !ok || !is || r == o || r == taken || homes[o].region != arena || owner[o] != o || lives[o].last != i+1 || *operand != b.values[o].mem {
				return
			}
			if result.Bytes() != operand.Bytes() {
				return
			}
			_, offset := result.Symbol()
			v := &b.values[r]
			switch {
			case v.external >= 0 && !v.into, v.external < 0 && (*result != v.mem || lives[r].first != i+1):
				return
			case homes[r].region == arena:
				lives[r].first = lives[o].first
				owner[o] = owner[r]
				lives[owner[r]].first = min(lives[owner[r]].first, lives[o].first)
			default:
				homes[o] = home{homes[r].region, homes[r].offset + offset}
				owner[o] = owner[r]
			}
			taken = r
		})
	}
	return owner
}

// pack lays the values that lie in the arena out, the largest first, each at the lowest place that no other has while it is in use.
func (b *Builder) pack(homes []home, lives []life, owner []int) (bytes int) {
	var order []int
	for id := range b.values {
		if homes[id].region == arena && lives[id].last > 0 && owner[id] == id {
			order = append(order, id)
		}
	}
	size := func(id int) int { return padded(b.values[id].mem.Bytes()) }
	slices.SortStableFunc(order, func(x, y int) int { return size(y) - size(x) })
	var placed []int
	for _, id := range order {
		var busy [][2]int
		for _, other := range placed {
			if lives[other].first <= lives[id].last && lives[id].first <= lives[other].last {
				busy = append(busy, [2]int{homes[other].offset, homes[other].offset + size(other)})
			}
		}
		slices.SortFunc(busy, func(x, y [2]int) int { return x[0] - y[0] })
		at := 0
		for _, r := range busy {
			if at+size(id) <= r[0] {
				break
			}
			at = max(at, r[1])
		}
		homes[id].offset = at
		bytes = max(bytes, at+size(id))
		placed = append(placed, id)
	}
	for id, o := range owner {
		if o != id && homes[id].region == arena {
			homes[id].offset = homes[o].offset
		}
	}
	return bytes
}
