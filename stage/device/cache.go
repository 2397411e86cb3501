package device

// CacheShape says where T new positions of B samples lie in what attention keeps of all positions: KV heads of S elements each, up to Capacity
// positions, as (B,KV,Capacity,S), so that a query reads the keys of a head from end to end.
type CacheShape struct {
	B, T, KV, S int
	Capacity    int
	Past        int // the positions before the new ones, which Args.Past gives; Past+T is at most Capacity
}

type (
	// CacheAppend sets positions Past to Past+T-1 of Cache (B,KV,Capacity,S) to X (B,T,KV*S), whose rows begin Stride elements apart. Exact. Both
	// are of one type, F32 or BF16.
	CacheAppend struct {
		Cache, X Mem
		Stride   int
		CacheShape
	}
	// CachedAttention is Attention of the queries at positions Past to Past+T-1 over the keys and the values of positions 0 to Past+T-1, which
	// caches hold: each query sees itself and what is before it. Out (B,T,H*S) and Q, whose rows begin QStride elements apart, are of the type of
	// the caches. H is a multiple of KV, and Window as in AttentionShape.
	CachedAttention struct {
		Out, Q, K, V       Mem
		H, QStride, Window int
		CacheShape
	}
)

// Len is the elements of a cache.
func (s CacheShape) Len() int { return s.B * s.KV * s.Capacity * s.S }

// First is the first position that the query at position t sees.
func (o *CachedAttention) First(t int) int { return AttentionShape{Window: o.Window}.First(t) }

// flops is two products of the scores that the queries see.
func (o *CachedAttention) flops() float64 {
	seen := 0
	for t := o.Past; t < o.Past+o.T; t++ {
		seen += t + 1 - o.First(t)
	}
	return 4 * float64(o.B) * float64(o.H) * float64(o.S) * float64(seen)
}

// bytes are the keys and values that the operation reads, which bound it where there are few queries.
func (o *CachedAttention) bytes() int {
	keys := o.Past + o.T - o.First(o.Past)
	return 2 * o.B * o.KV * keys * o.S * o.K.typ.Bytes()
}

func (s *CacheShape) check(c checks) {
	if c.positive(&s.B, &s.T, &s.KV, &s.S); s.Past < 0 || s.Past+s.T > s.Capacity {
		c.fail("%d positions after %d in a cache of %d, expected numbers that fit", s.T, s.Past, s.Capacity)
	}
}

func (o *CacheAppend) check(c checks) {
	o.CacheShape.check(c)
	width := o.KV * o.S
	if o.Stride < width {
		c.fail("rows %d elements apart, expected at least %d", o.Stride, width)
	}
	c.floating(o.Len(), &o.Cache)
	c.atLeast(o.Cache.typ, span(o.B*o.T, width, o.Stride), &o.X)
}

func (o *CachedAttention) check(c checks) {
	o.CacheShape.check(c)
	if o.H < 1 || o.H%o.KV != 0 || o.QStride < o.H*o.S || o.Window < 0 {
		c.fail("H=%d KV=%d, rows %d elements apart, a window of %d; expected a multiple of KV, rows of H*S, and at least 0", o.H, o.KV, o.QStride, o.Window)
	}
	c.floating(o.Len(), &o.K)
	c.need(o.K.typ, o.Len(), &o.V)
	c.atLeast(o.K.typ, span(o.B*o.T, o.H*o.S, o.QStride), &o.Q)
	c.need(o.K.typ, o.B*o.T*o.H*o.S, &o.Out)
}
