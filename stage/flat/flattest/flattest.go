// Package flattest is the conformance suite of flat.Vector. A new kind of vector runs it in one test:
//
//	flattest.Run(t, func(n int) flat.Vector { return mine.New(n) })
package flattest

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/avgpipe/avgpipe/internal/envtest"
	"github.com/avgpipe/avgpipe/stage/flat"
)

// lengths covers nothing, one, the tails of every vector width, and more than one page.
var lengths = []int{0, 1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 33, 63, 64, 65, 100, 127, 1000, 4099}

// factors are the coefficients tried: the special ones, an inexact one, a negative one, one that overflows.
var factors = []float32{0, 1, 0.5, 1.0 / 3, -1, 1e-30, 3e38}

// Run holds the vectors of newVector, of n zeroed elements each, against the contract of flat.Vector, to the bit.
func Run(t *testing.T, newVector func(n int) flat.Vector) {
	t.Run("new is zero", func(t *testing.T) {
		for _, n := range lengths {
			same(t, n, "new vector", newVector(n), make([]float32, n))
		}
	})
	t.Run("arithmetic is exact", func(t *testing.T) { arithmetic(t, newVector) })
	t.Run("operand may be the receiver", func(t *testing.T) { aliased(t, newVector) })
	t.Run("elements do not depend on their place", func(t *testing.T) { places(t, newVector) })
	t.Run("read and write at offsets", func(t *testing.T) { offsets(t, newVector) })
	t.Run("a slice is a view", func(t *testing.T) { slices(t, newVector) })
	t.Run("broken invariants panic", func(t *testing.T) { invariants(t, newVector) })
	t.Run("nothing allocates", func(t *testing.T) { allocations(t, newVector) })
}

// values draws n elements of mixed magnitude, with the special ones among them.
func values(rng *rand.Rand, n int) []float32 {
	special := []float32{
		0, float32(math.Copysign(0, -1)), float32(math.Inf(1)), float32(math.NaN()), math.MaxFloat32, math.SmallestNonzeroFloat32,
	}
	out := make([]float32, n)
	for i := range out {
		out[i] = float32(rng.NormFloat64() * math.Pow(10, float64(rng.IntN(12)-6)))
		if rng.IntN(20) == 0 {
			out[i] = special[rng.IntN(len(special))]
		}
	}
	return out
}

func filled(newVector func(n int) flat.Vector, content []float32) flat.Vector {
	v := newVector(len(content))
	v.Write(content, 0)
	return v
}

func read(v flat.Vector) []float32 {
	out := make([]float32, v.Len())
	v.Read(out, 0)
	return out
}

// same compares to the bit; NaNs of any payload are equal.
func same(t *testing.T, n int, what string, v flat.Vector, want []float32) {
	t.Helper()
	if v.Len() != n {
		t.Fatalf("%s: Len is %d, want %d", what, v.Len(), n)
	}
	for i, got := range read(v) {
		if math.Float32bits(got) != math.Float32bits(want[i]) && (got == got || want[i] == want[i]) {
			t.Fatalf("%s of %d elements: element %d is %v (%#x), want %v (%#x)",
				what, n, i, got, math.Float32bits(got), want[i], math.Float32bits(want[i]))
		}
	}
}

// operation pairs a method with its definition for one element: v and x before, the new v.
type operation struct {
	name  string
	apply func(v flat.Vector, a float32, x flat.Vector)
	means func(v, a, x float32) float32
}

var operations = []operation{
	{"Zero", func(v flat.Vector, _ float32, _ flat.Vector) { v.Zero() }, func(_, _, _ float32) float32 { return 0 }},
	{"Copy", func(v flat.Vector, _ float32, x flat.Vector) { v.Copy(x) }, func(_, _, x float32) float32 { return x }},
	{"Scale", func(v flat.Vector, a float32, _ flat.Vector) { v.Scale(a) }, func(v, a, _ float32) float32 { return a * v }},
	{"Axpy", func(v flat.Vector, a float32, x flat.Vector) { v.Axpy(a, x) }, func(v, a, x float32) float32 {
		return v + float32(a*x)
	}},
	{"Lerp", func(v flat.Vector, a float32, x flat.Vector) { v.Lerp(a, x) }, func(v, a, x float32) float32 {
		if a == 1 {
			return x
		}
		return v + float32(a*(x-v))
	}},
	{"Mul", func(v flat.Vector, _ float32, x flat.Vector) { v.Mul(x) }, func(v, _, x float32) float32 { return v * x }},
}

