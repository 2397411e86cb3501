//go:build cuda && cgo && linux && amd64

package cuda

import (
	"errors"

	"github.com/avgpipe/avgpipe/stage/device"
	"github.com/avgpipe/avgpipe/stage/device/cuda/dnn"
)

// taken is a convolution that cuDNN computes. There it multiplies F32 alone, so operands of BF16 are widened; TF32 holds them as they are, so that
// matrix units multiply them exactly, and sums are F32.
type taken struct {
	lowering
	plan *dnn.Plan
}

// taken is the convolution by cuDNN. It is false where products compute it: where there is no cuDNN, or it does not take the shape, and where the
// rows of x are the windows, which one product multiplies as they are.
func (d *Device) taken(l lowering) (taken, bool) {
	if d.dnn == nil || l.direct() {
		return taken{}, false
	}
	plan := d.dnn.Plan(l.form, l.ConvolutionShape, l.operands == device.BF16 || d.tf32)
	return taken{l, plan}, plan != nil
}

// convolutionScratch is the scratch of a convolution, however it is computed.
func (d *Device) convolutionScratch(form dnn.Form, s device.ConvolutionShape, operands device.Type) int {
	d.enter()
	defer d.leave()
	l := lower(form, s, operands)
	if t, ok := d.taken(l); ok {
		return t.bytes()
	}
	return l.bytes()
}

// asStored reports whether cuDNN takes the weights, or adds to their gradient, where they are.
func (t taken) asStored() bool {
	return t.window == 1 && (t.operands == device.F32 || t.form == dnn.BackwardWeight)
}

// bytes is the scratch: weights in the order of windows, operands that are widened, and cuDNN's own.
func (t taken) bytes() int {
	bytes := room(device.F32, t.words())
	if !t.asStored() {
		bytes += room(device.F32, t.Out*t.columns())
	}
	if t.operands == device.BF16 && t.form != dnn.Backward {
		bytes += room(device.F32, t.B*t.Height*t.Width*t.In)
	}
	if t.operands == device.BF16 && t.form != dnn.Forward {
		bytes += room(device.F32, t.B*t.pixels*t.Out)
	}
	return bytes
}

// words is cuDNN's own scratch.
func (t taken) words() int { return (t.plan.Workspace() + device.F32.Bytes() - 1) / device.F32.Bytes() }

// byLibrary computes one of x, y and weight from the others with cuDNN. It is false where products are to.
func (d *Device) byLibrary(op device.Op, l lowering, x, y, weight device.Mem) bool {
	t, ok := d.taken(l)
	return ok && d.run(op, t, x, y, weight)
}

// run is byLibrary of what cuDNN has taken, which it may yet refuse: then it has done nothing, and products compute the shape from now on.
func (d *Device) run(op device.Op, t taken, x, y, weight device.Mem) bool {
	s, ok := d.scratchOf(op)
	if !ok {
		return true // the failure is kept
	}
	filter := weight
	if !t.asStored() {
		filter = s.take(device.F32, weight.Len())
	}
	if t.form != dnn.BackwardWeight && !t.asStored() {
		d.layFilter(filter, weight, t.ConvolutionShape)
	}
	if t.form != dnn.Backward {
		x = d.widened(&s, x)
	}
	if t.form != dnn.Forward {
		y = d.widened(&s, y)
	}
	accumulate := t.form == dnn.BackwardWeight && t.asStored()
	if t.form == dnn.Forward && !t.Bias.Absent() {
		d.fillRows(y, t.Bias)
		accumulate = true
	}
	err := d.dnn.Run(t.plan, accumulate, x, y, filter, s.take(device.F32, t.words()))
	if errors.Is(err, dnn.ErrRefused) {
		d.dnn.Forget(t.plan)
		return false
	}
	d.check("convolution", err)
	if t.form == dnn.BackwardWeight && !t.asStored() {
		d.addFilter(weight, filter, t.ConvolutionShape)
	}
	return true
}

// widened is m in F32: itself, or a copy.
func (d *Device) widened(s *scratch, m device.Mem) device.Mem {
	if m.Type() == device.F32 {
		return m
	}
	wide := s.take(device.F32, m.Len())
	d.copyTo(wide, m)
	return wide
}
