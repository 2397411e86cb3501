package layer

import (
	"math"

	"github.com/avgpipe/avgpipe/stage/device"
)

// LSTM is y (R,Hidden) = h_t of an LSTM over the positions of each sample of x (R,In), from a state of zeros; see
// device.LSTM. The products with the input are one for all positions; the recurrent ones are one for each. Where products compute in BF16, so do
// both, from copies of the weights and with x, h_(t-1) and the gradients of the gates rounded; gates, cells and y are F32.
type LSTM struct {
	Path       string // "rnns.0": the parameters are PyTorch's, Path.weight_ih_l0 and so on
	In, Hidden int
	// Bidirectional runs a second LSTM from the last position to the first, whose output stands right of the first's:
	// y is (R,2*Hidden).
	Bidirectional bool
	// WeightDrop is the probability with which each recurrent weight is dropped, once for all positions and samples of an
	// optimizer step (Merity et al. 2018, section 2; Wan et al. 2013). In [0,1).
	WeightDrop float64
	Init       Init // of weights and biases
}

const gateCount = 4 // input, forget, cell and output gate

// parameters of one direction, in their order.
const (
	weightIH = iota // (4H,In)
	weightHH        // (4H,H)
	biasIH          // (4H)
	biasHH          // (4H)
	lstmParams
)

func (l LSTM) directions() int {
	if l.Bidirectional {
		return 2
	}
	return 1
}

// Width is the number of columns of y.
func (l LSTM) Width() int { return l.directions() * l.Hidden }

// Describe implements Layer.
func (l LSTM) Describe(s Size) Description {
	d := Description{Name: l.Path, In: row("x", s, l.In), Out: row("y", s, l.Width())}
	for _, suffix := range []string{"_l0", "_l0_reverse"}[:l.directions()] {
		product := l.WeightDrop == 0 // else what products read is made in each pass
		d.Params = append(d.Params,
			Param{Name: l.Path + ".weight_ih" + suffix, Shape: []int{gateCount * l.Hidden, l.In}, Init: l.Init, Decay: true, Product: true, Fresh: true},
			Param{Name: l.Path + ".weight_hh" + suffix, Shape: []int{gateCount * l.Hidden, l.Hidden}, Init: l.Init, Decay: true, Product: product, Fresh: product},
			Param{Name: l.Path + ".bias_ih" + suffix, Shape: []int{gateCount * l.Hidden}, Init: l.Init},
			Param{Name: l.Path + ".bias_hh" + suffix, Shape: []int{gateCount * l.Hidden}, Init: l.Init})
	}
	return d
}

// columns is the part of y, or of its gradient, from direction i's first element on.
func (l LSTM) columns(y device.Mem, i int) device.Mem {
	return y.Slice(i*l.Hidden, y.Len()-i*l.Hidden)
}

// drop is x with direction i's recurrent weights dropped: the same for all micro-batches of a step.
func (l LSTM) drop(b *Builder, x device.Mem, i int) device.Mem {
	return b.dropped(x, device.Mem{}, l.WeightDrop, device.DropoutMask{
		Stream: device.StreamOf(Params(l)[i*lstmParams+weightHH].Name), Rows: gateCount * l.Hidden, Columns: l.Hidden, Share: 1,
	})
}

// Emit implements Layer.
func (l LSTM) Emit(b *Builder, t Tensors, in []device.Mem) (out []device.Mem, backward Backward) {
	return single(l.emit(b, t, in[0], device.Mem{}))
}

// emit is Emit of the one port, with a mask (B,T) or an absent one.
func (l LSTM) emit(b *Builder, t Tensors, x, mask device.Mem) (y device.Mem, back func(dy device.Mem) (dx device.Mem)) {
	y = b.Floats(l.Width())
	directions := make([]direction, l.directions())
	for i := range directions {
		directions[i] = l.direction(b, Tensors{t.Params[i*lstmParams:], t.Grads[i*lstmParams:]}, x, y, mask, i)
	}
	return y, func(dy device.Mem) device.Mem {
		dx := b.Like(x)
		for i := range directions {
			directions[i].backward(b, l, x, dx, dy, i)
		}
		return dx
	}
}

// direction is one of an LSTM's: the activated gates (R,4H), the cells (R,H), the outputs one position before (R,H) and the recurrent weights
// as they were used (4H,H).
type direction struct {
	Tensors
	shape                          device.LSTMShape
	gates, cells, previous, weight device.Mem
}

