package emulated

import "github.com/avgpipe/avgpipe/stage/device"

// same panics unless all operands are F32 and of one length; absent ones in optional are passed over.
func same(op string, first device.Mem, others ...device.Mem) {
	device.Need(op, "operand", first, device.F32, first.Len())
	for _, m := range others {
		device.Need(op, "operand", m, device.F32, first.Len())
	}
}

// sameIfAny is same for an operand that may be absent.
func sameIfAny(op string, first, other device.Mem) {
	if !other.Absent() {
		same(op, first, other)
	}
}

// Zero implements device.Device.
func (d *Device) Zero(x device.Mem) { d.move(x) }

// Copy implements device.Device.
func (d *Device) Copy(y, x device.Mem) {
	device.Need("Copy", "x", x, y.Type(), y.Len())
	d.move(y, x)
}

// Scale implements device.Device.
func (d *Device) Scale(x device.Mem, _ float32) {
	same("Scale", x)
	d.move(x)
}

// Axpy implements device.Device.
func (d *Device) Axpy(y device.Mem, _ float32, x device.Mem) {
	same("Axpy", y, x)
	d.move(y, x)
}

// Lerp implements device.Device.
func (d *Device) Lerp(y device.Mem, _ float32, x device.Mem) {
	same("Lerp", y, x)
	d.move(y, x)
}

// Mul implements device.Device.
func (d *Device) Mul(y, x device.Mem) {
	same("Mul", y, x)
	d.move(y, x)
}

// Convert implements device.Device.
func (d *Device) Convert(y, x device.Mem) {
	device.NeedFloating("Convert", "y", y, x.Len())
	device.NeedFloating("Convert", "x", x, y.Len())
	d.move(y, x)
}

// Add implements device.Device.
func (d *Device) Add(out, a, b device.Mem) {
	for _, m := range []device.Mem{out, a, b} {
		device.NeedFloating("Add", "operand", m, out.Len())
	}
	d.move(out, a, b)
}

// Dot implements device.Device. It is 0.
func (d *Device) Dot(x, y device.Mem) float64 {
	same("Dot", x, y)
	d.move(x, y)
	return 0
}

// MatMul implements device.Device.
func (d *Device) MatMul(c, a, b device.Mem, m device.MatMul) {
	m.Check(c, a, b)
	d.compute(2 * float64(m.M) * float64(m.N) * float64(m.K))
}

// SumRows implements device.Device.
func (d *Device) SumRows(sum, x device.Mem, rows, columns int) {
	device.Need("SumRows", "sum", sum, device.F32, columns)
	device.NeedFloating("SumRows", "x", x, rows*columns)
	d.move(sum, x)
}

// GELU implements device.Device.
func (d *Device) GELU(y, x device.Mem) {
	device.CheckSame("GELU", y, x)
	d.move(y, x)
}

// GELUBackward implements device.Device.
func (d *Device) GELUBackward(dx, dy, x device.Mem) {
	device.CheckSame("GELUBackward", dx, dy, x)
	d.move(dx, dy, x)
}

// LayerNorm implements device.Device.
func (d *Device) LayerNorm(y, mean, rstd, x, weight, bias device.Mem, rows, columns int, _ float32) {
	device.CheckLayerNorm(y, mean, rstd, x, weight, bias, rows, columns)
	d.move(y, mean, rstd, x, weight, bias)
}

// LayerNormBackward implements device.Device.
func (d *Device) LayerNormBackward(dx, dy, x, mean, rstd, weight, plus device.Mem, rows, columns int) {
	device.CheckLayerNormBackward(dx, dy, x, mean, rstd, weight, plus, rows, columns)
	d.move(dx, dy, x, mean, rstd, weight, plus)
}

// LayerNormBackwardWeight implements device.Device.
func (d *Device) LayerNormBackwardWeight(dweight, dbias, dy, x, mean, rstd device.Mem, rows, columns int) {
	device.CheckLayerNormBackwardWeight(dweight, dbias, dy, x, mean, rstd, rows, columns)
	d.move(dweight, dbias, dy, x, mean, rstd)
}

// Embed implements device.Device. Of the tables only the rows that are looked up move. The ids are not looked at, as nobody
// has stored them.
func (d *Device) Embed(out, tokens, positions, ids device.Mem, b, t, width int) {
	device.CheckEmbedShape("Embed", out, tokens, positions, ids, b, t, width)
	d.look(out, positions, ids)
}

// EmbedBackward implements device.Device.
func (d *Device) EmbedBackward(dtokens, dpositions, dout, ids device.Mem, b, t, width int) {
	device.CheckEmbedShape("EmbedBackward", dout, dtokens, dpositions, ids, b, t, width)
	d.look(dout, dpositions, ids)
}

// look queues a look-up of rows in one table, or in two.
func (d *Device) look(rows, second, ids device.Mem) {
	tables := 1
	if !second.Absent() {
		tables = 2
	}
	d.moveBytes((1+tables)*rows.Bytes() + ids.Bytes())
}

// CrossEntropy implements device.Device.
func (d *Device) CrossEntropy(losses, dlogits, logits, targets device.Mem, rows, vocabulary int, _ float32) {
	device.CheckCrossEntropyShape(losses, dlogits, logits, targets, rows, vocabulary)
	d.move(losses, dlogits, logits, targets)
}

// SmoothedCrossEntropy implements device.Device.
func (d *Device) SmoothedCrossEntropy(losses, dlogits, logits, targets device.Mem, rows, vocabulary int, scale, _ float32) {
	d.CrossEntropy(losses, dlogits, logits, targets, rows, vocabulary, scale)
}

// AdamStep implements device.Device.
func (d *Device) AdamStep(p, g, m, v, delta device.Mem, _ device.Adam) {
	same("AdamStep", p, g, m, v)
	sameIfAny("AdamStep", p, delta)
	d.move(p, g, m, v, delta)
}

// SGDStep implements device.Device.
func (d *Device) SGDStep(p, g, m, delta device.Mem, s device.SGD) {
	same("SGDStep", p, g)
	if s.Momentum != 0 {
		same("SGDStep", p, m)
	}
	sameIfAny("SGDStep", p, delta)
	d.move(p, g, m, delta)
}

// ASGDStep implements device.Device.
func (d *Device) ASGDStep(p, g, s, delta device.Mem, _ device.ASGD) {
	device.CheckASGD(p, g, s, delta)
	d.move(p, g, s, delta)
}

// Dropout implements device.Device.
func (d *Device) Dropout(y, x device.Mem, o device.Dropout) {
	o.Check(y, x)
	d.move(y, x)
}
