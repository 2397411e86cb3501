package ref

import (
	"math"

	"github.com/avgpipe/avgpipe/stage/device"
)

// adamStep runs device.AdamStep.
func (d *Device) adamStep(a *device.AdamStep) {
	ps, gs, ms, vs, deltas := a.P.F32(), a.G.F32(), a.M.F32(), a.V.F32(), optional(a.Delta)
	coupled, keep, rate, root := a.Derived()
	for i, before := range ps {
		grad := float32(a.GradScale*gs[i]) + float32(coupled*before)
		ms[i] = device.Flush(float32(a.Beta1*ms[i]) + float32((1-a.Beta1)*grad))
		vs[i] = device.Flush(float32(a.Beta2*vs[i]) + float32((1-a.Beta2)*float32(grad*grad)))
		denominator := float32(math.Sqrt(float64(vs[i])))/root + a.Epsilon
		ps[i] = float32(keep*before) - float32(rate*float32(ms[i]/denominator))
		if deltas != nil {
			deltas[i] += ps[i] - before
		}
	}
	d.stepped(a.P, a.G, a.Copy16, a.Sum)
}

// sgdStep runs device.SGDStep.
func (d *Device) sgdStep(s *device.SGDStep) {
	ps, gs, deltas := s.P.F32(), s.G.F32(), optional(s.Delta)
	var ms []float32
	if s.Momentum != 0 {
		ms = s.M.F32()
	}
	for i, before := range ps {
		update := float32(s.GradScale*gs[i]) + float32(s.WeightDecay*before)
		if ms != nil {
			grad := update
			if !s.First {
				update = float32(s.Momentum*ms[i]) + grad
			}
			update = device.Flush(update)
			ms[i] = update
			if s.Nesterov {
				update = grad + float32(s.Momentum*update)
			}
		}
		ps[i] = before - float32(s.LearningRate*update)
		if deltas != nil {
			deltas[i] += ps[i] - before
		}
	}
	d.stepped(s.P, s.G, s.Copy16, s.Sum)
}

// asgdStep runs device.ASGDStep.
func (d *Device) asgdStep(a *device.ASGDStep) {
	gs, ss, deltas := a.G.F32(), a.S.F32(), optional(a.Delta)
	for i, before := range a.P.F32() {
		grad := float32(a.GradScale*gs[i]) + float32(a.WeightDecay*(before+ss[i]))
		ahead := ss[i] - float32(a.LearningRate*grad)
		move := float32(a.Share * ahead)
		after := before + move
		a.P.F32()[i], ss[i] = after, device.Flush(ahead-move)
		if deltas != nil {
			deltas[i] += after - before
		}
	}
	d.stepped(a.P, a.G, device.Mem{}, a.Sum)
}

// stepped does what a step does beside the update.
func (d *Device) stepped(p, g, copy16, sum device.Mem) {
	if !copy16.Absent() {
		d.copy(&device.Copy{Y: copy16, X: p})
	}
	if !sum.Absent() {
		sum.F64()[0] += inner(g, g)
	}
}

// optional is the elements of x; nil when it is absent.
func optional(x device.Mem) []float32 {
	if x.Absent() {
		return nil
	}
	return x.F32()
}
