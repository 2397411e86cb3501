package layer

import (
	"math"

	"github.com/avgpipe/avgpipe/stage/device"
)

// LSTM is y (R,Hidden) = h_t of an LSTM over the positions of each sample of x (R,In), from a state of zeros; see
// device.Recurrent. The products with the input are one for all positions; the recurrent ones are one for each.
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

// Name implements Layer.
func (l LSTM) Name() string { return l.Path }

func (l LSTM) directions() int {
	if l.Bidirectional {
		return 2
	}
	return 1
}

// Width is the number of columns of y.
func (l LSTM) Width() int { return l.directions() * l.Hidden }

// Params implements Layer.
func (l LSTM) Params() []Param {
	var ps []Param
	for _, suffix := range []string{"_l0", "_l0_reverse"}[:l.directions()] {
		ps = append(ps,
			Param{Name: l.Path + ".weight_ih" + suffix, Shape: []int{gateCount * l.Hidden, l.In}, Init: l.Init, Decay: true},
			Param{Name: l.Path + ".weight_hh" + suffix, Shape: []int{gateCount * l.Hidden, l.Hidden}, Init: l.Init, Decay: true},
			Param{Name: l.Path + ".bias_ih" + suffix, Shape: []int{gateCount * l.Hidden}, Init: l.Init},
			Param{Name: l.Path + ".bias_hh" + suffix, Shape: []int{gateCount * l.Hidden}, Init: l.Init})
	}
	return ps
}

// Ports implements Layer.
func (l LSTM) Ports(s Size) (in, out []Port) { return row("x", s, l.In), row("y", s, l.Width()) }

// lstmSaved is what the forward of one direction saves: the activated gates (R,4H), the cells (R,H), the outputs one position
// before (R,H), the sum of the biases (4H) and, with weight drop, the recurrent weights as they were used (4H,H).
type lstmSaved struct{ gates, cells, previous, bias, weight device.Mem }

func (l LSTM) cutSaved(c *cutter, s Size) lstmSaved {
	n := s.Rows() * l.Hidden
	x := lstmSaved{gates: c.take(gateCount * n), cells: c.take(n), previous: c.take(n), bias: c.take(gateCount * l.Hidden)}
	if l.WeightDrop > 0 {
		x.weight = c.take(gateCount * l.Hidden * l.Hidden)
	}
	return x
}

// Saved implements Layer.
func (l LSTM) Saved(s Size) int {
	n := s.Rows() * l.Hidden
	words := Padded(gateCount*n) + 2*Padded(n) + Padded(gateCount*l.Hidden)
	if l.WeightDrop > 0 {
		words += Padded(gateCount * l.Hidden * l.Hidden)
	}
	return l.directions() * words
}

// Kept implements Layer: the gradients of the gates (R,4H) of each direction; what is carried from a position to the one
// before it (2,B,H) or, later, the gradient of the recurrent weights before their dropout (4H,H).
func (l LSTM) Kept(s Size) int {
	return l.directions()*Padded(gateCount*s.Rows()*l.Hidden) + Padded(l.scratch(s))
}

func (l LSTM) scratch(s Size) int {
	n := 2 * s.B * l.Hidden
	if l.WeightDrop > 0 {
		n = max(n, gateCount*l.Hidden*l.Hidden)
	}
	return n
}

func (l LSTM) cutKept(p Pass) (dgates [2]device.Mem, scratch device.Mem) {
	c := cutter{mem: p.Kept}
	for i := range l.directions() {
		dgates[i] = c.take(gateCount * p.Size.Rows() * l.Hidden)
	}
	return dgates, c.take(l.scratch(p.Size))
}

// FLOPs implements Layer.
func (l LSTM) FLOPs(s Size) (forward, backward float64) {
	forward = 2 * float64(l.directions()) * float64(s.Rows()) * float64(gateCount*l.Hidden) * float64(l.In+l.Hidden)
	return forward, 2 * forward
}

// shape is that of direction i.
func (l LSTM) shape(s Size, i int, mask device.Mem) device.LSTMShape {
	return device.LSTMShape{B: s.B, T: s.T, H: l.Hidden, Reverse: i == 1, OutStride: l.Width(), Mask: mask}
}

// columns is the part of y, or of its gradient, from direction i's first element on.
func (l LSTM) columns(y device.Mem, i int) device.Mem {
	return y.Slice(i*l.Hidden, y.Len()-i*l.Hidden)
}

