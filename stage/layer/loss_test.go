package layer_test

import (
	"math"
	"testing"

	"github.com/avgpipe/avgpipe/stage/device"
	"github.com/avgpipe/avgpipe/stage/device/ref"
	"github.com/avgpipe/avgpipe/stage/layer"
)

func TestCrossEntropyGradient(t *testing.T) {
	dev, loss, size := ref.New(), layer.Loss{Classes: 5}, layer.Size{B: 2, T: 3}
	rows := loss.Targets(size)
	alloc := func(typ device.Type, n int) device.Mem {
		m, err := dev.Alloc(typ, n)
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	losses, logits, gradient := alloc(device.F32, rows), alloc(device.F32, rows*5), alloc(device.F32, rows*5)
	targets := alloc(device.I32, rows)
	copy(targets.I32(), []int32{0, 4, -1, 2, 2, 1})
	x := logits.F32()
	for i := range x {
		x[i] = float32(math.Sin(float64(3 * i)))
	}
	const scale = 0.25
	total := func() float64 {
		loss.Compute(dev, losses, device.Mem{}, logits, targets, scale)
		sum := 0.0
		for _, l := range losses.F32() {
			sum += float64(l)
		}
		return sum
	}
	loss.Compute(dev, losses, gradient, logits, targets, scale)
	for i, got := range gradient.F32() {
		const h = 1.0 / 16
		at := func(step float32) float64 {
			before := x[i]
			x[i] += step
			defer func() { x[i] = before }()
			return total()
		}
		numeric := scale * (8*(at(h)-at(-h)) - (at(2*h) - at(-2*h))) / (12 * h)
		// Rounding of six losses of about 1.6, over the step: 6e-6; truncation h^4/30: 5e-7.
		if math.Abs(numeric-float64(got)) > 1e-5 {
			t.Errorf("gradient of logit %d is %v, differences give %v", i, got, numeric)
		}
		if ignored := i/5 == 2; ignored && got != 0 {
			t.Errorf("gradient of logit %d of an ignored target is %v", i, got)
		}
	}
}
