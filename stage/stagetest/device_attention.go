package stagetest

import (
	"math"

	"github.com/avgpipe/avgpipe/stage/device"
)

// attentionShapes have ones, odd widths and lengths, and lengths about the blocks that kernels use.
var attentionShapes = []device.AttentionShape{
	{B: 1, T: 1, H: 1, S: 1},
	{B: 2, T: 5, H: 3, S: 4},
	{B: 1, T: 17, H: 2, S: 8},
	{B: 1, T: 16, H: 3, S: 5},
	{B: 2, T: 33, H: 1, S: 48},
	{B: 1, T: 64, H: 2, S: 32},
	{B: 1, T: 7, H: 2, S: 128},
	{B: 1, T: 130, H: 2, S: 64},
	{B: 3, T: 65, H: 2, S: 20},
	{B: 1, T: 257, H: 1, S: 80},
	{B: 2, T: 19, H: 6, KV: 2, S: 8},
	{B: 1, T: 50, H: 4, KV: 1, S: 33, QStride: 200, KVStride: 40},
	{B: 2, T: 12, H: 3, S: 8, Window: 5},
	{B: 1, T: 19, H: 2, KV: 1, S: 8, Window: 19},
	{B: 1, T: 130, H: 2, S: 16, Window: 33},
	{B: 2, T: 75, H: 4, KV: 2, S: 8, Window: 7, Dropout: device.DropoutMask{Rate: 0.2, Key: 3, First: 6}},
	{B: 2, T: 40, H: 2, S: 16, Bidirectional: true},
	{B: 1, T: 23, H: 3, S: 24, QStride: 216, KVStride: 216, Bidirectional: true},
	{B: 2, T: 37, H: 4, KV: 2, S: 8, Dropout: device.DropoutMask{Rate: 0.3, Key: 9, First: 1<<33 + 5}},
	{B: 2, T: 26, H: 2, S: 12, Bidirectional: true, Dropout: device.DropoutMask{Rate: 0.1, Key: 1 << 50}},
	// About the tiles that kernels cut long sequences to.
	{B: 1, T: 384, H: 1, S: 16},
	{B: 1, T: 385, H: 2, KV: 1, S: 8, Dropout: device.DropoutMask{Rate: 0.2, Key: 4}},
	{B: 4, T: 771, H: 1, S: 8},
	{B: 4, T: 771, H: 2, KV: 1, S: 4, Bidirectional: true, Dropout: device.DropoutMask{Rate: 0.1, Key: 5}},
	{B: 1, T: 1200, H: 1, S: 8, Window: 150},
	{B: 1, T: 1200, H: 2, KV: 1, S: 4, Window: 700, Dropout: device.DropoutMask{Rate: 0.1, Key: 6}},
}

// attentionCase is a shape with operands. The mask, if any, hides the first sample's last keys and one in the middle, the
// second sample as a whole, nothing of the third and the first half of the fourth.
type attentionCase struct {
	device.AttentionShape
	masked  bool
	spread  float64
	q, k, v tensor
	mask    tensor
}

func (c *comparison) attentionCase(a device.AttentionShape, masked bool, spread float64) attentionCase {
	x := attentionCase{AttentionShape: a, masked: masked, spread: spread, mask: tensor{name: "no mask"}}
	x.q = tensor{name: "q", floats: c.normal(a.Queries(), 0, spread)}
	x.k = tensor{name: "k", floats: c.normal(a.Keys(), 0, spread)}
	x.v = tensor{name: "v", floats: c.normal(a.Keys(), 0, spread)}
	if !masked {
		return x
	}
	x.mask = tensor{name: "mask", ints: make([]int32, a.B*a.T)}
	for i := range a.T - a.T/3 {
		x.mask.ints[i] = 1
	}
	x.mask.ints[a.T/4] = 0
	for i := 2 * a.T; i < a.B*a.T; i++ {
		if i < 3*a.T || i >= 3*a.T+a.T/2 {
			x.mask.ints[i] = 1
		}
	}
	return x
}

func (x attentionCase) String() string {
	return shape("B=%d T=%d H=%d KV=%d S=%d strides %d and %d, window=%d bidirectional=%v masked=%v dropout=%v spread=%g",
		x.B, x.T, x.H, x.KV, x.S, x.QStride, x.KVStride, x.Window, x.Bidirectional, x.masked, x.Dropout.Rate, x.spread)
}

// attention has spread 4 for scores that overflow without the maximum taken off.
func attention(c *comparison) {
	for _, a := range attentionShapes {
		for _, masked := range []bool{false, true} {
			for _, spread := range []float64{1, 4} {
				if a.T > 300 && (masked != (a.B > 1) || spread > 1) {
					continue // one case is enough of what takes long
				}
				attentionOn(c, c.attentionCase(a, masked, spread))
			}
		}
	}
	cachedAttention(c)
}

