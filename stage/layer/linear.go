package layer

import "github.com/avgpipe/avgpipe/stage/device"

// Linear is y (R,Out) = x (R,In) W [+ b]. It saves nothing and keeps nothing: the weight half needs x and dy alone. Where
// products compute in BF16, W is a copy in BF16, and x and y are of the types that the pass gives them: F32 or BF16.
type Linear struct {
	memoryless
	Path    string // "transformer.h.0.attn.c_attn": the parameters are Path.weight and Path.bias
	In, Out int
	Bias    bool
	// OutIn stores W as (Out,In), like an embedding or PyTorch's nn.Linear; else (In,Out), like GPT-2's Conv1D.
	OutIn  bool
	Init   Init
	TiedTo string // see Param
}

// Name implements Layer.
func (l Linear) Name() string { return l.Path }

// Params implements Layer: the weight, then the bias.
func (l Linear) Params() []Param {
	shape := []int{l.In, l.Out}
	if l.OutIn {
		shape = []int{l.Out, l.In}
	}
	ps := []Param{{Name: l.Path + ".weight", Shape: shape, Init: l.Init, Decay: true, TiedTo: l.TiedTo, Product: true}}
	if l.Bias {
		ps = append(ps, Param{Name: l.Path + ".bias", Shape: []int{l.Out}})
	}
	return ps
}

// Ports implements Layer. In a Chain both may be BF16; see adaptive.
func (l Linear) Ports(s Size) (in, out []Port) { return row("x", s, l.In), row("y", s, l.Out) }

func (l Linear) adapts() (in, out bool) { return true, true }

// FLOPs implements Layer.
func (l Linear) FLOPs(s Size) (forward, backward float64) {
	forward = 2 * float64(s.Rows()) * float64(l.In) * float64(l.Out)
	return forward, 2 * forward
}

// Forward implements Layer.
func (l Linear) Forward(p Pass) {
	m := device.Product{M: p.Size.Rows(), N: l.Out, K: l.In, TransB: l.OutIn}
	if l.Bias {
		m.Bias = p.Params[1]
	}
	p.Device.Do(&device.MatMul{C: p.Out, A: p.In, B: p.Params[0], Product: m})
}

// BackwardInput sets dx (R,In) = dy (R,Out) W^T.
func (l Linear) BackwardInput(p Pass) {
	p.Device.Do(&device.MatMul{
		C: p.DIn, A: p.DOut, B: p.Params[0], Product: device.Product{M: p.Size.Rows(), N: l.In, K: l.Out, TransB: !l.OutIn},
	})
}

// BackwardWeight adds dW += x^T dy, or (dy^T x) when W is (Out,In), and db += the sum of dy over the rows. Where the pass is
// Fresh it sets dW.
func (l Linear) BackwardWeight(p Pass) {
	if l.OutIn {
		m := device.Product{M: l.Out, N: l.In, K: p.Size.Rows(), TransA: true, Accumulate: !p.Fresh}
		p.Device.Do(&device.MatMul{C: p.Grads[0], A: p.DOut, B: p.In, Product: m})
	} else {
		m := device.Product{M: l.In, N: l.Out, K: p.Size.Rows(), TransA: true, Accumulate: !p.Fresh}
		p.Device.Do(&device.MatMul{C: p.Grads[0], A: p.In, B: p.DOut, Product: m})
	}
	if l.Bias {
		p.Device.Do(&device.SumRows{Sum: p.Grads[1], X: p.DOut})
	}
}