func (l LSTM) direction(b *Builder, t Tensors, x, y, mask device.Mem, i int) direction {
	hidden := gateCount * l.Hidden
	d := direction{
		Tensors: t, weight: t.Params[weightHH],
		shape: device.LSTMShape{B: b.B, T: b.T, H: l.Hidden, Reverse: i == 1, OutStride: l.Width(), Mask: mask},
		gates: b.Floats(hidden), cells: b.Floats(l.Hidden), previous: b.Operand(l.Hidden),
	}
	bias := b.add(t.Params[biasIH], t.Params[biasHH])
	b.Do(&device.MatMul{C: d.gates, A: b.narrow(x), B: t.Params[weightIH], Product: device.Product{M: b.Rows(), N: hidden, K: l.In, TransB: true, Bias: bias}})
	d.weight = b.narrow(l.drop(b, d.weight, i))
	state := l.resume(b, d)
	b.Do(&device.LSTM{Out: l.columns(y, i), Gates: d.gates, Cells: d.cells, Previous: d.previous, Weight: d.weight, Before: state.before, LSTMShape: d.shape})
	if b.Context != nil {
		b.Do(&device.Copy{Y: state.output, X: b.last(y)})
		b.Do(&device.Copy{Y: state.cells, X: b.last(d.cells)})
	}
	return d
}

// state is what an LSTM that continues sequences keeps: the output and the cells of the last position (B,H). before is those cells where a
// position precedes.
type state struct{ output, cells, before device.Mem }

// resume adds to the gates of the first position what they get from the output before it.
func (l LSTM) resume(b *Builder, d direction) (s state) {
	if b.Context == nil {
		return s
	}
	if l.Bidirectional {
		panic("layer: an LSTM in both directions cannot continue a sequence")
	}
	s.output, s.cells = b.keep(device.F32, b.B*l.Hidden), b.keep(device.F32, b.B*l.Hidden)
	if b.Context.First {
		return s
	}
	s.before = s.cells
	gates, output := gateCount*l.Hidden, b.narrow(s.output)
	for n := range b.B {
		b.Do(&device.MatMul{
			C: d.gates.Slice(n*b.T*gates, gates), A: output.Slice(n*l.Hidden, l.Hidden), B: d.weight,
			Product: device.Product{M: 1, N: gates, K: l.Hidden, TransB: true, Accumulate: true},
		})
	}
	return s
}

// backward adds to the gradients, and sets dx or, after the first direction, adds to it.
func (d *direction) backward(b *Builder, l LSTM, x, dx, dy device.Mem, i int) {
	rows, hidden := b.Rows(), gateCount*l.Hidden
	dgates, carry := b.Floats(hidden), b.New(device.F32, 2*b.B*l.Hidden)
	b.Do(&device.LSTMBackward{DGates: dgates, Carry: carry, DOut: l.columns(dy, i), Gates: d.gates, Cells: d.cells, Weight: d.weight, LSTMShape: d.shape})
	b.Do(&device.SumRows{Sum: d.Grads[biasIH], X: dgates})
	b.Do(&device.SumRows{Sum: d.Grads[biasHH], X: dgates})
	dgates = b.narrow(dgates)
	b.Do(&device.MatMul{C: dx, A: dgates, B: d.Params[weightIH], Product: device.Product{M: rows, N: l.In, K: hidden, Accumulate: i > 0}})
	b.Do(&device.MatMul{C: d.Grads[weightIH], A: dgates, B: b.narrow(x), Product: device.Product{M: hidden, N: l.In, K: rows, TransA: true, Accumulate: true}})
	m := device.Product{M: hidden, N: l.Hidden, K: rows, TransA: true, Accumulate: l.WeightDrop == 0}
	if l.WeightDrop == 0 {
		b.Do(&device.MatMul{C: d.Grads[weightHH], A: dgates, B: d.previous, Product: m})
	} else {
		used := b.Like(d.Params[weightHH])
		b.Do(&device.MatMul{C: used, A: dgates, B: d.previous, Product: m})
		b.Do(&device.Add{Out: d.Grads[weightHH], A: d.Grads[weightHH], B: l.drop(b, used, i)})
	}
}

// UniformInit is the normal distribution with the variance of the uniform one on [-bound, bound], which recurrent models
// are published with.
func UniformInit(bound float64) Init { return Init{Deviation: bound / math.Sqrt(3)} }
