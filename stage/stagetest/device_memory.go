package stagetest

import (
	"math"
	"testing"

	"github.com/avgpipe/avgpipe/stage/device"
)

// memory tests allocation and transfer.
func memory(c *comparison) {
	if c.dev.Name() == "" {
		c.Error("the device has no name")
	}
	for _, typ := range []device.Type{device.F32, device.I32, device.BF16} {
		for _, n := range []int{0, 1, 3, 1000, 1 << 20} {
			transfer(c, typ, n)
		}
	}
	c.dev.Free(device.Mem{})
	for _, n := range []int{-1, math.MaxInt64 / 8} {
		if _, err := c.dev.Alloc(device.F32, n); err == nil {
			c.Errorf("Alloc(%d) succeeded", n)
		}
	}
}

// transfer allocates n elements, finds them zero and aligned, and reads back what it writes.
func transfer(c *comparison, typ device.Type, n int) {
	m := c.alloc(c.dev, typ, n)
	defer c.dev.Free(m)
	if m.Len() != n || m.Type() != typ || m.Absent() {
		c.Fatalf("Alloc(%v, %d) has %d elements of %v", typ, n, m.Len(), m.Type())
	}
	if c.dev.Host() && uintptr(m.Pointer())%64 != 0 {
		c.Fatalf("Alloc(%v, %d) lies at %p, not at a multiple of 64", typ, n, m.Pointer())
	}
	back := make([]byte, m.Bytes())
	c.dev.Download(back, m)
	for i, b := range back {
		if b != 0 {
			c.Fatalf("Alloc(%v, %d): byte %d is %d, want 0", typ, n, i, b)
		}
	}
	sent := make([]byte, m.Bytes())
	for i := range sent {
		sent[i] = byte(c.rng.Uint32())
	}
	c.dev.Upload(m, sent)
	other := c.alloc(c.dev, typ, n)
	defer c.dev.Free(other)
	c.dev.Copy(other, m)
	c.dev.Download(back, other)
	for i := range back {
		if back[i] != sent[i] {
			c.Fatalf("%d elements of %v: byte %d came back as %d, sent %d", n, typ, i, back[i], sent[i])
		}
	}
	c.dev.Zero(other)
	c.dev.Download(back, other)
	for i, b := range back {
		if b != 0 {
			c.Fatalf("%d elements of %v: byte %d is %d after Zero", n, typ, i, b)
		}
	}
}

// invariants calls with operands that do not fit.
func invariants(c *comparison) {
	d := c.dev
	two, three := c.alloc(d, device.F32, 2), c.alloc(d, device.F32, 3)
	ints, none := c.alloc(d, device.I32, 2), device.Mem{}
	bad := c.alloc(d, device.I32, 2)
	d.Upload(bad, device.IntBytes([]int32{0, 2}))
	below := c.alloc(d, device.I32, 2)
	d.Upload(below, device.IntBytes([]int32{0, -2}))
	for name, call := range map[string]func(){
		"Upload of too few bytes":         func() { d.Upload(two, make([]byte, 7)) },
		"Download of too many bytes":      func() { d.Download(make([]byte, 9), two) },
		"Copy of another length":          func() { d.Copy(two, three) },
		"Copy of another type":            func() { d.Copy(two, ints) },
		"Scale of integers":               func() { d.Scale(ints, 2) },
		"Axpy of another length":          func() { d.Axpy(two, 1, three) },
		"Lerp of another length":          func() { d.Lerp(two, 1, three) },
		"Mul of another type":             func() { d.Mul(two, ints) },
		"Add of another length":           func() { d.Add(two, two, three) },
		"Dot of another length":           func() { d.Dot(two, three) },
		"MatMul that does not fit":        func() { d.MatMul(two, two, three, device.MatMul{M: 1, N: 2, K: 1}) },
		"LayerNormBackward, short plus":   func() { d.LayerNormBackward(two, two, two, two, two, two, three, 1, 2) },
		"MatMul without columns":          func() { d.MatMul(two, two, two, device.MatMul{M: 2, N: 0, K: 1}) },
		"MatMul accumulating with a bias": func() { d.MatMul(two, two, two, device.MatMul{M: 1, N: 2, K: 1, Accumulate: true, Bias: two}) },
		"SumRows of another width":        func() { d.SumRows(three, two, 1, 2) },
		"GELU of another length":          func() { d.GELU(two, three) },
		"GELUBackward without dy":         func() { d.GELUBackward(two, none, two) },
		"LayerNorm of another width":      func() { d.LayerNorm(two, two, two, two, three, two, 2, 1, 1e-5) },
		"LayerNormBackward":               func() { d.LayerNormBackward(two, two, three, two, two, two, device.Mem{}, 1, 2) },
		"LayerNormBackwardWeight":         func() { d.LayerNormBackwardWeight(three, two, two, two, two, two, 1, 2) },
		"Embed beyond the positions":      func() { d.Embed(three, two, two, ints, 1, 3, 1) },
		"Attention that does not fit":     func() { d.Attention(three, none, two, two, two, device.Attention{B: 1, T: 1, H: 1, S: 2}) },
		"Attention beyond the keys":       func() { d.Attention(three, none, three, two, two, device.Attention{B: 1, T: 1, H: 1, S: 3}) },
		"Attention of no heads":           func() { d.Attention(two, none, two, two, two, device.Attention{B: 1, T: 1, S: 2}) },
		"Attention of a head and a half":  func() { d.Attention(three, none, three, two, two, device.Attention{B: 1, T: 1, H: 3, KV: 2, S: 1}) },
		"Attention of rows that overlap":  func() { d.Attention(two, none, two, two, two, device.Attention{B: 1, T: 1, H: 2, S: 1, QStride: 1}) },
		"Attention of all in a window": func() {
			d.Attention(three, none, three, three, three, device.Attention{B: 1, T: 3, H: 1, S: 1, Window: 2, Bidirectional: true})
		},
		"Attention with a short mask": func() {
			d.Attention(three, none, three, three, three, device.Attention{B: 1, T: 3, H: 1, S: 1, Mask: ints})
		},
		"AdamStep of another length": func() { d.AdamStep(two, two, two, three, none, device.Adam{}) },
		"AdamStep without m":         func() { d.AdamStep(two, two, none, two, none, device.Adam{}) },
		"SGDStep without momentum":   func() { d.SGDStep(two, two, none, none, device.SGD{Momentum: 0.5}) },
		"SGDStep with a short delta": func() { d.SGDStep(three, three, none, two, device.SGD{}) },
		"a slice beyond the end":     func() { two.Slice(1, 2) },
	} {
		if !panics(call) {
			c.Errorf("%s did not panic", name)
		}
	}
	// Ids that are not in host memory are read when the operation runs, not when it is called.
	for name, call := range map[string]func(){
		"Embed of an id beyond the table": func() { d.Embed(two, two, two, bad, 1, 2, 1) },
		"Embed of a negative id":          func() { d.Embed(two, two, two, below, 1, 2, 1) },
		"EmbedBackward beyond the table":  func() { d.EmbedBackward(two, two, two, bad, 1, 2, 1) },
		"CrossEntropy beyond the classes": func() { d.CrossEntropy(two, none, two, bad, 2, 1, 1) },
		"CrossEntropy below -1":           func() { d.CrossEntropy(two, none, two, below, 2, 1, 1) },
	} {
		c.refusesID(name, call)
	}
}

