package emulated

import "github.com/avgpipe/avgpipe/stage/device"

// AttentionSaved implements device.Device: a number a row and head, as what recomputes the scores keeps.
func (d *Device) AttentionSaved(a device.Attention) int { return a.B * a.H * a.T }

// Attention implements device.Device: two products of the scores that a position sees.
func (d *Device) Attention(out, saved, q, k, v device.Mem, a device.Attention) {
	a.CheckForward(out, saved, q, k, v, d.AttentionSaved(a))
	d.compute(scores(a))
}

// AttentionBackward implements device.Device: four products, as package layer counts them; the scores that are computed again
// are not counted.
func (d *Device) AttentionBackward(dq, dk, dv, dout, q, k, v, out, saved device.Mem, a device.Attention) {
	a.CheckBackward(dq, dk, dv, dout, q, k, v, out, saved, d.AttentionSaved(a))
	d.compute(2 * scores(a))
}

func scores(a device.Attention) float64 {
	return 4 * float64(a.B) * float64(a.H) * float64(a.S) * a.Pairs()
}

// RMSNorm implements device.Device.
func (d *Device) RMSNorm(y, rstd, x, weight device.Mem, rows, columns int, _ float32) {
	device.CheckRMSNorm(y, rstd, x, weight, rows, columns)
	d.move(y, rstd, x, weight)
}

// RMSNormBackward implements device.Device.
func (d *Device) RMSNormBackward(dx, dy, x, rstd, weight, plus device.Mem, rows, columns int) {
	device.CheckRMSNormBackward(dx, dy, x, rstd, weight, plus, rows, columns)
	d.move(dx, dy, x, rstd, weight, plus)
}

// RMSNormBackwardWeight implements device.Device.
func (d *Device) RMSNormBackwardWeight(dweight, dy, x, rstd device.Mem, rows, columns int) {
	device.CheckRMSNormBackwardWeight(dweight, dy, x, rstd, rows, columns)
	d.move(dweight, dy, x, rstd)
}

// Rotate implements device.Device.
func (d *Device) Rotate(y, x device.Mem, r device.Rotation) {
	r.Check(y, x)
	d.move(y, x)
}

// SwiGLU implements device.Device.
func (d *Device) SwiGLU(y, gate, up device.Mem) {
	device.CheckSame("SwiGLU", y, gate, up)
	d.move(y, gate, up)
}

// SwiGLUBackward implements device.Device.
func (d *Device) SwiGLUBackward(dgate, dup, dy, gate, up device.Mem) {
	device.CheckSame("SwiGLUBackward", dgate, dup, dy, gate, up)
	d.move(dgate, dup, dy, gate, up)
}

// GELUErf implements device.Device.
func (d *Device) GELUErf(y, x device.Mem) {
	device.CheckSame("GELUErf", y, x)
	d.move(y, x)
}

// GELUErfBackward implements device.Device.
func (d *Device) GELUErfBackward(dx, dy, x device.Mem) {
	device.CheckSame("GELUErfBackward", dx, dy, x)
	d.move(dx, dy, x)
}

// Tanh implements device.Device.
func (d *Device) Tanh(y, x device.Mem) {
	same("Tanh", y, x)
	d.move(y, x)
}

// TanhBackward implements device.Device.
func (d *Device) TanhBackward(dx, dy, y device.Mem) {
	same("TanhBackward", dx, dy, y)
	d.move(dx, dy, y)
}

// AddRows implements device.Device.
func (d *Device) AddRows(y, table, ids device.Mem, rows, width int) {
	device.CheckAddRowsShape(y, table, ids, rows, width)
	d.look(y, table, ids)
}
