package layer

import "github.com/avgpipe/avgpipe/stage/device"

// Dropout drops elements of the output y (R,Width) of a layer f, in place (Srivastava et al. 2014). It keeps the gradient of
// what f gave. The mask is drawn again in the backward from the pass's key and f's name, so it is the same on every split.
type Dropout struct {
	f     Layer
	rate  float32
	path  string
	width int
	typed bool // y is of the type in which products compute
}

// NewDropout drops elements of f's one output with a probability of rate. With 0 it is f itself.
func NewDropout(f Layer, rate float64) Layer {
	if rate == 0 {
		return f
	}
	_, out := f.Ports(Size{B: 1, T: 1, Compute: device.BF16})
	return &Dropout{
		f: f, rate: float32(rate), path: f.Name() + ".dropout", width: out[0].Elements, typed: out[0].Type == device.BF16,
	}
}

// Name implements Layer.
func (l *Dropout) Name() string { return l.f.Name() }

// Params implements Layer.
func (l *Dropout) Params() []Param { return l.f.Params() }

// Ports implements Layer.
func (l *Dropout) Ports(s Size) (in, out []Port) { return l.f.Ports(s) }

// Saved implements Layer.
func (l *Dropout) Saved(s Size) int { return l.f.Saved(s) }

// Kept implements Layer.
func (l *Dropout) Kept(s Size) int {
	return Padded(WordsOf(l.kind(s), s.Rows()*l.width)) + l.f.Kept(s)
}

func (l *Dropout) kind(s Size) device.Type {
	if l.typed {
		return s.Compute
	}
	return device.F32
}

// FLOPs implements Layer.
func (l *Dropout) FLOPs(s Size) (forward, backward float64) { return l.f.FLOPs(s) }

func (l *Dropout) drop(p Pass, y, x device.Mem) {
	p.Device.Do(&device.Dropout{Y: y, X: x, DropoutMask: device.DropoutMask{
		Rate: l.rate, Key: p.KeyOf(l.path), First: p.First * p.Size.T * l.width, Rows: p.Size.Rows(), Columns: l.width, Share: 1,
	}})
}

// inner is f's pass of a backward, with the gradient of its output.
func (l *Dropout) inner(p Pass) Pass {
	c := cutter{mem: p.Kept}
	p.DOut = c.takeAs(l.kind(p.Size), p.Size.Rows()*l.width)
	p.Kept = c.take(l.f.Kept(p.Size))
	return p
}

// Forward implements Layer.
func (l *Dropout) Forward(p Pass) {
	l.f.Forward(p)
	if !p.Evaluating {
		l.drop(p, p.Out, p.Out)
	}
}

// BackwardInput implements Layer.
func (l *Dropout) BackwardInput(p Pass) {
	q := l.inner(p)
	l.drop(p, q.DOut, p.DOut)
	l.f.BackwardInput(q)
}

// BackwardWeight implements Layer.
func (l *Dropout) BackwardWeight(p Pass) { l.f.BackwardWeight(l.inner(p)) }

// attentionDropout is what a pass of the attention layer at path drops of the softmax of its heads.
func attentionDropout(p Pass, path string, rate float64, heads int) device.DropoutMask {
	if p.Evaluating || rate == 0 {
		return device.DropoutMask{}
	}
	return device.DropoutMask{Rate: float32(rate), Key: p.KeyOf(path + ".softmax"), First: p.First * heads * p.Size.T * p.Size.T}
}
