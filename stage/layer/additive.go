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

// Describe implements Layer: the parameters are the LSTM's; then the projections of query and key, and direction, length and bias of the score.
func (l *AttendingLSTM) Describe(s Size) Description {
	n, path := l.Units, l.Path+".attn."
	ps := append(Params(l.LSTM),
		Param{Name: path + "linear_query.weight", Shape: []int{n, l.LSTM.Hidden}, Init: l.Init, Decay: true, Product: true, Fresh: true},
		Param{Name: path + "linear_key.weight", Shape: []int{n, l.Keys}, Init: l.Init, Decay: true, Product: true, Fresh: true},
		Param{Name: path + "linear_att", Shape: []int{n}, Init: l.Init},
		Param{Name: path + "normalize_scalar", Shape: []int{1}, Init: Init{Mean: 1 / math.Sqrt(float64(n))}},
		Param{Name: path + "normalize_bias", Shape: []int{n}})
	in := []Port{
		{Name: "encoder", Type: device.F32, Elements: s.Rows() * l.Keys},
		{Name: "mask", Type: device.I32, Elements: s.Rows()},
		{Name: "target", Type: device.F32, Elements: s.Rows() * l.LSTM.In},
	}
	return Description{l.Path, ps, in, append(row("y", s, l.LSTM.Hidden), row("context", s, l.Keys)...)}
}

// project is a product of R rows with a weight stored (out,in).
func project(s Size, in, out int) device.Product {
	return device.Product{M: s.Rows(), N: out, K: in, TransB: true}
}

// sample is the part of x (B,T,columns) that is of sample n.
func sample(x device.Mem, s Size, n int) device.Mem {
	length := x.Len() / s.B
	return x.Slice(n*length, length)
}

// each writes a product of its own for each sample.
func each(b *Builder, c, x, y device.Mem, m device.Product) {
	for n := range b.B {
		b.Do(&device.MatMul{C: sample(c, b.Size, n), A: sample(x, b.Size, n), B: sample(y, b.Size, n), Product: m})
	}
}

// score is the attention's score with what it is made of: the projections (R,N), its vector (N) and the probabilities (R,T).
type score struct {
	Tensors
	shape                        device.Additive
	query, key, v, probabilities device.Mem
}

// Emit implements Layer.
func (l *AttendingLSTM) Emit(b *Builder, t Tensors, in []device.Mem) (out []device.Mem, backward Backward) {
	encoder := in[0]
	y, backLSTM := l.LSTM.emit(b, t, b.drop(in[2], l.Path, l.Dropout, l.LSTM.In), device.Mem{})
	a := l.attend(b, t, y, encoder, in[1])
	context, probabilities, values := b.Floats(l.Keys), b.narrow(a.probabilities), b.narrow(encoder)
	each(b, context, probabilities, values, device.Product{M: b.T, N: l.Keys, K: b.T})
	return []device.Mem{y, context}, func(dout []device.Mem) []device.Mem {
		dy, dencoder := l.attendBackward(b, a, y, encoder, dout)
		return []device.Mem{dencoder, {}, b.drop(backLSTM(dy), l.Path, l.Dropout, l.LSTM.In)}
	}
}

// attend computes the probabilities with which positions of the encoder are attended to.
func (l *AttendingLSTM) attend(b *Builder, t Tensors, y, encoder, mask device.Mem) score {
	a := score{
		Tensors: t, shape: device.Additive{B: b.B, T: b.T, N: l.Units, Mask: mask},
		query: b.Floats(l.Units), key: b.Floats(l.Units), v: b.New(device.F32, l.Units), probabilities: b.Floats(b.T),
	}
	toUnits := project(b.Size, l.LSTM.Hidden, l.Units)
	toUnits.Bias = t.Params[attendBias]
	b.Do(&device.MatMul{C: a.query, A: b.narrow(y), B: t.Params[attendQuery], Product: toUnits})
	b.Do(&device.MatMul{C: a.key, A: b.narrow(encoder), B: t.Params[attendKey], Product: project(b.Size, l.Keys, l.Units)})
	b.Do(&device.WeightNorm{V: a.v, Direction: t.Params[attendDirection], Length: t.Params[attendLength]})
	b.Do(&device.AdditiveAttention{Probabilities: a.probabilities, Q: a.query, K: a.key, V: a.v, Additive: a.shape})
	return a
}

// attendBackward gives the gradients of y and of the encoder's output from those of y and of the context.
func (l *AttendingLSTM) attendBackward(b *Builder, a score, y, encoder device.Mem, dout []device.Mem) (dy, dencoder device.Mem) {
	s := b.Size
	dencoder, dscores := b.Like(encoder), b.Like(a.probabilities)
	probabilities, values, dcontexts := b.narrow(a.probabilities), b.narrow(encoder), b.narrow(dout[1])
	each(b, dscores, dcontexts, values, device.Product{M: s.T, N: s.T, K: l.Keys, TransB: true})
	each(b, dencoder, probabilities, dcontexts, device.Product{M: s.T, N: l.Keys, K: s.T, TransA: true})
	dquery, dkey, dv := b.Like(a.query), b.Like(a.key), b.Like(a.v)
	b.Do(&device.AdditiveAttentionBackward{
		DQ: dquery, DK: dkey, DV: dv, DProbabilities: dscores, Probabilities: a.probabilities, Q: a.query, K: a.key, V: a.v, Additive: a.shape,
	})
	b.Do(&device.SumRows{Sum: a.Grads[attendBias], X: dquery})
	dquery, dkey = b.narrow(dquery), b.narrow(dkey)
	b.Do(&device.MatMul{
		C: dencoder, A: dkey, B: a.Params[attendKey], Product: device.Product{M: s.Rows(), N: l.Keys, K: l.Units, Accumulate: true},
	})
	dy = b.Like(y)
	b.Do(&device.Copy{Y: dy, X: dout[0]})
	b.Do(&device.MatMul{
		C: dy, A: dquery, B: a.Params[attendQuery], Product: device.Product{M: s.Rows(), N: l.LSTM.Hidden, K: l.Units, Accumulate: true},
	})
	weight := device.Product{M: l.Units, N: l.LSTM.Hidden, K: s.Rows(), TransA: true, Accumulate: true}
	b.Do(&device.MatMul{C: a.Grads[attendQuery], A: dquery, B: b.narrow(y), Product: weight})
	weight.N = l.Keys
	b.Do(&device.MatMul{C: a.Grads[attendKey], A: dkey, B: values, Product: weight})
	b.Do(&device.WeightNormBackward{
		DDirection: a.Grads[attendDirection], DLength: a.Grads[attendLength], DV: dv, Direction: a.Params[attendDirection],
		Length: a.Params[attendLength],
	})
	return dy, dencoder
}
