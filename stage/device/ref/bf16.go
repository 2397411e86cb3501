package ref

import (
	"github.com/avgpipe/avgpipe/stage/device"
	"github.com/avgpipe/avgpipe/stage/flat"
)

// Operations compute in float32 whatever their operands are: BF16 operands are widened to scratch memory first, and results
// rounded once at the end.

// read returns the elements of m as float32: m's own memory, or a widened copy in scratch of the given number.
func (d *Device) read(scratch int, m device.Mem) []float32 {
	if m.Type() == device.F32 {
		return m.F32()
	}
	wide := grow(d.wide[scratch], m.Len())
	d.wide[scratch] = wide
	for i, v := range m.BF16() {
		wide[i] = flat.WidenBF16(v)
	}
	return wide
}

// result is read for an operand that is written: finish with the same number brings it back.
func (d *Device) result(scratch int, m device.Mem) []float32 { return d.read(scratch, m) }

// finish rounds what result returned to m.
func (d *Device) finish(scratch int, m device.Mem) { d.finishRows(scratch, m, 1, 0, m.Len()) }

// finishRows is finish for rows of width elements, stride apart: what lies between them belongs to other operands.
func (d *Device) finishRows(scratch int, m device.Mem, rows, stride, width int) {
	if m.Type() == device.F32 {
		return
	}
	narrow, wide := m.BF16(), d.wide[scratch]
	for r := range rows {
		for i := r * stride; i < r*stride+width; i++ {
			narrow[i] = flat.RoundBF16(wide[i])
		}
	}
}

// roundTo rounds numbers to those that elements of type t can hold.
func roundTo(t device.Type, x []float32) {
	if t == device.F32 {
		return
	}
	for i, v := range x {
		x[i] = flat.WidenBF16(flat.RoundBF16(v))
	}
}
