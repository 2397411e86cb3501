package layer

import (
	"math"

	"github.com/avgpipe/avgpipe/stage/device"
)

// AttendingLSTM is the first layer of a recurrent decoder: y = LSTM(drop(target)), and the context (R,Keys) = the mean of the
// encoder's output of the same sample, weighted by normalised additive attention with y as the query (Bahdanau et al. 2015,
// appendix A.1.2; the normalised form of Luong et al., "Neural machine translation (seq2seq) tutorial", 2017):
//
//	score(i, j) = length direction / |direction| tanh(W_q y_i + W_k encoder_j + bias)
//
// Positions of the encoder whose mask is 0 are not attended to. In come the encoder's output (R,Keys), the mask (R) and the
// embedded target (R,LSTM.In); out go y (R,H) and the context.
type AttendingLSTM struct {
	Path    string // "decoder.att_rnn"
	LSTM    LSTM   // at Path.rnn
	Keys    int
	Units   int
	Dropout float64
	Init    Init // of the projections and the direction
}

// parameters behind the LSTM's.
const (
	attendQuery     = lstmParams + iota // (N,H)
	attendKey                           // (N,Keys)
	attendDirection                     // (N)
	attendLength                        // (1)
	attendBias                          // (N)
)

// Name implements Layer.
func (l *AttendingLSTM) Name() string { return l.Path }

// Params implements Layer: the LSTM's; then the projections of query and key, and direction, length and bias of the score.
func (l *AttendingLSTM) Params() []Param {
	n, path := l.Units, l.Path+".attn."
	return append(l.LSTM.Params(),
		Param{Name: path + "linear_query.weight", Shape: []int{n, l.LSTM.Hidden}, Init: l.Init, Decay: true},
		Param{Name: path + "linear_key.weight", Shape: []int{n, l.Keys}, Init: l.Init, Decay: true},
		Param{Name: path + "linear_att", Shape: []int{n}, Init: l.Init},
		Param{Name: path + "normalize_scalar", Shape: []int{1}, Init: Init{Mean: 1 / math.Sqrt(float64(n))}},
		Param{Name: path + "normalize_bias", Shape: []int{n}})
}

// Ports implements Layer.
func (l *AttendingLSTM) Ports(s Size) (in, out []Port) {
	in = []Port{
		{Name: "encoder", Type: device.F32, Elements: s.Rows() * l.Keys},
		{Name: "mask", Type: device.I32, Elements: s.Rows()},
		{Name: "target", Type: device.F32, Elements: s.Rows() * l.LSTM.In},
	}
	return in, append(row("y", s, l.LSTM.Hidden), row("context", s, l.Keys)...)
}

func (l *AttendingLSTM) in(m device.Mem, s Size) (encoder, mask, target device.Mem) {
	c := cutter{mem: m}
	return c.take(s.Rows() * l.Keys), c.takeAs(device.I32, s.Rows()), c.take(s.Rows() * l.LSTM.In)
}

func (l *AttendingLSTM) out(m device.Mem, s Size) (y, context device.Mem) {
	c := cutter{mem: m}
	return c.take(s.Rows() * l.LSTM.Hidden), c.take(s.Rows() * l.Keys)
}

// attendSaved is what the forward saves: y (R,H), the projections (R,N), the vector of the score (N), the probabilities
// (R,T), the target behind its dropout (R,In) and what the LSTM saves.
type attendSaved struct{ y, query, key, v, probabilities, input, lstm device.Mem }

func (l *AttendingLSTM) saved(p Pass) attendSaved {
	c, r := cutter{mem: p.Saved}, p.Size.Rows()
	x := attendSaved{
		y: c.take(r * l.LSTM.Hidden), query: c.take(r * l.Units), key: c.take(r * l.Units), v: c.take(l.Units),
		probabilities: c.take(r * p.Size.T), lstm: c.take(l.LSTM.Saved(p.Size)),
	}
	if l.Dropout > 0 {
		x.input = c.take(r * l.LSTM.In)
	}
	return x
}

// Saved implements Layer.
func (l *AttendingLSTM) Saved(s Size) int {
	r := s.Rows()
	n := Padded(r*l.LSTM.Hidden) + 2*Padded(r*l.Units) + Padded(l.Units) + Padded(r*s.T) + Padded(l.LSTM.Saved(s))
	if l.Dropout > 0 {
		n += Padded(r * l.LSTM.In)
	}
	return n
}

// attendKept is what the input half leaves: the gradients of the projections (R,N), of the score's vector (N) and of y
// (R,H), scratch (R,T), and what the LSTM keeps.
type attendKept struct{ query, key, v, y, scores, lstm device.Mem }

func (l *AttendingLSTM) kept(p Pass) attendKept {
	c, r := cutter{mem: p.Kept}, p.Size.Rows()
	return attendKept{
		query: c.take(r * l.Units), key: c.take(r * l.Units), v: c.take(l.Units), y: c.take(r * l.LSTM.Hidden),
		scores: c.take(r * p.Size.T), lstm: c.take(l.LSTM.Kept(p.Size)),
	}
}

// Kept implements Layer.
func (l *AttendingLSTM) Kept(s Size) int {
	r := s.Rows()
	return 2*Padded(r*l.Units) + Padded(l.Units) + Padded(r*l.LSTM.Hidden) + Padded(r*s.T) + Padded(l.LSTM.Kept(s))
}

// FLOPs implements Layer.
func (l *AttendingLSTM) FLOPs(s Size) (forward, backward float64) {
	forward, _ = l.LSTM.FLOPs(s)
	r := float64(s.Rows())
	forward += 2 * r * float64(l.Units*(l.LSTM.Hidden+l.Keys)+s.T*l.Keys)
	// A hyperbolic tangent costs about as much as 16 multiplications and additions of a product.
	forward += 32 * r * float64(s.T*l.Units)
	return forward, 2 * forward
}

