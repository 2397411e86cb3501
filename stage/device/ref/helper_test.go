package ref

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/avgpipe/avgpipe/stage/device"
)

// floats puts values in the device's memory.
func floats(t *testing.T, values ...float32) device.Mem {
	t.Helper()
	m, err := New().Alloc(device.F32, len(values))
	if err != nil {
		t.Fatal(err)
	}
	copy(m.F32(), values)
	return m
}

func ints(t *testing.T, values ...int32) device.Mem {
	t.Helper()
	m, err := New().Alloc(device.I32, len(values))
	if err != nil {
		t.Fatal(err)
	}
	copy(m.I32(), values)
	return m
}

// random fills n elements from a normal distribution.
func random(t *testing.T, rng *rand.Rand, n int) device.Mem {
	t.Helper()
	m := floats(t, make([]float32, n)...)
	for i := range m.F32() {
		m.F32()[i] = float32(rng.NormFloat64())
	}
	return m
}

func seeded() *rand.Rand { return rand.New(rand.NewPCG(1, 2)) }

func equal(t *testing.T, what string, got device.Mem, want ...float32) {
	t.Helper()
	for i, g := range got.F32() {
		if g != want[i] {
			t.Fatalf("%s: element %d is %v, want %v (all: %v)", what, i, g, want[i], got.F32())
		}
	}
}

func near(t *testing.T, what string, tolerance float64, got device.Mem, want ...float32) {
	t.Helper()
	for i, g := range got.F32() {
		if !(math.Abs(float64(g)-float64(want[i])) <= tolerance) {
			t.Fatalf("%s: element %d is %v, want %v within %g (all: %v)", what, i, g, want[i], tolerance, got.F32())
		}
	}
}

// gradient holds a central difference of f in every element of x against analytic.
func gradient(t *testing.T, what string, f func() float64, x, analytic device.Mem) {
	t.Helper()
	const step, tolerance = 1e-2, 2e-3
	for i := range x.F32() {
		keep := x.F32()[i]
		x.F32()[i] = keep + step
		above := f()
		x.F32()[i] = keep - step
		below := f()
		x.F32()[i] = keep
		numeric := (above - below) / (2 * step)
		got := float64(analytic.F32()[i])
		if math.Abs(got-numeric) > tolerance*(1+math.Abs(numeric)) {
			t.Errorf("%s: gradient %d is %v, the central difference %v", what, i, got, numeric)
		}
	}
}

// panics runs f and reports whether it panicked.
func panics(f func()) (did bool) {
	defer func() { did = recover() != nil }()
	f()
	return false
}
