package layer

import (
	"github.com/avgpipe/avgpipe/stage/device"
	"github.com/avgpipe/avgpipe/stage/program"
)

// Context says that a pass continues sequences: layers keep in memory of its own what later positions need of those of the pass.
type Context struct {
	// Capacity is how many positions attention keeps keys and values of.
	Capacity int
	// First says that nothing precedes the positions of the pass; else device.Args.Past do.
	First bool
	// Kept is the memory that the layers asked for, which is bound behind the parameters. It is the same in all passes.
	Kept []device.Mem
	// Bounded says that no sequence gets longer than Capacity; else a layer's state is of one size.
	Bounded bool
	index   int // of the first of Kept
}

// keep is memory that lasts from pass to pass.
func (b *Builder) keep(t device.Type, n int) device.Mem {
	c := b.Context
	m := b.External(c.index+len(c.Kept), t, n)
	c.Kept = append(c.Kept, m)
	return m
}

// attend writes an attention. Where sequences continue, its keys and values follow those of earlier passes, and all are attended to.
func attend(b *Builder, o *device.Attention) {
	if b.Context == nil {
		b.Do(o)
		return
	}
	a := o.WithDefaults()
	if a.Bidirectional {
		panic("layer: attention to later positions cannot continue a sequence")
	}
	c := device.CacheShape{B: a.B, T: a.T, KV: a.KV, S: a.S, Capacity: b.Context.Capacity}
	keys, values := b.keep(o.K.Type(), c.Len()), b.keep(o.V.Type(), c.Len())
	b.Context.Bounded = true
	b.Do(&device.CacheAppend{Cache: keys, X: o.K, Stride: a.KVStride, CacheShape: c})
	b.Do(&device.CacheAppend{Cache: values, X: o.V, Stride: a.KVStride, CacheShape: c})
	if b.Context.First {
		b.Do(o)
		return
	}
	b.Do(&device.CachedAttention{Out: o.Out, Q: o.Q, K: keys, V: values, H: a.H, QStride: a.QStride, Window: a.Window, CacheShape: c})
}

// last is the last position of each sample of x (B,T,columns): (B,columns).
func (b *Builder) last(x device.Mem) device.Mem {
	columns := x.Len() / b.Rows()
	if b.B == 1 || b.T == 1 {
		return x.Slice((b.Rows()-b.B)*columns, b.B*columns)
	}
	y := b.New(x.Type(), b.B*columns)
	for n := range b.B {
		b.Do(&device.Copy{Y: y.Slice(n*columns, columns), X: x.Slice(((n+1)*b.T-1)*columns, columns)})
	}
	return y
}

// Continuation is the evaluation of Size.T further positions of sequences; it writes the output of the last of them only. What c says of
// memory it says afterwards.
func (r Run) Continuation(c *Context) program.Passes {
	e := r.begin(true)
	e.Context, c.index, c.Kept = c, Parameters, nil
	for _, t := range e.tensors {
		c.index += len(t.Params)
	}
	x := e.input()
	for i, l := range r.Layers {
		if i == len(r.Layers)-1 { // the head
			x = []device.Mem{e.last(x[0])}
			e.Run.Size, e.Builder.Size = one(r.Size), one(r.Size)
		}
		x, _ = l.Emit(&e.Builder, e.tensors[i], x)
	}
	e.leave(x)
	return e.Passes()
}
