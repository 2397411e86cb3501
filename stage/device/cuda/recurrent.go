//go:build cuda && cgo && linux && amd64

package cuda

import "github.com/avgpipe/avgpipe/stage/device"

func (d *Device) lstm(o *device.LSTM) {
	d.launch("lstm").mem(o.Out).mem(o.Gates).mem(o.Cells).mem(o.Previous).typed(o.Weight).mem(o.Before).mem(o.Mask).int(o.T).int(o.H).
		flag(o.Reverse).int(o.OutStride).blocks(o.B)
}

func (d *Device) lstmBackward(o *device.LSTMBackward) {
	d.launch("lstm_backward").mem(o.DGates).mem(o.Carry).mem(o.DOut).mem(o.Gates).mem(o.Cells).typed(o.Weight).mem(o.Mask).int(o.B).int(o.T).
		int(o.H).flag(o.Reverse).int(o.OutStride).blocks(o.B)
}

func (d *Device) additiveAttention(o *device.AdditiveAttention) {
	d.launch("additive_attention").mem(o.Probabilities).mem(o.Q).mem(o.K).mem(o.V).mem(o.Mask).int(o.T).int(o.N).rows(o.B*o.T, o.T)
}

func (d *Device) additiveAttentionBackward(o *device.AdditiveAttentionBackward) {
	rows := o.B * o.T
	n := rows * o.N
	d.launch("additive_scores").mem(o.DProbabilities).mem(o.Probabilities).int(o.T).rows(rows, o.T)
	d.launch("additive_backward").mem(o.DQ).mem(o.DProbabilities).mem(o.Q).mem(o.K).mem(o.V).flag(false).int(o.T).int(o.N).int(n).each(n)
	d.launch("additive_backward").mem(o.DK).mem(o.DProbabilities).mem(o.K).mem(o.Q).mem(o.V).flag(true).int(o.T).int(o.N).int(n).each(n)
	d.launch("additive_backward_units").mem(o.DV).mem(o.DProbabilities).mem(o.Q).mem(o.K).int(o.T).int(o.N).int(rows*o.T).rows(o.N, rows*o.T)
}

func (d *Device) weightNorm(o *device.WeightNorm) {
	d.launch("weight_norm").mem(o.V).mem(o.Direction).mem(o.Length).int(o.V.Len()).blocks(1)
}

func (d *Device) weightNormBackward(o *device.WeightNormBackward) {
	d.launch("weight_norm_backward").mem(o.DDirection).mem(o.DLength).mem(o.DV).mem(o.Direction).mem(o.Length).int(o.DV.Len()).blocks(1)
}
