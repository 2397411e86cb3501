package layer

import "github.com/avgpipe/avgpipe/stage/device"

// ImageBlock is a block of a residual network: y = relu(norm(f(x)) + skip(x)), with f a chain that ends in a convolution, and
// skip the identity or a projection (He et al. 2016a, equations 1 and 2). The sum and the ReLU are computed by the norm.
type ImageBlock struct {
	path   string
	branch Layer
	norm   ImageNorm
	skip   Layer // nil: the identity
	params []Param
	bounds [4]int // branch, norm and skip have params[bounds[i]:bounds[i+1]]
	width  int    // elements of a sample that go in
}

// NewImageBlock makes a block. norm.ReLU is set. skip may be nil.
func NewImageBlock(path string, branch Layer, norm ImageNorm, skip Layer) *ImageBlock {
	norm.ReLU = true
	in, _ := branch.Ports(Size{B: 1, T: 1})
	l := &ImageBlock{path: path, branch: branch, norm: norm, skip: skip, width: in[0].Elements}
	for i, part := range []Layer{branch, norm, skip} {
		if part != nil {
			l.params = append(l.params, part.Params()...)
		}
		l.bounds[i+1] = len(l.params)
	}
	return l
}

// Name implements Layer.
func (l *ImageBlock) Name() string { return l.path }

// Params implements Layer: of f, of the norm, of the projection.
func (l *ImageBlock) Params() []Param { return l.params }

// Ports implements Layer.
func (l *ImageBlock) Ports(s Size) (in, out []Port) {
	return row("x", s, l.width), row("y", s, l.norm.Of.Elements())
}

func (l *ImageBlock) outputs(s Size) int { return s.Rows() * l.norm.Of.Elements() }

// Saved implements Layer: what f, norm and skip save, f's output and the projection's.
func (l *ImageBlock) Saved(s Size) int {
	n := Padded(l.branch.Saved(s)) + Padded(l.outputs(s)) + Padded(l.norm.Saved(s))
	if l.skip != nil {
		n += Padded(l.skip.Saved(s)) + Padded(l.outputs(s))
	}
	return n
}

// Kept implements Layer: what f, norm and skip keep, the gradients of f's output and input, and of the projection.
func (l *ImageBlock) Kept(s Size) int {
	n := Padded(l.branch.Kept(s)) + Padded(l.outputs(s)) + Padded(s.Rows()*l.width) + Padded(l.norm.Kept(s))
	if l.skip != nil {
		n += Padded(l.skip.Kept(s)) + Padded(l.outputs(s))
	}
	return n
}

// FLOPs implements Layer.
func (l *ImageBlock) FLOPs(s Size) (forward, backward float64) {
	forward, backward = l.branch.FLOPs(s)
	if l.skip != nil {
		f, b := l.skip.FLOPs(s)
		forward, backward = forward+f, backward+b
	}
	return forward, backward
}

// inside are the passes of f, norm and skip within one of the block.
type inside struct{ branch, norm, skip Pass }

// inside cuts p up. skipped is the other input of the norm, dskipped its gradient.
func (l *ImageBlock) inside(p Pass) (in inside, skipped, dskipped device.Mem) {
	in = inside{l.of(p, 0), l.of(p, 1), l.of(p, 2)}
	saved := cutter{mem: p.Saved}
	in.branch.Saved = saved.take(l.branch.Saved(p.Size))
	in.branch.Out = saved.take(l.outputs(p.Size))
	in.norm.In, in.norm.Saved = in.branch.Out, saved.take(l.norm.Saved(p.Size))
	skipped = p.In
	if l.skip != nil {
		in.skip.Saved = saved.take(l.skip.Saved(p.Size))
		in.skip.Out = saved.take(l.outputs(p.Size))
		skipped = in.skip.Out
	}
	if p.Kept.Absent() {
		return in, skipped, dskipped
	}
	kept := cutter{mem: p.Kept}
	in.branch.Kept = kept.take(l.branch.Kept(p.Size))
	in.branch.DOut = kept.take(l.outputs(p.Size))
	in.branch.DIn = kept.take(p.Size.Rows() * l.width)
	in.norm.DIn, in.norm.Kept = in.branch.DOut, kept.take(l.norm.Kept(p.Size))
	dskipped = p.DIn
	if l.skip != nil {
		in.skip.Kept = kept.take(l.skip.Kept(p.Size))
		in.skip.DOut = kept.take(l.outputs(p.Size))
		dskipped = in.skip.DOut
	}
	return in, skipped, dskipped
}

// of is p with the parameters of part i.
func (l *ImageBlock) of(p Pass, i int) Pass {
	p.Params = p.Params[l.bounds[i]:l.bounds[i+1]]
	if len(p.Grads) > 0 {
		p.Grads = p.Grads[l.bounds[i]:l.bounds[i+1]]
	}
	return p
}

// Forward implements Layer.
func (l *ImageBlock) Forward(p Pass) {
	in, skipped, _ := l.inside(p)
	l.branch.Forward(in.branch)
	if l.skip != nil {
		l.skip.Forward(in.skip)
	}
	l.norm.forward(in.norm, skipped)
}

// BackwardInput implements Layer: dx is the sum of what comes through skip and through f.
func (l *ImageBlock) BackwardInput(p Pass) {
	in, skipped, dskipped := l.inside(p)
	l.norm.backward(in.norm, skipped, dskipped)
	if l.skip != nil {
		l.skip.BackwardInput(in.skip)
	}
	l.branch.BackwardInput(in.branch)
	p.Device.Do(&device.Add{Out: p.DIn, A: p.DIn, B: in.branch.DIn})
}

// BackwardWeight implements Layer.
func (l *ImageBlock) BackwardWeight(p Pass) {
	in, _, _ := l.inside(p)
	l.branch.BackwardWeight(in.branch)
	l.norm.BackwardWeight(in.norm)
	if l.skip != nil {
		l.skip.BackwardWeight(in.skip)
	}
}
