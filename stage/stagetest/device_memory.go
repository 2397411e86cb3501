package stagetest

import (
	"math"

	"github.com/avgpipe/avgpipe/stage/device"
)

// memory tests allocation and transfer.
func memory(c *comparison) {
	if c.dev.Name() == "" {
		c.Error("the device has no name")
	}
	for _, typ := range []device.Type{device.F32, device.I32, device.BF16, device.F64} {
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
	c.read(c.dev, back, m)
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
	c.dev.Do(&device.Copy{Y: other, X: m})
	c.read(c.dev, back, other)
	for i := range back {
		if back[i] != sent[i] {
			c.Fatalf("%d elements of %v: byte %d came back as %d, sent %d", n, typ, i, back[i], sent[i])
		}
	}
	c.dev.Do(&device.Zero{X: other})
	c.read(c.dev, back, other)
	for i, b := range back {
		if b != 0 {
			c.Fatalf("%d elements of %v: byte %d is %d after Zero", n, typ, i, b)
		}
	}
}

// events waits for moments of the queue, out of their order, and hears of failures.
func events(c *comparison) {
	const n, many = 1000, 100
	m, sent := c.alloc(c.dev, device.F32, n), make([]float32, n)
	var got [many][]float32
	var passed [many]device.Event
	if err := device.Wait(c.dev.Record()); err != nil {
		c.Fatal(err)
	}
	for i := range n {
		sent[i] = float32(i)
	}
	c.dev.Upload(m, device.FloatBytes(sent))
	for i := range got {
		got[i] = make([]float32, n)
		c.dev.Do(&device.Axpy{Y: m, A: 1, X: m})
		c.dev.Do(&device.Scale{X: m, A: 0.5})
		c.dev.Download(device.FloatBytes(got[i]), m)
		c.dev.Do(&device.Scale{X: m, A: 2})
		passed[i] = c.dev.Record()
	}
	for _, i := range []int{1, 0, many - 1, many / 2} {
		if err := device.Wait(passed[i]); err != nil {
			c.Fatal(err)
		}
		for j, v := range got[i] {
			if want := sent[j] * float32(math.Pow(2, float64(i))); v != want {
				c.Fatalf("after event %d, element %d is %v, want %v", i, j, v, want)
			}
		}
	}
	if c.dev.Host() {
		return
	}
	ids, row := c.alloc(c.dev, device.I32, 1), c.alloc(c.dev, device.F32, 1)
	c.dev.Upload(ids, device.IntBytes([]int32{7}))
	if panics(func() { c.dev.Do(&device.Embed{Out: row, Tokens: row, IDs: ids}) }) {
		return
	}
	for range 2 {
		if device.Wait(c.dev.Record()) == nil {
			c.Error("an event after an operation that failed has no error")
		}
	}
	if c.dev.Synchronize() == nil || c.dev.Synchronize() != nil {
		c.Error("Synchronize does not report a failure once")
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
		"Upload of too few bytes":    func() { d.Upload(two, make([]byte, 7)) },
		"Download of too many bytes": func() { d.Download(make([]byte, 9), two) },
		"Copy of another length":     func() { d.Do(&device.Copy{Y: two, X: three}) },
		"Copy of another type":       func() { d.Do(&device.Copy{Y: two, X: ints}) },
		"Scale of integers":          func() { d.Do(&device.Scale{X: ints, A: 2}) },
		"Axpy of another length":     func() { d.Do(&device.Axpy{Y: two, A: 1, X: three}) },
		"Lerp of another length":     func() { d.Do(&device.Lerp{Y: two, A: 1, X: three}) },
		"Mul of another type":        func() { d.Do(&device.Mul{Y: two, X: ints}) },
		"Add of another length":      func() { d.Do(&device.Add{Out: two, A: two, B: three}) },
		"SquaredNorm in F32":         func() { d.Do(&device.SquaredNorm{Sum: two, X: two}) },
		"MatMul that does not fit":   func() { d.Do(&device.MatMul{C: two, A: two, B: three, Product: device.Product{M: 1, N: 2, K: 1}}) },
		"LayerNormBackward, short plus": func() {
			d.Do(&device.NormBackward{DX: two, DY: two, X: two, Mean: two, Rstd: two, Weight: two, Plus: three})
		},
		"MatMul without columns": func() { d.Do(&device.MatMul{C: two, A: two, B: two, Product: device.Product{M: 2, N: 0, K: 1}}) },
		"MatMul accumulating with a bias": func() {
			d.Do(&device.MatMul{C: two, A: two, B: two, Product: device.Product{M: 1, N: 2, K: 1, Accumulate: true, Bias: two}})
		},
		"SumRows of another width": func() { d.Do(&device.SumRows{Sum: three, X: two}) },
		"GELU of another length":   func() { d.Do(&device.Unary{Y: two, X: three, Function: device.GELU}) },
		"GELUBackward without dy":  func() { d.Do(&device.UnaryBackward{DX: two, DY: none, X: two, Function: device.GELU}) },
		"LayerNorm of another width": func() {
			d.Do(&device.Norm{Y: two, Mean: two, Rstd: two, X: two, Weight: three, Bias: two, Epsilon: 1e-5})
		},
		"LayerNormBackward": func() { d.Do(&device.NormBackward{DX: two, DY: two, X: three, Mean: two, Rstd: two, Weight: two}) },
		"LayerNormBackwardWeight": func() {
			d.Do(&device.NormBackwardWeight{DWeight: three, DBias: two, DY: two, X: two, Mean: two, Rstd: two})
		},
		"Embed beyond the positions": func() { d.Do(&device.Embed{Out: three, Tokens: two, Positions: two, IDs: ints, T: 3}) },
		"AdamStep of another length": func() { d.Do(&device.AdamStep{P: two, G: two, M: two, V: three, Delta: none, Adam: device.Adam{}}) },
		"AdamStep without m":         func() { d.Do(&device.AdamStep{P: two, G: two, M: none, V: two, Delta: none, Adam: device.Adam{}}) },
		"SGDStep without momentum":   func() { d.Do(&device.SGDStep{P: two, G: two, M: none, Delta: none, SGD: device.SGD{Momentum: 0.5}}) },
		"SGDStep with a short delta": func() { d.Do(&device.SGDStep{P: three, G: three, M: none, Delta: two, SGD: device.SGD{}}) },
		"AdamStep with an F32 copy":  func() { d.Do(&device.AdamStep{P: two, G: two, M: two, V: two, Copy16: two}) },
		"SGDStep with an F32 sum":    func() { d.Do(&device.SGDStep{P: two, G: two, Sum: two}) },
		"a slice beyond the end":     func() { two.Slice(1, 2) },
	} {
		c.refuses(name, call)
	}
	attentionInvariants(c)
	// Ids that are not in host memory are read when the operation runs, not when it is called.
	for name, call := range map[string]func(){
		"Embed of an id beyond the table": func() { d.Do(&device.Embed{Out: two, Tokens: two, Positions: two, IDs: bad, T: 2}) },
		"Embed of a negative id":          func() { d.Do(&device.Embed{Out: two, Tokens: two, Positions: two, IDs: below, T: 2}) },
		"EmbedBackward beyond the table":  func() { d.Do(&device.EmbedBackward{DTokens: two, DPositions: two, DOut: two, IDs: bad, T: 2}) },
		"CrossEntropy beyond the classes": func() { d.Do(&device.CrossEntropy{Losses: two, DLogits: none, Logits: two, Targets: bad, Scale: 1}) },
		"CrossEntropy below -1":           func() { d.Do(&device.CrossEntropy{Losses: two, DLogits: none, Logits: two, Targets: below, Scale: 1}) },
	} {
		c.refusesID(name, call)
	}
}

// refuses expects an operation to panic.
func (c *comparison) refuses(name string, call func()) {
	c.Helper()
	if !panics(call) {
		c.Errorf("%s did not panic", name)
	}
}

// refusesID expects an operation on an id outside of its table to panic, or to fail once it has run. A device that keeps no
// values has no ids.
func (c *comparison) refusesID(name string, call func()) {
	if !device.KeepsValues(c.dev) {
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
	d := &Recorder{Device: c.dev}
	a := device.AttentionShape{B: 1, T: rows, H: 2, S: columns / 2}
	floats := func(n int) device.Mem { return c.alloc(d, device.F32, n) }
	x, y, z, w := floats(rows*columns), floats(rows*columns), floats(rows*columns), floats(rows*columns)
	square, bias, mean, rstd := floats(columns*columns), floats(columns), floats(rows), floats(rows)
	tokens, logits, losses := floats(vocabulary*columns), floats(rows*vocabulary), floats(rows)
	saved, sum, copy16 := floats(a.Saved()), c.alloc(d, device.F64, 1), c.alloc(d, device.BF16, rows*columns)
	ids := c.alloc(d, device.I32, rows)
	for name, call := range map[string]func(){
		"flat": func() {
			d.Do(&device.Zero{X: x})
			d.Do(&device.Copy{Y: x, X: y})
			d.Do(&device.Scale{X: x, A: 2})
			d.Do(&device.Axpy{Y: x, A: 2, X: y})
			d.Do(&device.Lerp{Y: x, A: 0.5, X: y})
			d.Do(&device.Mul{Y: x, X: y})
			d.Do(&device.Add{Out: x, A: y, B: z})
			d.Do(&device.SquaredNorm{Sum: sum, X: x})
		},
		"MatMul": func() {
			d.Do(&device.MatMul{C: x, A: y, B: square, Product: device.Product{M: rows, N: columns, K: columns, TransB: true, Bias: bias}})
			d.Do(&device.MatMul{
				C: square, A: x, B: y, Product: device.Product{M: columns, N: columns, K: rows, TransA: true, Accumulate: true},
			})
		},
		"SumRows":      func() { d.Do(&device.SumRows{Sum: bias, X: x}) },
		"GELU":         func() { d.Do(&device.Unary{Y: x, X: y, Function: device.GELU}) },
		"GELUBackward": func() { d.Do(&device.UnaryBackward{DX: x, DY: y, X: z, Function: device.GELU}) },
		"LayerNorm": func() {
			d.Do(&device.Norm{Y: y, Mean: mean, Rstd: rstd, X: x, Weight: bias, Bias: bias, Epsilon: 1e-5})
		},
		"LayerNormBackward": func() {
			d.Do(&device.NormBackward{DX: y, DY: y, X: x, Mean: mean, Rstd: rstd, Weight: bias, Plus: z})
			d.Do(&device.NormBackwardWeight{DWeight: bias, DBias: bias, DY: y, X: x, Mean: mean, Rstd: rstd})
		},
		"Embed":         func() { d.Do(&device.Embed{Out: x, Tokens: tokens, Positions: y, IDs: ids, T: rows}) },
		"EmbedBackward": func() { d.Do(&device.EmbedBackward{DTokens: tokens, DPositions: y, DOut: x, IDs: ids, T: rows}) },
		"Attention":     func() { d.Do(&device.Attention{Out: x, Saved: saved, Q: y, K: z, V: w, AttentionShape: a}) },
		"AttentionBackward": func() {
			d.Do(&device.AttentionBackward{DQ: x, DK: y, DV: z, DOut: w, Q: x, K: y, V: z, Out: w, Saved: saved, AttentionShape: a})
		},
		"CrossEntropy": func() {
			d.Do(&device.CrossEntropy{Losses: losses, DLogits: logits, Logits: logits, Targets: ids, Scale: 1})
		},
		"AdamStep": func() {
			d.Do(&device.AdamStep{P: x, G: y, M: z, V: w, Copy16: copy16, Sum: sum, Adam: device.Adam{Update: device.Update{Correction1: 1, Correction2: 1}}})
		},
		"SGDStep": func() { d.Do(&device.SGDStep{P: x, G: y, M: z, Delta: w, SGD: device.SGD{Momentum: 0.9}}) },
		"Slice":   func() { d.Do(&device.Scale{X: x.Slice(1, 2).Slice(1, 1), A: 1}) },
	} {
		d.AllocatesNothing(c.T, name, call)
	}
}
