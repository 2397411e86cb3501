package layer

import (
	"slices"

	"github.com/avgpipe/avgpipe/stage/device"
)

// Chain runs layers one after the other. Saved holds, for each layer, what it saves and (but for the last) its output;
// Kept holds, for each layer, what it keeps and (but for the first) the gradient of its input.
type Chain struct {
	name   string
	layers []Layer
	params []Param
	first  []int         // layers[i] has params[first[i]:first[i+1]]
	width  []int         // layers[i] has an output of width[i] elements a row
	kind   []device.Type // of that output, but for the last, where products compute in BF16; else it is F32
	reuse  []bool        // the gradient of layers[i]'s input takes the place of the gradient of its output
}

// NewChain makes a chain. Within it, one port of R rows leads from each layer to the next.
func NewChain(name string, layers ...Layer) *Chain {
	c := &Chain{name: name, layers: layers, reuse: make([]bool, len(layers))}
	for i, l := range layers {
		c.first = append(c.first, len(c.params))
		c.params = append(c.params, l.Params()...)
		_, out := l.Ports(Size{B: 1, T: 1, Compute: device.BF16})
		c.width = append(c.width, out[0].Elements)
		if i > 0 {
			c.kind = append(c.kind, kindBetween(layers[i-1], l))
		}
		_, inPlace := l.(interface{ backwardInPlace() })
		// The gradient of the chain's own output belongs to the caller, and that of its input goes to DIn.
		c.reuse[i] = inPlace && len(l.Params()) == 0 && i > 0 && i < len(layers)-1
	}
	c.first = append(c.first, len(c.params))
	return c
}

// adaptive is implemented by layers that can read their input, or write their output, in BF16 although their Ports say F32. The
// memory in the pass says which.
type adaptive interface{ adapts() (in, out bool) }

// adaptation is the adapts of an adaptive layer; other layers read and write the types of their Ports.
func adaptation(l Layer) (in, out bool) {
	if a, ok := l.(adaptive); ok {
		return a.adapts()
	}
	return false, false
}

// kindBetween is the type of a's output, which is b's input, where products compute in BF16: BF16 if either has it in its Ports, or
// if both can take it.
func kindBetween(a, b Layer) device.Type {
	s := Size{B: 1, T: 1, Compute: device.BF16}
	_, out := a.Ports(s)
	in, _ := b.Ports(s)
	_, gives := adaptation(a)
	takes, _ := adaptation(b)
	if out[0].Type == device.BF16 || in[0].Type == device.BF16 || gives && takes {
		return device.BF16
	}
	return out[0].Type
}

func (c *Chain) adapts() (in, out bool) {
	in, _ = adaptation(c.layers[0])
	_, out = adaptation(c.layers[len(c.layers)-1])
	return in, out
}

// summing is implemented by layers that can add Pass.Plus to the gradient of their input as they compute it, which saves a pass
// over memory.
type summing interface{ sums() bool }

// sums reports whether l adds Pass.Plus.
func sums(l Layer) bool {
	s, ok := l.(summing)
	return ok && s.sums()
}

func (c *Chain) sums() bool { return sums(c.layers[0]) }

// Name implements Layer.
func (c *Chain) Name() string { return c.name }

// Params implements Layer: those of the layers, in order.
func (c *Chain) Params() []Param { return c.params }

// Ports implements Layer.
func (c *Chain) Ports(s Size) (in, out []Port) {
	in, _ = c.layers[0].Ports(s)
	_, out = c.layers[len(c.layers)-1].Ports(s)
	return in, out
}

// Saved implements Layer.
func (c *Chain) Saved(s Size) int {
	n := 0
	for i, l := range c.layers {
		n += Padded(l.Saved(s))
		if i < len(c.layers)-1 {
			n += Padded(c.words(i, s))
		}
	}
	return n
}

// between is the output of layers[i], or its gradient: its type and its elements.
func (c *Chain) between(i int, s Size) (t device.Type, elements int) {
	if s.Compute == device.BF16 {
		t = c.kind[i]
	}
	return t, c.width[i] * s.Rows()
}

func (c *Chain) words(i int, s Size) int { return WordsOf(c.between(i, s)) }

// Kept implements Layer.
func (c *Chain) Kept(s Size) int {
	n := 0
	for i, l := range c.layers {
		n += Padded(l.Kept(s))
		if i > 0 && !c.reuse[i] {
			n += Padded(c.words(i-1, s))
		}
	}
	return n
}

// FLOPs implements Layer.
func (c *Chain) FLOPs(s Size) (forward, backward float64) {
	for _, l := range c.layers {
		f, b := l.FLOPs(s)
		forward, backward = forward+f, backward+b
	}
	return forward, backward
}

