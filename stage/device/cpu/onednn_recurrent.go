//go:build onednn && cgo && linux && amd64

package cpu

/*
#include "recurrent_ops.h"
*/
import "C"

import (
	"fmt"

	"github.com/avgpipe/avgpipe/stage/device"
)

// lstmKey is everything that the products of an LSTM are built for.
type lstmKey struct{ b, t, h int }

// lstms holds them by shape.
type lstms map[lstmKey]*C.struct_avg_lstm

// close frees the products.
func (l lstms) close() {
	for _, products := range l {
		C.avg_lstm_free(products)
	}
}

// lstm returns the products for a shape, built at its first use; nil when that failed, which Synchronize then reports.
func (d *Device) lstm(l device.LSTM) *C.struct_avg_lstm {
	key := lstmKey{b: l.B, t: l.T, h: l.H}
	if p := d.lstms[key]; p != nil {
		return p
	}
	var p *C.struct_avg_lstm
	if status := C.avg_lstm_new(d.c, size(l.B), size(l.T), size(l.H), &p); status != 0 {
		d.fail(fmt.Errorf("cpu device: build the products of an LSTM of B=%d T=%d H=%d: %w", l.B, l.T, l.H, statusError(status)))
		return nil
	}
	d.lstms[key] = p
	return p
}

// lstmStatus keeps a failure of an LSTM for Synchronize.
func (d *Device) lstmStatus(op string, l device.LSTM, status C.int) {
	if status != 0 {
		d.fail(fmt.Errorf("cpu device: %s of B=%d T=%d H=%d: %w", op, l.B, l.T, l.H, statusError(status)))
	}
	d.yielder.yield()
}

// LSTM implements device.Device.
func (d *Device) LSTM(out, gates, cells, previous, weight device.Mem, l device.LSTM) {
	l.CheckForward(out, gates, cells, previous, weight)
	if p := d.lstm(l); p != nil {
		d.lstmStatus("LSTM", l, C.avg_lstm_run(d.c, p, floats(out), floats(gates), floats(cells), floats(previous), floats(weight),
			integers(l.Mask), size(l.OutStride), truth(l.Reverse)))
	}
}

// LSTMBackward implements device.Device.
func (d *Device) LSTMBackward(dgates, carry, dout, gates, cells, weight device.Mem, l device.LSTM) {
	l.CheckBackward(dgates, carry, dout, gates, cells, weight)
	if p := d.lstm(l); p != nil {
		d.lstmStatus("LSTM backward", l, C.avg_lstm_run_backward(d.c, p, floats(dgates), floats(carry), floats(dout), floats(gates),
			floats(cells), floats(weight), integers(l.Mask), size(l.OutStride), truth(l.Reverse)))
	}
}

// AdditiveAttention implements device.Device.
func (d *Device) AdditiveAttention(probabilities, q, k, v device.Mem, a device.Additive) {
	a.CheckForward(probabilities, q, k, v)
	C.avg_additive(d.c, floats(probabilities), floats(q), floats(k), floats(v), integers(a.Mask), size(a.B), size(a.T), size(a.N))
}

// AdditiveAttentionBackward implements device.Device.
func (d *Device) AdditiveAttentionBackward(dq, dk, dv, dprobabilities, probabilities, q, k, v device.Mem, a device.Additive) {
	a.CheckBackward(dq, dk, dv, dprobabilities, probabilities, q, k, v)
	C.avg_additive_backward(d.c, floats(dq), floats(dk), floats(dv), floats(dprobabilities), floats(probabilities), floats(q),
		floats(k), floats(v), size(a.B), size(a.T), size(a.N))
}

// WeightNorm implements device.Device.
func (d *Device) WeightNorm(v, direction, length device.Mem) {
	device.CheckWeightNorm("WeightNorm", v, direction, length)
	C.avg_weight_norm(d.c, floats(v), floats(direction), floats(length), size(v.Len()))
}

// WeightNormBackward implements device.Device.
func (d *Device) WeightNormBackward(ddirection, dlength, dv, direction, length device.Mem) {
	device.CheckWeightNorm("WeightNormBackward", dv, direction, length)
	device.CheckWeightNorm("WeightNormBackward", dv, ddirection, dlength)
	C.avg_weight_norm_backward(d.c, floats(ddirection), floats(dlength), floats(dv), floats(direction), floats(length), size(dv.Len()))
}

// CopyColumns implements device.Device.
func (d *Device) CopyColumns(y, x device.Mem, c device.Columns) {
	c.Check(y, x)
	C.avg_copy_columns(d.c, floats(y), floats(x), size(c.Rows), size(c.Columns), size(c.YStride), size(c.XStride), truth(c.Add))
}

// DropRows implements device.Device.
func (d *Device) DropRows(y, x, ids device.Mem, o device.Dropout) {
	o.CheckRows(y, x, ids)
	threshold, scale := o.Derived()
	C.avg_drop_rows(d.c, floats(y), floats(x), integers(ids), size(o.Rows), size(o.Columns),
		C.struct_dropout{key: C.uint64_t(o.Key), threshold: C.uint32_t(threshold), scale: C.float(scale)})
}

// SmoothedCrossEntropy implements device.Device.
func (d *Device) SmoothedCrossEntropy(losses, dlogits, logits, targets device.Mem, rows, vocabulary int, scale, smoothing float32) {
	device.CheckCrossEntropy(losses, dlogits, logits, targets, rows, vocabulary)
	C.avg_smoothed(d.c, floats(losses), floats(dlogits), floats(logits), integers(targets), size(rows), size(vocabulary),
		C.float(scale), C.float(smoothing))
}

// ASGDStep implements device.Device.
func (d *Device) ASGDStep(p, g, s, delta device.Mem, a device.ASGD) {
	device.CheckASGD(p, g, s, delta)
	C.avg_asgd(d.c, floats(p), floats(g), floats(s), floats(delta), size(p.Len()), C.struct_asgd{
		learning_rate: C.float(a.LearningRate), weight_decay: C.float(a.WeightDecay), grad_scale: C.float(a.GradScale),
		share: C.float(a.Share),
	})
}