func arithmetic(t *testing.T, newVector func(n int) flat.Vector) {
	rng := rand.New(rand.NewPCG(3, 4))
	for _, op := range operations {
		for _, n := range lengths {
			for _, a := range factors {
				before, x := values(rng, n), values(rng, n)
				v, other := filled(newVector, before), filled(newVector, x)
				op.apply(v, a, other)
				want := make([]float32, n)
				for i := range want {
					want[i] = op.means(before[i], a, x[i])
				}
				same(t, n, fmt.Sprintf("%s with a = %g", op.name, a), v, want)
				same(t, n, op.name+"'s operand", other, x)
			}
		}
	}
}

func aliased(t *testing.T, newVector func(n int) flat.Vector) {
	rng := rand.New(rand.NewPCG(5, 6))
	for _, op := range operations {
		before := values(rng, 100)
		v := filled(newVector, before)
		op.apply(v, 0.3, v)
		want := make([]float32, len(before))
		for i := range want {
			want[i] = op.means(before[i], 0.3, before[i])
		}
		same(t, len(before), op.name+" with itself", v, want)
	}
}

// places puts the same elements at every offset: a tail computed otherwise than the middle would show.
func places(t *testing.T, newVector func(n int) flat.Vector) {
	const v0, x0, a = 0.1, 0.7, 1.0 / 3
	for _, op := range operations {
		for n := 1; n < 70; n++ {
			vs, xs, want := make([]float32, n), make([]float32, n), make([]float32, n)
			for i := range vs {
				vs[i], xs[i], want[i] = v0, x0, op.means(v0, a, x0)
			}
			v := filled(newVector, vs)
			op.apply(v, a, filled(newVector, xs))
			same(t, n, op.name, v, want)
		}
	}
}

func offsets(t *testing.T, newVector func(n int) flat.Vector) {
	v := newVector(10)
	v.Write([]float32{1, 2, 3}, 4)
	same(t, 10, "Write at 4", v, []float32{0, 0, 0, 0, 1, 2, 3, 0, 0, 0})
	v.Write(nil, 10)
	part := make([]float32, 2)
	v.Read(part, 5)
	if part[0] != 2 || part[1] != 3 {
		t.Errorf("Read at 5 gave %v, want [2 3]", part)
	}
	part[0] = 99
	same(t, 10, "after a change of what was read", v, []float32{0, 0, 0, 0, 1, 2, 3, 0, 0, 0})
}

func slices(t *testing.T, newVector func(n int) flat.Vector) {
	whole := newVector(100)
	part := whole.Slice(16, 80).Slice(16, 48)
	other := newVector(64)
	other.Write([]float32{1, 2, 3}, 16)
	part.Axpy(2, other.Slice(16, 48))
	part.Write([]float32{7}, 31)
	want := make([]float32, 100)
	copy(want[32:], []float32{2, 4, 6})
	want[63] = 7
	same(t, 100, "a vector whose slice was written", whole, want)
	whole.Write([]float32{9}, 33)
	same(t, 32, "a slice of a vector that was written", part, append([]float32{2, 9, 6}, want[35:64]...))
}

// foreign is a kind of vector that no implementation can know.
type foreign struct{ flat.Host }

func invariants(t *testing.T, newVector func(n int) flat.Vector) {
	v, longer := newVector(3), newVector(4)
	calls := map[string]func(){
		"Copy of a longer vector":      func() { v.Copy(longer) },
		"Axpy of a longer vector":      func() { v.Axpy(1, longer) },
		"Lerp of a longer vector":      func() { v.Lerp(0.5, longer) },
		"Lerp by 1 of a longer vector": func() { v.Lerp(1, longer) },
		"Mul of a longer vector":       func() { v.Mul(longer) },
		"Copy of a foreign kind":       func() { v.Copy(foreign{flat.NewHost(3)}) },
		"Read before the start":        func() { v.Read(make([]float32, 1), -1) },
		"Read beyond the end":          func() { v.Read(make([]float32, 2), 2) },
		"Write beyond the end":         func() { v.Write(make([]float32, 4), 0) },
		"Write after the end":          func() { v.Write(nil, 4) },
		"Slice before the start":       func() { v.Slice(-1, 1) },
		"Slice beyond the end":         func() { v.Slice(2, 4) },
		"Slice that ends first":        func() { v.Slice(2, 1) },
		"Copy of a shorter slice":      func() { v.Copy(longer.Slice(0, 2)) },
	}
	for name, call := range calls {
		if !panics(call) {
			t.Errorf("%s did not panic", name)
		}
	}
}

func panics(call func()) (did bool) {
	defer func() { did = recover() != nil }()
	call()
	return false
}

func allocations(t *testing.T, newVector func(n int) flat.Vector) {
	v, x := newVector(1000), newVector(1000)
	buffer := make([]float32, 1000)
	got := envtest.Allocations(10, func() {
		for _, op := range operations {
			op.apply(v, 0.5, x)
		}
		v.Read(buffer, 0)
		v.Write(buffer, 0)
	})
	if got != 0 {
		t.Errorf("%v allocations a run, want none", got)
	}
}