func attentionOn(c *comparison, x attentionCase) {
	n, tolerance := x.B*x.T*x.H*x.S, product*math.Sqrt(float64(x.T+x.S))
	operands := []tensor{c.out("out", n), x.q, x.k, x.v, x.mask}
	c.compare("Attention", x.String(), tolerance, operands, func(d device.Device, m []device.Mem) {
		a := x.AttentionShape
		a.Mask = m[4]
		d.Do(&device.Attention{Out: m[0], Q: m[1], K: m[2], V: m[3], AttentionShape: a})
	})
	operands = append(operands, c.in("dout", n), c.out("dq", len(x.q.floats)), c.out("dk", len(x.k.floats)), c.out("dv", len(x.v.floats)))
	c.compare("AttentionBackward", x.String(), tolerance, operands, func(d device.Device, m []device.Mem) {
		a := x.AttentionShape
		a.Mask = m[4]
		saved := c.alloc(d, device.F32, a.Saved())
		d.Do(&device.Attention{Out: m[0], Saved: saved, Q: m[1], K: m[2], V: m[3], AttentionShape: a})
		d.Do(&device.AttentionBackward{
			DQ: m[6], DK: m[7], DV: m[8], DOut: m[5], Q: m[1], K: m[2], V: m[3], Out: m[0], Saved: saved, AttentionShape: a,
		})
		d.Free(saved)
	})
}

// causality makes the last position huge and expects the earlier outputs to keep their bits. (Huge, not NaN: a kernel may
// well multiply what it hides by 0.)
func causality(c *comparison) {
	for _, a := range attentionShapes {
		if a.T == 1 || a.Bidirectional {
			continue
		}
		a = a.WithDefaults()
		x := c.attentionCase(a, false, 1)
		call := func(d device.Device, m []device.Mem) {
			d.Do(&device.Attention{Out: m[0], Q: m[1], K: m[2], V: m[3], AttentionShape: a})
		}
		operands := []tensor{c.out("out", a.B*a.T*a.H*a.S), x.q, x.k, x.v}
		before := c.run(c.dev, 0, "Attention", operands, call)[0]
		for b := range a.B {
			last := (b+1)*a.T - 1
			enlarge(x.q.floats[last*a.QStride:][:a.H*a.S])
			enlarge(x.k.floats[last*a.KVStride:][:a.KV*a.S])
			enlarge(x.v.floats[last*a.KVStride:][:a.KV*a.S])
		}
		after := c.run(c.dev, 0, "Attention", operands, call)[0]
		for i := range before {
			if position := i / (a.H * a.S) % a.T; position < a.T-1 && before[i] != after[i] {
				c.Fatalf("%+v: position %d sees the last one", a, position)
			}
		}
	}
}

// locality makes the first position huge and expects the outputs beyond its window to keep their bits.
func locality(c *comparison) {
	for _, a := range attentionShapes {
		if a.Window == 0 || a.Window >= a.T {
			continue
		}
		a = a.WithDefaults()
		x := c.attentionCase(a, false, 1)
		call := func(d device.Device, m []device.Mem) {
			d.Do(&device.Attention{Out: m[0], Q: m[1], K: m[2], V: m[3], AttentionShape: a})
		}
		operands := []tensor{c.out("out", a.B*a.T*a.H*a.S), x.q, x.k, x.v}
		before := c.run(c.dev, 0, "Attention", operands, call)[0]
		for b := range a.B {
			enlarge(x.k.floats[b*a.T*a.KVStride:][:a.KV*a.S])
			enlarge(x.v.floats[b*a.T*a.KVStride:][:a.KV*a.S])
		}
		after := c.run(c.dev, 0, "Attention", operands, call)[0]
		for i := range before {
			if position := i / (a.H * a.S) % a.T; position >= a.Window && before[i] != after[i] {
				c.Fatalf("%+v: position %d sees the first one", a, position)
			}
		}
	}
}

func enlarge(x []float32) {
	for i := range x {
		x[i] = 1e30
	}
}

// attentionInvariants calls with operands that do not fit.
func attentionInvariants(c *comparison) {
	d := c.dev
	two, three, ints := c.alloc(d, device.F32, 2), c.alloc(d, device.F32, 3), c.alloc(d, device.I32, 2)
	for name, call := range map[string]func(){
		"Attention that does not fit": func() {
			d.Do(&device.Attention{
				Out: three, Q: two, K: two, V: two, AttentionShape: device.AttentionShape{B: 1, T: 1, H: 1, S: 2},
			})
		},
		"Attention beyond the keys": func() {
			d.Do(&device.Attention{
				Out: three, Q: three, K: two, V: two, AttentionShape: device.AttentionShape{B: 1, T: 1, H: 1, S: 3},
			})
		},
		"Attention of no heads": func() {
			d.Do(&device.Attention{Out: two, Q: two, K: two, V: two, AttentionShape: device.AttentionShape{B: 1, T: 1, S: 2}})
		},
		"Attention of a head and a half": func() {
			d.Do(&device.Attention{
				Out: three, Q: three, K: two, V: two, AttentionShape: device.AttentionShape{B: 1, T: 1, H: 3, KV: 2, S: 1},
			})
		},
		"Attention of rows that overlap": func() {
			d.Do(&device.Attention{
				Out: two, Q: two, K: two, V: two, AttentionShape: device.AttentionShape{B: 1, T: 1, H: 2, S: 1, QStride: 1},
			})
		},
		"Attention of all in a window": func() {
			d.Do(&device.Attention{
				Out: three, Q: three, K: three, V: three,
				AttentionShape: device.AttentionShape{B: 1, T: 3, H: 1, S: 1, Window: 2, Bidirectional: true},
			})
		},
		"Attention with a short mask": func() {
			d.Do(&device.Attention{
				Out: three, Q: three, K: three, V: three,
				AttentionShape: device.AttentionShape{B: 1, T: 3, H: 1, S: 1, Mask: ints},
			})
		},
	} {
		c.refuses(name, call)
	}
}