// drop is the dropout of direction i's recurrent weights: the same for all micro-batches of a step.
func (l LSTM) drop(p Pass, i int) device.DropoutMask {
	return device.DropoutMask{
		Rate: float32(l.WeightDrop), Key: Mix(p.KeyOf(l.Path+".weight_hh") + uint64(i)),
		Rows: gateCount * l.Hidden, Columns: l.Hidden, Share: 1,
	}
}

// Forward implements Layer.
func (l LSTM) Forward(p Pass) { l.forward(p, device.Mem{}) }

// forward runs with a mask (B,T), or an absent one.
func (l LSTM) forward(p Pass, mask device.Mem) {
	saved := cutter{mem: p.Saved}
	d, hidden := p.Device, gateCount*l.Hidden
	for i := range l.directions() {
		params, s := p.Params[i*lstmParams:], l.cutSaved(&saved, p.Size)
		d.Do(&device.Add{Out: s.bias, A: params[biasIH], B: params[biasHH]})
		d.Do(&device.MatMul{
			C: s.gates, A: p.In, B: params[weightIH],
			Product: device.Product{M: p.Size.Rows(), N: hidden, K: l.In, TransB: true, Bias: s.bias},
		})
		weight := params[weightHH]
		if l.WeightDrop > 0 && !p.Evaluating {
			d.Do(&device.Dropout{Y: s.weight, X: weight, DropoutMask: l.drop(p, i)})
			weight = s.weight
		}
		d.Do(&device.LSTM{
			Out: l.columns(p.Out, i), Gates: s.gates, Cells: s.cells, Previous: s.previous, Weight: weight,
			LSTMShape: l.shape(p.Size, i, mask),
		})
	}
}

// BackwardInput implements Layer.
func (l LSTM) BackwardInput(p Pass) { l.backwardInput(p, device.Mem{}) }

func (l LSTM) backwardInput(p Pass, mask device.Mem) {
	saved := cutter{mem: p.Saved}
	dgates, carry := l.cutKept(p)
	carry = carry.Slice(0, 2*p.Size.B*l.Hidden)
	for i := range l.directions() {
		params, s := p.Params[i*lstmParams:], l.cutSaved(&saved, p.Size)
		weight := params[weightHH]
		if l.WeightDrop > 0 {
			weight = s.weight
		}
		p.Device.Do(&device.LSTMBackward{
			DGates: dgates[i], Carry: carry, DOut: l.columns(p.DOut, i), Gates: s.gates, Cells: s.cells, Weight: weight,
			LSTMShape: l.shape(p.Size, i, mask),
		})
		p.Device.Do(&device.MatMul{
			C: p.DIn, A: dgates[i], B: params[weightIH],
			Product: device.Product{M: p.Size.Rows(), N: l.In, K: gateCount * l.Hidden, Accumulate: i > 0},
		})
	}
}

// BackwardWeight implements Layer.
func (l LSTM) BackwardWeight(p Pass) {
	saved := cutter{mem: p.Saved}
	dgates, scratch := l.cutKept(p)
	d, rows, hidden := p.Device, p.Size.Rows(), gateCount*l.Hidden
	for i := range l.directions() {
		grads, s := p.Grads[i*lstmParams:], l.cutSaved(&saved, p.Size)
		d.Do(&device.MatMul{
			C: grads[weightIH], A: dgates[i], B: p.In, Product: device.Product{M: hidden, N: l.In, K: rows, TransA: true, Accumulate: true},
		})
		m := device.Product{M: hidden, N: l.Hidden, K: rows, TransA: true, Accumulate: true}
		if l.WeightDrop > 0 {
			m.Accumulate = false
			dropped := scratch.Slice(0, hidden*l.Hidden)
			d.Do(&device.MatMul{C: dropped, A: dgates[i], B: s.previous, Product: m})
			d.Do(&device.Dropout{Y: dropped, X: dropped, DropoutMask: l.drop(p, i)})
			d.Do(&device.Add{Out: grads[weightHH], A: grads[weightHH], B: dropped})
		} else {
			d.Do(&device.MatMul{C: grads[weightHH], A: dgates[i], B: s.previous, Product: m})
		}
		d.Do(&device.SumRows{Sum: grads[biasIH], X: dgates[i]})
		d.Do(&device.SumRows{Sum: grads[biasHH], X: dgates[i]})
	}
}

// UniformInit is the normal distribution with the variance of the uniform one on [-bound, bound], which recurrent models
// are published with.
func UniformInit(bound float64) Init { return Init{Deviation: bound / math.Sqrt(3)} }
