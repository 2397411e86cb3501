//go:build cuda && cgo && linux && amd64

package cuda

import (
	"github.com/avgpipe/avgpipe/stage/device"
	"github.com/avgpipe/avgpipe/stage/device/cuda/blas"
)

// step is one position of an LSTM: the arguments STEP of kernels/recurrent.cu. It counts positions in the order of the direction.
type step struct{ at, ago, next int }

// stepOf is position n. What is not there is -1.
func stepOf(l device.LSTMShape, n int) step {
	place := func(n int) int {
		switch {
		case n < 0 || n >= l.T:
			return -1
		case l.Reverse:
			return l.T - 1 - n
		}
		return n
	}
	return step{place(n), place(n - 1), place(n + 1)}
}

func (c *call) step(l device.LSTMShape, s step) {
	n := l.B * l.H
	c.int(l.T).int(l.H).int(s.at).int(s.ago).int(s.next).int(l.OutStride).int(n).each(n)
}

// rowsAt are the rows of position t, of n elements each, in m (B,T,n): T n elements apart.
func rowsAt(m device.Mem, t, n int) device.Mem { return m.Slice(t*n, m.Len()-t*n) }

// lstm multiplies and then computes the cells, position by position.
func (d *Device) lstm(o *device.LSTM) {
	l := o.LSTMShape
	if d.blas == nil {
		d.launch("lstm").mem(o.Out).mem(o.Gates).mem(o.Cells).mem(o.Previous).typed(o.Weight).mem(o.Before).mem(o.Mask).int(l.T).int(l.H).
			flag(l.Reverse).int(l.OutStride).blocks(l.B)
		return
	}
	recurrent := device.MatMul{B: o.Weight, Product: device.Product{M: l.B, N: 4 * l.H, K: l.H, TransB: true}}
	for n := range l.T {
		s := stepOf(l, n)
		if n > 0 {
			recurrent.A = rowsAt(o.Previous, s.at, l.H)
			d.check("multiply", d.blas.Apart(rowsAt(o.Gates, s.at, 4*l.H), &recurrent, true, blas.Rows{A: l.T * l.H, C: l.T * 4 * l.H}))
		}
		d.launch("lstm_step").mem(o.Out).mem(o.Gates).mem(o.Cells).typed(o.Previous).mem(o.Before).mem(l.Mask).step(l, s)
	}
}

// lstmBackward computes the cells and then multiplies, from the last position to the first.
func (d *Device) lstmBackward(o *device.LSTMBackward) {
	l := o.LSTMShape
	if d.blas == nil {
		d.launch("lstm_backward").mem(o.DGates).mem(o.Carry).mem(o.DOut).mem(o.Gates).mem(o.Cells).typed(o.Weight).mem(o.Mask).int(l.B).int(l.T).
			int(l.H).flag(l.Reverse).int(l.OutStride).blocks(l.B)
		return
	}
	var factors device.Mem // dgates at a position, where they are rounded
	if o.Weight.Type() == device.BF16 {
		s, ok := d.scratchOf(o)
		if !ok {
			return
		}
		factors = s.take(device.BF16, l.B*4*l.H)
	}
	recurrent := device.MatMul{A: factors, B: o.Weight, Product: device.Product{M: l.B, N: l.H, K: 4 * l.H}}
	rows := blas.Rows{A: 4 * l.H, C: l.H}
	for n := l.T - 1; n >= 0; n-- {
		s := stepOf(l, n)
		d.launch("lstm_step_backward").mem(o.DGates).mem(factors).mem(o.Carry).mem(o.DOut).mem(o.Gates).mem(o.Cells).mem(l.Mask).step(l, s)
		if n == 0 {
			return
		}
		if factors.Absent() {
			recurrent.A, rows.A = rowsAt(o.DGates, s.at, 4*l.H), l.T*4*l.H
		}
		d.check("multiply", d.blas.Apart(o.Carry, &recurrent, false, rows))
	}
}

func (d *Device) additiveAttention(o *device.AdditiveAttention) {
	d.launch("additive_attention").mem(o.Probabilities).mem(o.Q).mem(o.K).mem(o.V).mem(o.Mask).int(o.T).int(o.N).blocks(o.B * o.T)
}

func (d *Device) additiveAttentionBackward(o *device.AdditiveAttentionBackward) {
	s, ok := d.scratchOf(o)
	if !ok {
		return
	}
	rows, n := o.B*o.T, o.DQ.Len()
	parts := s.take(device.F32, n) // of DV, by queries
	d.launch("additive_scores").mem(o.DProbabilities).mem(o.Probabilities).int(o.T).rows(rows, o.T)
	d.launch("additive_backward").mem(o.DQ).mem(parts).mem(o.DProbabilities).mem(o.Q).mem(o.K).mem(o.V).flag(false).int(o.T).int(o.N).int(n).each(n)
	d.launch("additive_backward").mem(o.DK).mem(device.Mem{}).mem(o.DProbabilities).mem(o.K).mem(o.Q).mem(o.V).flag(true).int(o.T).int(o.N).int(n).
		each(n)
	d.zero(&device.Zero{X: o.DV})
	d.sumInto(s, &device.SumRows{Sum: o.DV, X: parts})
}

func (d *Device) weightNorm(o *device.WeightNorm) {
	d.launch("weight_norm").mem(o.V).mem(o.Direction).mem(o.Length).int(o.V.Len()).blocks(1)
}

func (d *Device) weightNormBackward(o *device.WeightNormBackward) {
	d.launch("weight_norm_backward").mem(o.DDirection).mem(o.DLength).mem(o.DV).mem(o.Direction).mem(o.Length).int(o.DV.Len()).blocks(1)
}
