package ref

import "github.com/avgpipe/avgpipe/stage/device"

// ASGDStep implements device.Device.
func (d *Device) ASGDStep(p, g, s, delta device.Mem, a device.ASGD) {
	device.CheckASGD(p, g, s, delta)
	gs, ss, deltas := g.F32(), s.F32(), optional("ASGDStep", p, delta)
	for i, before := range p.F32() {
		grad := float32(a.GradScale*gs[i]) + float32(a.WeightDecay*(before+ss[i]))
		ahead := ss[i] - float32(a.LearningRate*grad)
		move := float32(a.Share * ahead)
		after := before + move
		p.F32()[i], ss[i] = after, ahead-move
		if deltas != nil {
			deltas[i] += after - before
		}
	}
}
