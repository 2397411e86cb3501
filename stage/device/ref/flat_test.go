package ref

import (
	"math"
	"testing"

	"github.com/avgpipe/avgpipe/stage/device"
)

func TestExpLogAndTanhAgreeWithTheMathLibrary(t *testing.T) {
	var worst float64
	for x := -40.0; x < 40; x += 0.0137 {
		worst = max(worst, math.Abs(exp(x)/math.Exp(x)-1))
		worst = max(worst, math.Abs(log(math.Exp(x))-x)/(1+math.Abs(x)))
		worst = max(worst, math.Abs(tanh(x)-math.Tanh(x)))
	}
	t.Logf("largest difference %.2g, tolerance 2e-15", worst)
	if worst > 2e-15 {
		t.Errorf("largest difference %g, want at most 2e-15", worst)
	}
	if !math.IsNaN(exp(math.NaN())) || exp(math.Inf(-1)) != 0 || !math.IsInf(exp(math.Inf(1)), 1) || !math.IsInf(exp(710), 1) {
		t.Error("exp loses NaN or an infinity")
	}
}

func TestAllocIsZeroedAlignedAndRefusesTheImpossible(t *testing.T) {
	for n := range 40 {
		m, err := New().Alloc(device.F32, n)
		if err != nil {
			t.Fatal(err)
		}
		if uintptr(m.Pointer())%64 != 0 || m.Len() != n {
			t.Fatalf("Alloc(%d): address %p, %d elements", n, m.Pointer(), m.Len())
		}
		for _, v := range m.F32() {
			if v != 0 {
				t.Fatal("memory is not zeroed")
			}
		}
	}
	if _, err := New().Alloc(device.F32, -1); err == nil {
		t.Error("a negative count was accepted")
	}
	if _, err := New().Alloc(device.F32, math.MaxInt64/8); err == nil {
		t.Error("more than the host has was accepted")
	}
}

func TestFlatOperationsByHand(t *testing.T) {
	d := New()
	y, x := floats(t, 1, 2, -3), floats(t, 10, 20, 40)
	d.Do(&device.Axpy{Y: y, A: 0.5, X: x})
	equal(t, "Axpy", y, 6, 12, 17)
	d.Do(&device.Lerp{Y: y, A: 0.25, X: x})
	equal(t, "Lerp", y, 7, 14, 22.75)
	d.Do(&device.Scale{X: y, A: 2})
	equal(t, "Scale", y, 14, 28, 45.5)
	d.Do(&device.Mul{Y: y, X: x})
	equal(t, "Mul", y, 140, 560, 1820)
	d.Do(&device.Add{Out: y, A: y, B: x})
	equal(t, "Add in place", y, 150, 580, 1860)
	d.Do(&device.Copy{Y: y, X: x})
	equal(t, "Copy", y, 10, 20, 40)
	sum, err := d.Alloc(device.F64, 1)
	if err != nil {
		t.Fatal(err)
	}
	for i := 1; i <= 2; i++ {
		if d.Do(&device.SquaredNorm{Sum: sum, X: x}); sum.F64()[0] != float64(i)*(100+400+1600) {
			t.Errorf("after SquaredNorm, %d times, the sum is %v, want %d", i, sum.F64()[0], i*2100)
		}
	}
	d.Do(&device.Zero{X: y})
	equal(t, "Zero", y, 0, 0, 0)
}

func TestProductsAreRoundedBeforeTheSum(t *testing.T) {
	const a = 1 + 1.0/(1<<12) // a*a needs one bit more than float32 has: fused, a*a - rounded(a*a) would be 2^-24
	rounded := float32(1 + 1.0/(1<<11))
	d := New()
	y := floats(t, -rounded)
	d.Do(&device.Axpy{Y: y, A: a, X: floats(t, a)})
	equal(t, "Axpy", y, 0)
	c := floats(t, -rounded)
	d.Do(&device.MatMul{C: c, A: floats(t, a), B: floats(t, a), Product: device.Product{M: 1, N: 1, K: 1, Accumulate: true}})
	equal(t, "MatMul", c, 0)
}

func TestLerpWithOneIsACopy(t *testing.T) {
	y, x := floats(t, 1e30, 3, float32(math.Inf(1))), floats(t, 1e-30, 0.1, 5)
	New().Do(&device.Lerp{Y: y, A: 1, X: x})
	equal(t, "Lerp", y, x.F32()...)
}

func TestUploadAndDownloadCopyBytes(t *testing.T) {
	d := New()
	m := floats(t, 0, 0)
	src := []float32{1.5, -2}
	d.Upload(m, device.FloatBytes(src))
	equal(t, "Upload", m, 1.5, -2)
	dst := make([]float32, 2)
	d.Download(device.FloatBytes(dst), m)
	if dst[0] != 1.5 || dst[1] != -2 {
		t.Errorf("Download gave %v", dst)
	}
	if !panics(func() { d.Upload(m, make([]byte, 7)) }) {
		t.Error("7 bytes for 2 floats were accepted")
	}
}

func TestShapesThatDisagreePanic(t *testing.T) {
	d := New()
	two, three := floats(t, 1, 2), floats(t, 1, 2, 3)
	for name, f := range map[string]func(){
		"Axpy":      func() { d.Do(&device.Axpy{Y: two, A: 1, X: three}) },
		"Copy type": func() { d.Do(&device.Copy{Y: two, X: ints(t, 1, 2)}) },
		"MatMul":    func() { d.Do(&device.MatMul{C: two, A: two, B: three, Product: device.Product{M: 1, N: 2, K: 1}}) },
		"MatMul bias": func() {
			d.Do(&device.MatMul{C: two, A: two, B: two, Product: device.Product{M: 2, N: 1, K: 1, Bias: two, Accumulate: true}})
		},
		"LayerNorm": func() {
			d.Do(&device.Norm{Y: two, Mean: two, Rstd: two, X: two, Weight: two, Bias: three, Epsilon: 1e-5})
		},
		"Embed id": func() { d.Do(&device.Embed{Out: two, Tokens: two, Positions: two, IDs: ints(t, 2), T: 1}) },
		"CrossEntropy": func() {
			d.Do(&device.CrossEntropy{Losses: floats(t, 0), DLogits: two, Logits: two, Targets: ints(t, 2), Scale: 1})
		},
		"Attention": func() {
			d.Do(&device.Attention{
				Out: three, Saved: two, Q: two, K: two, V: two, AttentionShape: device.AttentionShape{B: 1, T: 1, H: 1, S: 2},
			})
		},
		"AdamStep": func() { d.Do(&device.AdamStep{P: two, G: two, M: two, V: two, Delta: three, Adam: device.Adam{}}) },
	} {
		if !panics(f) {
			t.Errorf("%s: no panic", name)
		}
	}
}