func (l *AttendingLSTM) shape(s Size, mask device.Mem) device.Additive {
	return device.Additive{B: s.B, T: s.T, N: l.Units, Mask: mask}
}

// project is a product of R rows with a weight stored (out,in).
func project(p Pass, in, out int) device.Product {
	return device.Product{M: p.Size.Rows(), N: out, K: in, TransB: true}
}

// Forward implements Layer.
func (l *AttendingLSTM) Forward(p Pass) {
	d, saved := p.Device, l.saved(p)
	encoder, mask, target := l.in(p.In, p.Size)
	y, context := l.out(p.Out, p.Size)
	q := p
	q.In, q.Out, q.Saved = target, saved.y, saved.lstm
	if l.Dropout > 0 && !p.Evaluating {
		dropElements(p, saved.input, target, l.Path, l.Dropout, l.LSTM.In)
		q.In = saved.input
	}
	l.LSTM.Forward(q)
	d.Do(&device.Copy{Y: y, X: saved.y})
	toUnits := project(p, l.LSTM.Hidden, l.Units)
	toUnits.Bias = p.Params[attendBias]
	d.Do(&device.MatMul{C: saved.query, A: saved.y, B: p.Params[attendQuery], Product: toUnits})
	d.Do(&device.MatMul{C: saved.key, A: encoder, B: p.Params[attendKey], Product: project(p, l.Keys, l.Units)})
	d.Do(&device.WeightNorm{V: saved.v, Direction: p.Params[attendDirection], Length: p.Params[attendLength]})
	d.Do(&device.AdditiveAttention{
		Probabilities: saved.probabilities, Q: saved.query, K: saved.key, V: saved.v, Additive: l.shape(p.Size, mask),
	})
	s := p.Size
	for b := range s.B {
		m := device.Product{M: s.T, N: l.Keys, K: s.T}
		d.Do(&device.MatMul{C: sample(context, s, b), A: sample(saved.probabilities, s, b), B: sample(encoder, s, b), Product: m})
	}
}

// sample is the part of x (B,T,columns) that is of sample b.
func sample(x device.Mem, s Size, b int) device.Mem {
	n := x.Len() / s.B
	return x.Slice(b*n, n)
}

// BackwardInput implements Layer.
func (l *AttendingLSTM) BackwardInput(p Pass) {
	d, s, saved, kept := p.Device, p.Size, l.saved(p), l.kept(p)
	encoder, mask, _ := l.in(p.In, s)
	dencoder, _, dtarget := l.in(p.DIn, s)
	dy, dcontext := l.out(p.DOut, s)
	for b := range s.B {
		d.Do(&device.MatMul{
			C: sample(kept.scores, s, b), A: sample(dcontext, s, b), B: sample(encoder, s, b),
			Product: device.Product{M: s.T, N: s.T, K: l.Keys, TransB: true},
		})
		d.Do(&device.MatMul{
			C: sample(dencoder, s, b), A: sample(saved.probabilities, s, b), B: sample(dcontext, s, b),
			Product: device.Product{M: s.T, N: l.Keys, K: s.T, TransA: true},
		})
	}
	d.Do(&device.AdditiveAttentionBackward{
		DQ: kept.query, DK: kept.key, DV: kept.v, DProbabilities: kept.scores, Probabilities: saved.probabilities, Q: saved.query,
		K: saved.key, V: saved.v, Additive: l.shape(s, mask),
	})
	d.Do(&device.MatMul{
		C: dencoder, A: kept.key, B: p.Params[attendKey], Product: device.Product{M: s.Rows(), N: l.Keys, K: l.Units, Accumulate: true},
	})
	d.Do(&device.Copy{Y: kept.y, X: dy})
	d.Do(&device.MatMul{
		C: kept.y, A: kept.query, B: p.Params[attendQuery],
		Product: device.Product{M: s.Rows(), N: l.LSTM.Hidden, K: l.Units, Accumulate: true},
	})
	q := p
	q.DOut, q.DIn, q.Saved, q.Kept = kept.y, dtarget, saved.lstm, kept.lstm
	l.LSTM.BackwardInput(q)
	if l.Dropout > 0 {
		dropElements(p, dtarget, dtarget, l.Path, l.Dropout, l.LSTM.In)
	}
}

// BackwardWeight implements Layer.
func (l *AttendingLSTM) BackwardWeight(p Pass) {
	d, saved, kept := p.Device, l.saved(p), l.kept(p)
	encoder, _, target := l.in(p.In, p.Size)
	q := p
	q.In, q.Saved, q.Kept = target, saved.lstm, kept.lstm
	if l.Dropout > 0 {
		q.In = saved.input
	}
	l.LSTM.BackwardWeight(q)
	weight := device.Product{M: l.Units, N: l.LSTM.Hidden, K: p.Size.Rows(), TransA: true, Accumulate: true}
	d.Do(&device.MatMul{C: p.Grads[attendQuery], A: kept.query, B: saved.y, Product: weight})
	weight.N = l.Keys
	d.Do(&device.MatMul{C: p.Grads[attendKey], A: kept.key, B: encoder, Product: weight})
	d.Do(&device.WeightNormBackward{
		DDirection: p.Grads[attendDirection], DLength: p.Grads[attendLength], DV: kept.v, Direction: p.Params[attendDirection],
		Length: p.Params[attendLength],
	})
	d.Do(&device.SumRows{Sum: p.Grads[attendBias], X: kept.query})
}