// refusesID expects an operation on an id outside of its table to panic, or to fail once it has run. A device that keeps no
// values has no ids.
func (c *comparison) refusesID(name string, call func()) {
	if _, emulates := c.dev.(device.Emulator); emulates {
		return
	}
	if !panics(call) && (c.dev.Host() || c.dev.Synchronize() == nil) {
		c.Errorf("%s neither panicked nor failed", name)
	}
}

func panics(call func()) (did bool) {
	defer func() { did = recover() != nil }()
	call()
	return false
}

// allocations runs every operation once more than it needs to warm up. Training calls them some thousands of times a
// second, so none may leave work to the garbage collector.
func allocations(c *comparison) {
	const rows, columns, vocabulary = 8, 16, 32
	d := c.dev
	a := device.Attention{B: 1, T: rows, H: 2, S: columns / 2}
	floats := func(n int) device.Mem { return c.alloc(d, device.F32, n) }
	x, y, z, w := floats(rows*columns), floats(rows*columns), floats(rows*columns), floats(rows*columns)
	square, bias, mean, rstd := floats(columns*columns), floats(columns), floats(rows), floats(rows)
	tokens, logits, losses := floats(vocabulary*columns), floats(rows*vocabulary), floats(rows)
	saved := floats(d.AttentionSaved(a))
	ids := c.alloc(d, device.I32, rows)
	for name, call := range map[string]func(){
		"flat": func() {
			d.Zero(x)
			d.Copy(x, y)
			d.Scale(x, 2)
			d.Axpy(x, 2, y)
			d.Lerp(x, 0.5, y)
			d.Mul(x, y)
			d.Add(x, y, z)
			d.Dot(x, y)
		},
		"MatMul": func() {
			d.MatMul(x, y, square, device.MatMul{M: rows, N: columns, K: columns, TransB: true, Bias: bias})
			d.MatMul(square, x, y, device.MatMul{M: columns, N: columns, K: rows, TransA: true, Accumulate: true})
		},
		"SumRows":      func() { d.SumRows(bias, x, rows, columns) },
		"GELU":         func() { d.GELU(x, y) },
		"GELUBackward": func() { d.GELUBackward(x, y, z) },
		"LayerNorm":    func() { d.LayerNorm(y, mean, rstd, x, bias, bias, rows, columns, 1e-5) },
		"LayerNormBackward": func() {
			d.LayerNormBackward(y, y, x, mean, rstd, bias, z, rows, columns)
			d.LayerNormBackwardWeight(bias, bias, y, x, mean, rstd, rows, columns)
		},
		"Embed":             func() { d.Embed(x, tokens, y, ids, 1, rows, columns) },
		"EmbedBackward":     func() { d.EmbedBackward(tokens, y, x, ids, 1, rows, columns) },
		"Attention":         func() { d.Attention(x, saved, y, z, w, a) },
		"AttentionBackward": func() { d.AttentionBackward(x, y, z, w, x, y, z, w, saved, a) },
		"CrossEntropy":      func() { d.CrossEntropy(losses, logits, logits, ids, rows, vocabulary, 1) },
		"AdamStep":          func() { d.AdamStep(x, y, z, w, device.Mem{}, device.Adam{Correction1: 1, Correction2: 1}) },
		"SGDStep":           func() { d.SGDStep(x, y, z, w, device.SGD{Momentum: 0.9}) },
		"Slice":             func() { d.Scale(x.Slice(1, 2).Slice(1, 1), 1) },
	} {
		if got := testing.AllocsPerRun(5, call); got != 0 {
			c.Errorf("%s: %v allocations a run, want none", name, got)
		}
	}
}
