package ref

import (
	"math"

	"github.com/avgpipe/avgpipe/stage/device"
)

// AdamStep implements device.Device.
func (d *Device) AdamStep(p, g, m, v, delta device.Mem, a device.Adam) {
	ps, gs := pair("AdamStep", p, g)
	_, ms := pair("AdamStep", p, m)
	_, vs := pair("AdamStep", p, v)
	deltas := optional("AdamStep", p, delta)
	coupled, keep, rate, root := a.Derived()
	for i, before := range ps {
		grad := float32(a.GradScale*gs[i]) + float32(coupled*before)
		ms[i] = float32(a.Beta1*ms[i]) + float32((1-a.Beta1)*grad)
		vs[i] = float32(a.Beta2*vs[i]) + float32((1-a.Beta2)*float32(grad*grad))
		denominator := float32(math.Sqrt(float64(vs[i])))/root + a.Epsilon
		ps[i] = float32(keep*before) - float32(rate*float32(ms[i]/denominator))
		if deltas != nil {
			deltas[i] += ps[i] - before
		}
	}
}

// SGDStep implements device.Device.
func (d *Device) SGDStep(p, g, m, delta device.Mem, s device.SGD) {
	ps, gs := pair("SGDStep", p, g)
	var ms []float32
	if s.Momentum != 0 {
		_, ms = pair("SGDStep", p, m)
	}
	deltas := optional("SGDStep", p, delta)
	for i, before := range ps {
		update := float32(s.GradScale*gs[i]) + float32(s.WeightDecay*before)
		if ms != nil {
			grad := update
			if !s.First {
				update = float32(s.Momentum*ms[i]) + grad
			}
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
}

// optional returns the elements of x, as many as p has, or nil when x is absent.
func optional(op string, p, x device.Mem) []float32 {
	if x.Absent() {
		return nil
	}
	_, xs := pair(op, p, x)
	return xs
}