// Forward implements Layer.
func (c *Chain) Forward(p Pass) {
	saved := cutter{mem: p.Saved}
	in := p.In
	for i, l := range c.layers {
		q := p
		q.Params = p.Params[c.first[i]:c.first[i+1]]
		if len(p.Grads) > 0 {
			q.Grads = p.Grads[c.first[i]:c.first[i+1]]
		}
		q.In, q.Saved = in, saved.take(l.Saved(p.Size))
		if i < len(c.layers)-1 {
			q.Out = saved.takeAs(c.between(i, p.Size))
		}
		l.Forward(q)
		in = q.Out
	}
}

// BackwardInput implements Layer.
func (c *Chain) BackwardInput(p Pass) {
	w := c.end(p)
	for i, l := range slices.Backward(c.layers) {
		l.BackwardInput(c.step(&w, p, i))
	}
}

// BackwardWeight implements Layer.
func (c *Chain) BackwardWeight(p Pass) {
	w := c.end(p)
	for i, l := range slices.Backward(c.layers) {
		l.BackwardWeight(c.step(&w, p, i))
	}
}

// backwardStep is a position in a chain's memory, going backward over its layers.
type backwardStep struct {
	saved, kept int // words of Saved and Kept that belong to the layers not yet visited
	dout        device.Mem
}

func (c *Chain) end(p Pass) backwardStep {
	return backwardStep{saved: c.Saved(p.Size), kept: c.Kept(p.Size), dout: p.DOut}
}

// step gives the pass of layer i and moves w before it. The layout is that of Forward and Kept, from the end.
func (c *Chain) step(w *backwardStep, p Pass, i int) Pass {
	l := c.layers[i]
	q := p
	q.Params = p.Params[c.first[i]:c.first[i+1]]
	if len(p.Grads) > 0 {
		q.Grads = p.Grads[c.first[i]:c.first[i+1]]
	}
	if i < len(c.layers)-1 {
		w.saved -= Padded(c.words(i, p.Size)) // the layer's output
	}
	q.Saved = before(&w.saved, p.Saved, l.Saved(p.Size))
	q.DOut = w.dout
	if i > 0 {
		t, elements := c.between(i-1, p.Size)
		words := WordsOf(t, elements)
		q.In = p.Saved.Slice(w.saved-Padded(words), words).As(t, elements)
		q.DIn = w.dout
		if !c.reuse[i] {
			q.DIn = before(&w.kept, p.Kept, words).As(t, elements)
		}
	}
	q.Kept = before(&w.kept, p.Kept, l.Kept(p.Size))
	if i > 0 {
		q.Plus = device.Mem{}
	}
	w.dout = q.DIn
	return q
}

// before cuts the n words that end at *at, padding included, and moves *at to their start.
func before(at *int, m device.Mem, n int) device.Mem {
	*at -= Padded(n)
	return m.Slice(*at, n)
}

// Residual is y = x + f(x) (He et al. 2016): f writes y, then x is added in place. In the backward f adds the two gradients of x if it is
// summing; otherwise they are added in place.
type Residual struct{ f Layer }

// NewResidual makes a residual branch around f, whose input and output have the same shape.
func NewResidual(f Layer) Residual { return Residual{f: f} }

// Name implements Layer.
func (r Residual) Name() string { return r.f.Name() }

// Params implements Layer.
func (r Residual) Params() []Param { return r.f.Params() }

// Ports implements Layer.
func (r Residual) Ports(s Size) (in, out []Port) { return r.f.Ports(s) }

// Saved implements Layer.
func (r Residual) Saved(s Size) int { return r.f.Saved(s) }

// Kept implements Layer.
func (r Residual) Kept(s Size) int { return r.f.Kept(s) }

// FLOPs implements Layer.
func (r Residual) FLOPs(s Size) (forward, backward float64) { return r.f.FLOPs(s) }

// Forward implements Layer.
func (r Residual) Forward(p Pass) {
	r.f.Forward(p)
	p.Device.Do(&device.Add{Out: p.Out, A: p.Out, B: p.In})
}

// BackwardInput implements Layer: dx = dy + the gradient through f.
func (r Residual) BackwardInput(p Pass) {
	if sums(r.f) {
		p.Plus = p.DOut
		r.f.BackwardInput(p)
		return
	}
	r.f.BackwardInput(p)
	p.Device.Do(&device.Add{Out: p.DIn, A: p.DIn, B: p.DOut})
}

// BackwardWeight implements Layer.
func (r Residual) BackwardWeight(p Pass) { r.f.BackwardWeight(p) }
