package stagetest

import (
	"math"

	"github.com/avgpipe/avgpipe/stage/device"
)

// cacheCase is new positions behind those of a cache.
type cacheCase struct {
	device.CacheShape
	heads, window int
	strided       bool // q, k and v are parts of one tensor
}

// cacheCases have the first position, the last one of a full cache, several positions at once, odd widths and shared keys.
var cacheCases = []cacheCase{
	{device.CacheShape{B: 1, T: 1, KV: 1, S: 1, Capacity: 1}, 1, 0, false},
	{device.CacheShape{B: 1, T: 1, KV: 2, S: 16, Capacity: 9, Past: 8}, 2, 0, true},
	{device.CacheShape{B: 2, T: 1, KV: 3, S: 5, Capacity: 40, Past: 22}, 3, 0, false},
	{device.CacheShape{B: 1, T: 1, KV: 2, S: 64, Capacity: 300, Past: 257}, 6, 0, true},
	{device.CacheShape{B: 3, T: 1, KV: 1, S: 128, Capacity: 33, Past: 30}, 4, 0, false},
	{device.CacheShape{B: 2, T: 4, KV: 2, S: 33, Capacity: 20, Past: 7}, 4, 0, true},
	{device.CacheShape{B: 1, T: 1, KV: 2, S: 80, Capacity: 64, Past: 50}, 2, 9, false},
	{device.CacheShape{B: 1, T: 6, KV: 1, S: 24, Capacity: 16, Past: 5}, 2, 7, false},
	{device.CacheShape{B: 2, T: 3, KV: 2, S: 8, Capacity: 12}, 2, 40, true},
}

func (x cacheCase) String() string {
	return shape("B=%d T=%d H=%d KV=%d S=%d after %d of %d, window=%d", x.B, x.T, x.heads, x.KV, x.S, x.Past, x.Capacity, x.window)
}

// gap is how far beyond its own width a row reaches.
func (x cacheCase) gap() int {
	if x.strided {
		return 2*x.KV*x.S + 3
	}
	return 0
}

func cachedAttention(c *comparison) {
	for _, x := range cacheCases {
		rows, width, queries := x.B*x.T, x.KV*x.S, x.heads*x.S
		stride, qStride := width+x.gap(), queries+x.gap()
		asTyped(c, "CacheAppend", x.String(), exact, []tensor{c.out("cache", x.Len()), c.in("x", (rows-1)*stride+width)}, 2, func(d device.Device, m []device.Mem) {
			d.Do(&device.CacheAppend{Cache: m[0], X: m[1], Stride: stride, CacheShape: x.CacheShape})
		})
		operands := []tensor{c.out("out", rows*queries), c.in("q", (rows-1)*qStride+queries), c.in("k", x.Len()), c.in("v", x.Len())}
		tolerance := product * math.Sqrt(float64(x.Capacity+x.S))
		asTyped(c, "CachedAttention", x.String(), tolerance, operands, 4, func(d device.Device, m []device.Mem) {
			d.Do(&device.CachedAttention{Out: m[0], Q: m[1], K: m[2], V: m[3], H: x.heads, QStride: qStride, Window: x.window, CacheShape: x.CacheShape})
		})
	}
	cacheIsAttention(c)
}

