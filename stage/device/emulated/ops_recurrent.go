package emulated

import "github.com/avgpipe/avgpipe/stage/device"

// LSTM implements device.Device: at every position a product with the recurrent weights.
func (d *Device) LSTM(out, gates, cells, previous, weight device.Mem, l device.LSTM) {
	l.CheckForward(out, gates, cells, previous, weight)
	d.compute(recurrent(l))
}

// LSTMBackward implements device.Device. The gradient of the recurrent weights is a product of its own.
func (d *Device) LSTMBackward(dgates, carry, dout, gates, cells, weight device.Mem, l device.LSTM) {
	l.CheckBackward(dgates, carry, dout, gates, cells, weight)
	d.compute(recurrent(l))
}

func recurrent(l device.LSTM) float64 { return 8 * float64(l.B*l.T) * float64(l.H) * float64(l.H) }

// AdditiveAttention implements device.Device. A hyperbolic tangent counts as 32 FLOPs, as package layer has it.
func (d *Device) AdditiveAttention(probabilities, q, k, v device.Mem, a device.Additive) {
	a.CheckForward(probabilities, q, k, v)
	d.compute(tangents(a))
}

// AdditiveAttentionBackward implements device.Device.
func (d *Device) AdditiveAttentionBackward(dq, dk, dv, dprobabilities, probabilities, q, k, v device.Mem, a device.Additive) {
	a.CheckBackward(dq, dk, dv, dprobabilities, probabilities, q, k, v)
	d.compute(2 * tangents(a))
}

func tangents(a device.Additive) float64 {
	return 32 * float64(a.B) * float64(a.T) * float64(a.T) * float64(a.N)
}

// WeightNorm implements device.Device.
func (d *Device) WeightNorm(v, direction, length device.Mem) {
	device.CheckWeightNorm("WeightNorm", v, direction, length)
	d.move(v, direction, length)
}

// WeightNormBackward implements device.Device.
func (d *Device) WeightNormBackward(ddirection, dlength, dv, direction, length device.Mem) {
	device.CheckWeightNorm("WeightNormBackward", dv, direction, length)
	device.CheckWeightNorm("WeightNormBackward", dv, ddirection, dlength)
	d.move(ddirection, dlength, dv, direction, length)
}

// CopyColumns implements device.Device.
func (d *Device) CopyColumns(y, x device.Mem, c device.Columns) {
	c.Check(y, x)
	d.moveBytes(2 * c.Rows * c.Columns * y.Type().Bytes())
}

// DropRows implements device.Device.
func (d *Device) DropRows(y, x, ids device.Mem, o device.Dropout) {
	o.CheckRowsShape(y, x, ids)
	d.move(y, x, ids)
}
