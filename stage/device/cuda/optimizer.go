//go:build cuda && cgo && linux && amd64

package cuda

import "github.com/avgpipe/avgpipe/stage/device"

func (d *Device) squaredNorm(o *device.SquaredNorm) {
	d.launch("squared_norm").mem(o.Sum).squares().mem(o.X).int(o.X.Len()).eachPack(o.X.Len())
}

func (d *Device) adamStep(o *device.AdamStep) {
	coupled, keep, rate, root := o.Derived()
	d.launch("adam_step").mem(o.P).mem(o.M).mem(o.V).mem(o.G).mem(o.Delta).mem(o.Copy16).mem(o.Sum).squares().float(o.Beta1).float(o.Beta2).
		float(o.Epsilon).float(coupled).now(word(o.GradScale), word(keep), word(rate), word(root)).int(o.P.Len()).eachPack(o.P.Len())
}

func (d *Device) sgdStep(o *device.SGDStep) {
	m := o.M
	if o.Momentum == 0 {
		m = device.Mem{}
	}
	d.launch("sgd_step").mem(o.P).mem(m).mem(o.G).mem(o.Delta).mem(o.Copy16).mem(o.Sum).squares().float(o.Momentum).
		float(o.WeightDecay).flag(o.Nesterov).now(word(o.LearningRate), word(o.GradScale), truth(o.First)).int(o.P.Len()).eachPack(o.P.Len())
}

func (d *Device) asgdStep(o *device.ASGDStep) {
	d.launch("asgd_step").mem(o.P).mem(o.S).mem(o.G).mem(o.Delta).mem(o.Sum).squares().float(o.WeightDecay).
		now(word(o.LearningRate), word(o.GradScale), word(o.Share)).int(o.P.Len()).eachPack(o.P.Len())
}
