package program

import (
	"slices"

	"github.com/avgpipe/avgpipe/stage/device"
)

// Program is one pass: operations whose operands have places. It belongs to one goroutine, as the device does that runs it.
type Program struct {
	pass    device.Pass
	patches []patch
	regions []region // of the operands: those of the pass's places
	resolve []func(device.Args)
	final   map[int]int // by external tensor, the last operation that writes it
}

// patch is an operand, and the place that it gets in each run.
type patch struct {
	operand *device.Mem
	home
}

// Memory is what the operands of a run lie in, by region.
type Memory struct {
	Arena, Saved, Kept device.Mem   // F32; absent where the program needs none
	External           []device.Mem // by index
}

func (m *Memory) region(r region) device.Mem {
	switch r {
	case arena:
		return m.Arena
	case saved:
		return m.Saved
	case kept:
		return m.Kept
	}
	return m.External[r-bindings]
}

// program makes the program of a list, without the copies that have nothing to copy.
func (b *Builder) program(list []entry, homes []home) *Program {
	p := &Program{final: map[int]int{}}
	set := map[int]bool{} // fresh values that an earlier operation has set
	for _, e := range list {
		op := device.Clone(e.op)
		from := len(p.patches)
		fresh := false
		device.Operands(op, func(m *device.Mem) {
			id, ok := b.id(*m)
			if !ok {
				return
			}
			_, offset := m.Symbol()
			at := homes[id]
			at.offset += offset
			if b.values[id].fresh && !set[id] {
				fresh, set[id] = true, true
			}
			p.patches = append(p.patches, patch{m, at})
		})
		if c, ok := op.(*device.Copy); ok && c.Y.Type() == c.X.Type() && p.patches[from].home == p.patches[from+1].home {
			p.patches = p.patches[:from]
			continue
		}
		if r := device.Resolver(op, fresh); r != nil {
			p.resolve = append(p.resolve, r)
		}
		if device.Resolver(op, false) != nil {
			p.pass.Changing = append(p.pass.Changing, op)
		}
		for _, u := range e.uses {
			if v := &b.values[u.id]; u.writes && v.external >= 0 {
				p.final[v.external] = len(p.pass.Ops)
			}
		}
		p.pass.Ops = append(p.pass.Ops, op)
	}
	for _, x := range p.patches {
		if !slices.Contains(p.regions, x.region) {
			p.regions = append(p.regions, x.region)
		}
	}
	p.pass.Places = make([]device.Mem, len(p.regions))
	return p
}

// FinalAfter is the operation after which a bound tensor has its last value of a run; -1: the program does not write it.
func (p *Program) FinalAfter(external int) (operation int) {
	if at, ok := p.final[external]; ok {
		return at
	}
	return -1
}

// Run runs the operations on a device.
func (p *Program) Run(d device.Device, m *Memory, a device.Args) {
	replayer, ok := device.Of[device.Replayer](d)
	if !ok || a.Past != 0 { // each position is another run
		p.RunTelling(d, m, a, func(int) {})
		return
	}
	p.place(m, a)
	for i, r := range p.regions {
		p.pass.Places[i] = m.region(r)
	}
	p.pass.Fresh = a.Fresh
	replayer.Replay(&p.pass)
}

// place brings the operations to a run's memory and arguments.
func (p *Program) place(m *Memory, a device.Args) {
	for i := range p.patches {
		x := &p.patches[i]
		x.operand.Place(m.region(x.region), x.offset)
	}
	for _, r := range p.resolve {
		r(a)
	}
}

// RunTelling is Run that tells of each operation when the device has been given it, and first of -1.
func (p *Program) RunTelling(d device.Device, m *Memory, a device.Args, after func(operation int)) {
	p.place(m, a)
	after(-1)
	for i, op := range p.pass.Ops {
		d.Do(op)
		after(i)
	}
}

// Ops are the operations, for those who print or price them.
func (p *Program) Ops() []device.Op { return p.pass.Ops }

// Cost is what a run takes: floating-point operations, and the bytes that the operations move which memory bounds.
func (p *Program) Cost() (flops, bytes float64) {
	for _, op := range p.pass.Ops {
		f, b := device.Cost(op)
		flops, bytes = flops+f, bytes+float64(b)
	}
	return flops, bytes
}
