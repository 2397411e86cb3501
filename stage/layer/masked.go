package layer

import "github.com/avgpipe/avgpipe/stage/device"

// maskPort is the mask (B,T) that travels behind x through a bidirectional model: 1 at a token, 0 at padding.
func maskPort(s Size) Port { return Port{Name: "mask", Type: device.I32, Elements: s.Rows(), Limit: 2} }

// maskOf is the mask, the last of several ports.
func maskOf(m device.Mem, s Size) device.Mem {
	n := s.Rows()
	return m.Slice(m.Len()-Padded(n), n).As(device.I32, n)
}

// mainOf is the first of several ports, F32 (R,width).
func mainOf(m device.Mem, s Size, width int) device.Mem { return m.Slice(0, s.Rows()*width) }

// PassMask passes the mask on to later layers: it adds the last input port of a layer f as a second output port, behind f's
// output y (R,Width), F32.
type PassMask struct {
	Layer
	Width int
}

// Ports implements Layer.
func (l PassMask) Ports(s Size) (in, out []Port) {
	in, out = l.Layer.Ports(s)
	return in, append(out, maskPort(s))
}

// Forward implements Layer.
func (l PassMask) Forward(p Pass) {
	p.Device.Do(&device.Copy{Y: maskOf(p.Out, p.Size), X: maskOf(p.In, p.Size)})
	p.Out = mainOf(p.Out, p.Size, l.Width)
	l.Layer.Forward(p)
}

// BackwardInput implements Layer.
func (l PassMask) BackwardInput(p Pass) {
	p.DOut = mainOf(p.DOut, p.Size, l.Width)
	l.Layer.BackwardInput(p)
}

// BackwardWeight implements Layer.
func (l PassMask) BackwardWeight(p Pass) {
	p.DOut = mainOf(p.DOut, p.Size, l.Width)
	l.Layer.BackwardWeight(p)
}

// PostNorm is y = norm(x + f(x)) (Vaswani et al. 2017, section 3.1; BERT's blocks), x and y (R,D). f may have a mask behind x.
type PostNorm struct {
	f, norm Layer
	width   int
	masked  bool
	params  []Param
}

// normParams is the number of a layer norm's parameters.
const normParams = 2

// NewPostNorm makes a branch around f, whose input and output have the shape of the norm's.
func NewPostNorm(f Layer, norm LayerNorm) *PostNorm {
	in, _ := f.Ports(Size{B: 1, T: 1})
	return &PostNorm{
		f: f, norm: norm, width: norm.Width, masked: len(in) > 1, params: append(f.Params(), norm.Params()...),
	}
}

// Name implements Layer.
func (l *PostNorm) Name() string { return l.f.Name() }

// Params implements Layer: of f, then of the norm.
func (l *PostNorm) Params() []Param { return l.params }

// Ports implements Layer.
func (l *PostNorm) Ports(s Size) (in, out []Port) {
	in = row("x", s, l.width)
	if l.masked {
		in = append(in, maskPort(s))
	}
	return in, row("y", s, l.width)
}

func (l *PostNorm) sum(s Size) int { return s.Rows() * l.width }

// Saved implements Layer: x + f(x), what the norm saves and what f saves.
func (l *PostNorm) Saved(s Size) int {
	return Padded(l.sum(s)) + Padded(l.norm.Saved(s)) + Padded(l.f.Saved(s))
}

// Kept implements Layer: the gradient of the sum, what the norm keeps and what f keeps.
func (l *PostNorm) Kept(s Size) int {
	return Padded(l.sum(s)) + Padded(l.norm.Kept(s)) + Padded(l.f.Kept(s))
}

// FLOPs implements Layer.
func (l *PostNorm) FLOPs(s Size) (forward, backward float64) { return l.f.FLOPs(s) }

// main is x, or its gradient.
func (l *PostNorm) main(m device.Mem, s Size) device.Mem {
	if !l.masked {
		return m
	}
	return mainOf(m, s, l.width)
}

// cutSum takes apart what is saved, or kept: the sum, the norm's and f's.
func cutSum(m device.Mem, sum, norm, f int) (s, ofNorm, ofF device.Mem) {
	c := cutter{mem: m}
	return c.take(sum), c.take(norm), c.take(f)
}

func (l *PostNorm) saved(p Pass) (sum, norm, f device.Mem) {
	return cutSum(p.Saved, l.sum(p.Size), l.norm.Saved(p.Size), l.f.Saved(p.Size))
}

// passes are those of f and of the norm in a backward.
func (l *PostNorm) passes(p Pass) (f, norm Pass) {
	sum, ofNorm, ofF := l.saved(p)
	dsum, keptNorm, keptF := cutSum(p.Kept, l.sum(p.Size), l.norm.Kept(p.Size), l.f.Kept(p.Size))
	at := len(l.params) - normParams
	f, norm = p, p
	f.Params, norm.Params = p.Params[:at], p.Params[at:]
	if len(p.Grads) > 0 {
		f.Grads, norm.Grads = p.Grads[:at], p.Grads[at:]
	}
	norm.In, norm.DIn, norm.Saved, norm.Kept = sum, dsum, ofNorm, keptNorm
	f.DOut, f.Saved, f.Kept = dsum, ofF, keptF
	return f, norm
}

// Forward implements Layer.
func (l *PostNorm) Forward(p Pass) {
	sum, ofNorm, ofF := l.saved(p)
	at := len(l.params) - normParams
	f, norm := p, p
	f.Params, f.Out, f.Saved = p.Params[:at], sum, ofF
	l.f.Forward(f)
	p.Device.Do(&device.Add{Out: sum, A: sum, B: l.main(p.In, p.Size)})
	norm.Params, norm.In, norm.Saved = p.Params[at:], sum, ofNorm
	l.norm.Forward(norm)
}

// BackwardInput implements Layer.
func (l *PostNorm) BackwardInput(p Pass) {
	f, norm := l.passes(p)
	l.norm.BackwardInput(norm)
	l.f.BackwardInput(f)
	dx := l.main(p.DIn, p.Size)
	p.Device.Do(&device.Add{Out: dx, A: dx, B: f.DOut})
}

// BackwardWeight implements Layer.
func (l *PostNorm) BackwardWeight(p Pass) {
	f, norm := l.passes(p)
	l.norm.BackwardWeight(norm)
	l.f.BackwardWeight(f)
}
