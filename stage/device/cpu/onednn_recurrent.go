//go:build onednn && cgo && linux && amd64

package cpu

/*
#include "device.h"
*/
import "C"

import "github.com/avgpipe/avgpipe/stage/device"

// lstmKey is everything that the products of an LSTM are built for.
type lstmKey struct {
	b, t, h int
	bf16    C.int // the weights
}

// lstm returns the products for a shape and a type of weights.
func (d *Device) lstm(op device.Op, l device.LSTMShape, weight device.Mem) *C.struct_avg_lstm {
	return built(d, op, d.lstms, lstmKey{l.B, l.T, l.H, brain(weight)}, func(p **C.struct_avg_lstm) C.int {
		return C.avg_lstm_new(d.c, size(l.B), size(l.T), size(l.H), brain(weight), p)
	})
}

// doRecurrent runs the operations of recurrent networks. It reports whether op is one.
func (d *Device) doRecurrent(op device.Op) bool {
	switch o := op.(type) {
	case *device.LSTM:
		if p := d.lstm(o, o.LSTMShape, o.Weight); p != nil {
			d.ended(o, C.avg_lstm(d.c, p, C.struct_lstm{
				out: floats(o.Out), gates: floats(o.Gates), cells: floats(o.Cells), previous: o.Previous.Pointer(), weight: o.Weight.Pointer(),
				before: floats(o.Before), mask: integers(o.Mask), out_stride: size(o.OutStride), reverse: truth(o.Reverse),
			}))
		}
	case *device.LSTMBackward:
		if p := d.lstm(o, o.LSTMShape, o.Weight); p != nil {
			d.ended(o, C.avg_lstm_backward(d.c, p, C.struct_lstm{
				dgates: floats(o.DGates), carry: floats(o.Carry), dout: floats(o.DOut), gates: floats(o.Gates), cells: floats(o.Cells),
				weight: o.Weight.Pointer(), mask: integers(o.Mask), out_stride: size(o.OutStride), reverse: truth(o.Reverse),
			}))
		}
	case *device.AdditiveAttention:
		C.avg_additive(d.c, floats(o.Probabilities), floats(o.Q), floats(o.K), floats(o.V), integers(o.Mask), size(o.B), size(o.T), size(o.N))
	case *device.AdditiveAttentionBackward:
		C.avg_additive_backward(d.c, floats(o.DQ), floats(o.DK), floats(o.DV), floats(o.DProbabilities), floats(o.Probabilities), floats(o.Q),
			floats(o.K), floats(o.V), size(o.B), size(o.T), size(o.N))
	case *device.WeightNorm:
		C.avg_weight_norm(d.c, floats(o.V), floats(o.Direction), floats(o.Length), size(o.V.Len()))
	case *device.WeightNormBackward:
		C.avg_weight_norm_backward(d.c, floats(o.DDirection), floats(o.DLength), floats(o.DV), floats(o.Direction), floats(o.Length), size(o.DV.Len()))
	case *device.CopyColumns:
		c := o.Columns
		C.avg_copy_columns(d.c, floats(o.Y), floats(o.X), size(c.Rows), size(c.Columns), size(c.YStride), size(c.XStride), truth(c.Add))
	default:
		return false
	}
	return true
}