// cacheIsAttention: attention over a cache that grows by some positions at a time is attention over all of them.
func cacheIsAttention(c *comparison) {
	for _, a := range attentionShapes {
		if a = a.WithDefaults(); a.Bidirectional || a.Dropout.Rate > 0 || a.B > 1 {
			continue
		}
		x, n := c.attentionCase(a, false, 1), a.T*a.H*a.S
		cache := device.CacheShape{B: 1, KV: a.KV, S: a.S, Capacity: a.T}
		operands := []tensor{c.out("out", n), x.q, x.k, x.v}
		grown := c.run(c.dev, 0, "CachedAttention", operands, func(d device.Device, m []device.Mem) {
			keys, values := c.alloc(d, device.F32, cache.Len()), c.alloc(d, device.F32, cache.Len())
			for at := 0; at < a.T; at += cache.T {
				cache.Past, cache.T = at, min(1+at%3, a.T-at)
				rest := func(m device.Mem, stride int) device.Mem { return m.Slice(at*stride, m.Len()-at*stride) }
				d.Do(&device.CacheAppend{Cache: keys, X: rest(m[2], a.KVStride), Stride: a.KVStride, CacheShape: cache})
				d.Do(&device.CacheAppend{Cache: values, X: rest(m[3], a.KVStride), Stride: a.KVStride, CacheShape: cache})
				d.Do(&device.CachedAttention{
					Out: m[0].Slice(at*a.H*a.S, cache.T*a.H*a.S), Q: rest(m[1], a.QStride), K: keys, V: values, H: a.H, QStride: a.QStride, Window: a.Window,
					CacheShape: cache,
				})
			}
			d.Free(keys)
			d.Free(values)
		})
		whole := c.run(c.dev, 0, "Attention", operands, func(d device.Device, m []device.Mem) {
			d.Do(&device.Attention{Out: m[0], Q: m[1], K: m[2], V: m[3], AttentionShape: a})
		})
		c.record("CachedAttention for Attention", x.String(), product*math.Sqrt(float64(a.T+a.S)), grown[0], whole[0])
	}
}

// cacheRules calls with operands that do not fit, and looks for allocations.
func cacheRules(c *comparison) {
	d := &Recorder{Device: c.dev}
	four, eight, brains := c.alloc(d, device.F32, 4), c.alloc(d, device.F32, 8), c.alloc(d, device.BF16, 8)
	fits := device.CacheShape{B: 1, T: 1, KV: 2, S: 2, Capacity: 2, Past: 1}
	with := func(change func(*device.CacheShape)) device.CacheShape {
		s := fits
		change(&s)
		return s
	}
	attend := func(q, k, v device.Mem, heads, stride int, s device.CacheShape) func() {
		return func() {
			d.Do(&device.CachedAttention{Out: four, Q: q, K: k, V: v, H: heads, QStride: stride, CacheShape: s})
		}
	}
	for name, call := range map[string]func(){
		"CacheAppend beyond the capacity": func() {
			d.Do(&device.CacheAppend{Cache: eight, X: four, Stride: 4, CacheShape: with(func(s *device.CacheShape) { s.Past = 2 })})
		},
		"CacheAppend to another length":      func() { d.Do(&device.CacheAppend{Cache: four, X: four, Stride: 4, CacheShape: fits}) },
		"CacheAppend of rows that overlap":   func() { d.Do(&device.CacheAppend{Cache: eight, X: four, Stride: 3, CacheShape: fits}) },
		"CacheAppend of another type":        func() { d.Do(&device.CacheAppend{Cache: brains, X: four, Stride: 4, CacheShape: fits}) },
		"CachedAttention beyond the cache":   attend(four, eight, eight, 2, 4, with(func(s *device.CacheShape) { s.T = 2 })),
		"CachedAttention of no positions":    attend(four, eight, eight, 2, 4, with(func(s *device.CacheShape) { s.T = 0 })),
		"CachedAttention of too few values":  attend(four, eight, four, 2, 4, fits),
		"CachedAttention of two types":       attend(four, eight, brains, 2, 4, fits),
		"CachedAttention of half a head":     attend(four, eight, eight, 3, 6, fits),
		"CachedAttention of rows on another": attend(four, eight, eight, 2, 3, fits),
	} {
		c.refuses(name, call)
	}
	d.AllocatesNothing(c.T, "CacheAppend", func() { d.Do(&device.CacheAppend{Cache: eight, X: four, Stride: 4, CacheShape: fits}) })
	d.AllocatesNothing(c.T, "CachedAttention", attend(four, eight, eight, 2, 4, fits))
}
