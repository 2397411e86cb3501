package program

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/avgpipe/avgpipe/stage/device"
	"github.com/avgpipe/avgpipe/stage/device/ref"
)

// random is a program of operations on tensors of a few lengths, and what it reads.
type random struct {
	*Builder
	*rand.Rand
	tensors map[int][]device.Mem // by length: of those that hold something
	made    int
}

const inputs, length = 3, 64

// newRandom writes a forward and a backward that read each other's tensors, and set one output each.
func newRandom(seed uint64) *random {
	r := &random{NewBuilder(), rand.New(rand.NewPCG(seed, 1)), map[int][]device.Mem{}, 0}
	for i := range inputs {
		for _, n := range []int{length, 2 * length} {
			m := r.External(2*i+n/length-1, device.F32, n)
			r.tensors[n] = append(r.tensors[n], m)
		}
	}
	for range 12 {
		r.operation()
	}
	r.Do(&device.Copy{Y: r.Output(2*inputs, device.F32, length), X: r.any(length)})
	r.Backward()
	for range 12 {
		r.operation()
	}
	r.Boundary(r.any(length))
	r.Do(&device.Add{Out: r.Output(2*inputs+1, device.F32, length), A: r.any(length), B: r.any(length)})
	r.Do(&device.Axpy{Y: r.Gradient(2*inputs+2, 2*length, false), A: 1, X: r.any(2 * length)})
	return r
}

func (r *random) any(n int) device.Mem { return r.tensors[n][r.IntN(len(r.tensors[n]))] }

// operation writes one that makes a new tensor.
func (r *random) operation() {
	n := length * (1 + r.IntN(2))
	y, a, b := r.New(device.F32, n), r.any(n), r.any(n)
	switch r.IntN(6) {
	case 0:
		r.Do(&device.Copy{Y: y, X: a})
	case 1:
		r.Do(&device.Unary{Y: y, X: a, Function: device.Tanh})
	case 2:
		r.Do(&device.UnaryBackward{DX: y, DY: a, X: b, Function: device.ReLU})
	case 3: // in place, on a tensor of its own
		r.Do(&device.Copy{Y: y, X: a})
		r.Do(&device.Axpy{Y: y, A: 0.5, X: b})
	case 4: // a part from each of two
		other := r.any(2 * length)
		r.Do(&device.Copy{Y: y.Slice(0, length), X: r.any(length)})
		if n > length {
			r.Do(&device.Copy{Y: y.Slice(length, n-length), X: other.Slice(0, n-length)})
		}
	default:
		r.Do(&device.Add{Out: y, A: a, B: b})
	}
	r.tensors[n] = append(r.tensors[n], y)
}

// alone runs the operations in their order, each tensor in memory of its own, and returns the outputs.
func (r *random) alone(t *testing.T, dev device.Device) [][]float32 {
	memory := map[int]device.Mem{}
	for _, e := range r.entries {
		op := device.Clone(e.op)
		device.Operands(op, func(m *device.Mem) {
			if id, ok := r.id(*m); ok {
				if memory[id].Absent() {
					memory[id] = fill(t, dev, r.values[id].mem.Len(), r.values[id].external)
				}
				_, offset := m.Symbol()
				m.Place(memory[id], offset)
			}
		})
		dev.Do(op)
	}
	out := make([][]float32, 3)
	for id, m := range memory {
		if e := r.values[id].external - 2*inputs; e >= 0 {
			out[e] = slices.Clone(m.F32())
		}
	}
	return out
}

// fill is memory with the values of an external tensor; others hold what is no number.
func fill(t *testing.T, dev device.Device, n, external int) device.Mem {
	t.Helper()
	m, err := dev.Alloc(device.F32, n)
	if err != nil {
		t.Fatal(err)
	}
	for i := range m.F32() {
		m.F32()[i] = float32(math.NaN())
		if external >= 0 {
			m.F32()[i] = float32(math.Sin(float64(i*i + 31*external)))
		}
	}
	return m
}

// planned runs the programs of the passes and returns the outputs. What is not kept is no number between them.
func planned(t *testing.T, dev device.Device, p Passes, passes ...*Program) [][]float32 {
	arena := func() device.Mem { return fill(t, dev, p.Arena/4, -1) }
	m := Memory{Saved: fill(t, dev, p.Saved/4, -1), Kept: fill(t, dev, p.Kept/4, -1)}
	for i, n := range []int{length, 2 * length, length, 2 * length, length, 2 * length, length, length, 2 * length} {
		m.External = append(m.External, fill(t, dev, n, i))
	}
	for _, one := range passes {
		m.Arena = arena()
		one.Run(dev, &m, device.Args{})
	}
	var out [][]float32
	for _, x := range m.External[2*inputs:] {
		out = append(out, x.F32())
	}
	return out
}

// Tensors that share memory, operations that are left out and halves that run apart leave the bits of every output as they are.
func TestProgramsComputeWhatTheirOperationsDo(t *testing.T) {
	dev, smaller, halves := ref.New(), 0, 0
	for seed := range uint64(500) {
		want := newRandom(seed).alone(t, dev)
		p := newRandom(seed).Passes()
		for what, passes := range map[string][]*Program{"whole": {p.Forward, p.Whole}, "halves": {p.Forward, p.Input, p.Weight}} {
			got := planned(t, dev, p, passes...)
			for i := range want {
				if !slices.Equal(got[i], want[i]) {
					t.Fatalf("seed %d, %s: output %d differs: %v, want %v", seed, what, i, got[i][:4], want[i][:4])
				}
			}
		}
		if p.Saved+p.Arena < 24*length*4 {
			smaller++
		}
		if len(p.Weight.Ops()) > 0 && len(p.Input.Ops()) > 0 {
			halves++
		}
	}
	if smaller < 400 || halves < 100 {
		t.Errorf("of 500 programs %d share memory and %d have two halves", smaller, halves)
	}
}

// The sum that follows a norm's backward becomes its operand.
func TestASumJoinsTheNormBeforeIt(t *testing.T) {
	b := NewBuilder()
	x, dy, rstd, weight := b.External(0, device.F32, 8), b.External(1, device.F32, 8), b.External(2, device.F32, 2), b.External(3, device.F32, 4)
	past, dx, sum := b.External(4, device.F32, 8), b.New(device.F32, 8), b.New(device.F32, 8)
	b.Backward()
	b.Do(&device.NormBackward{DX: dx, DY: dy, X: x, Rstd: rstd, Weight: weight})
	b.Do(&device.Add{Out: sum, A: dx, B: past})
	b.Do(&device.Copy{Y: b.Output(5, device.F32, 8), X: sum})
	ops := b.Passes().Whole.Ops()
	if len(ops) != 1 {
		t.Fatalf("%d operations, expected one", len(ops))
	}
	if norm, ok := ops[0].(*device.NormBackward); !ok || norm.Plus.Absent() {
		t.Errorf("the operation is %T, expected a norm's backward with a sum", ops[0])
	}
}
