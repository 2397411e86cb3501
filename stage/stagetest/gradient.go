package stagetest

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/avgpipe/avgpipe/stage/device"
	"github.com/avgpipe/avgpipe/stage/layer"
)

// GradientTolerance is the largest relative error that Gradient accepts. The derivative of the loss along a random
// direction is estimated from four forward passes by a difference of fourth order, whose truncation error is step^4/30
// times the fifth derivative, about 1e-6 at step 1/32 for layers whose derivatives are of order 1. The float32 of the
// forward pass adds about 1e-7 |loss| / step, up to 1e-4 of a gradient at the sizes of the tests. A wrong term, sign or
// index shows as 1e-2 or more.
const GradientTolerance = 1e-3

const (
	gradientStep       = 1.0 / 32
	gradientDirections = 4 // for each tensor
)

// Gradient fails t unless CheckGradient holds, and logs the largest error of each tensor.
func Gradient(t *testing.T, dev device.Device, l layer.Layer, size layer.Size, input Fill) {
	t.Helper()
	report, err := CheckGradient(dev, l, size, input)
	for _, line := range report {
		t.Log(line)
	}
	if err != nil {
		t.Error(err)
	}
}

// Fill gives an input port its values and reports whether it did. A port left alone gets standard normal values; ids below
// its limit, with repeats, so that gradients scatter onto one another; or, I32 without a limit, 1 in all elements.
type Fill func(port layer.Port, in device.Mem) bool

// CheckGradient holds the backward of a layer against central differences of its forward, on dev: for each input port that
// a gradient flows to and for each parameter, along random directions. The loss is a random linear function of the output
// ports that a gradient flows through; the others, and the gradient of inputs that have none, are not looked at. It also
// checks that the weight half adds to the gradients instead of overwriting them, that both halves leave the output's
// gradient and the parameters alone, and that running the halves apart gives the same bits.
//
// input may be nil. The report has a line for each tensor; the error joins what does not hold. The pass has a key, so that
// what is random is drawn as in training.
func CheckGradient(dev device.Device, l layer.Layer, size layer.Size, input Fill) (report []string, err error) {
	r, err := NewRunner(dev, l, size)
	if err != nil {
		return nil, fmt.Errorf("gradient check: %w", err)
	}
	defer r.Close()
	g := &gradientCheck{Runner: r, rng: rand.New(rand.NewPCG(1, 2))}
	g.prepare(size, input)
	g.Forward()
	g.backward()
	g.halves()
	for _, c := range g.tensors {
		g.compare(c)
	}
	return g.report, errors.Join(g.problems...)
}

// gradientCheck is a layer with all the memory that its passes need.
type gradientCheck struct {
	*Runner
	rng      *rand.Rand
	tensors  []checkedTensor
	outputs  []output
	report   []string
	problems []error
}

// checkedTensor is a value that the loss depends on, with the gradient that the layer computed for it.
type checkedTensor struct {
	name        string
	value, grad device.Mem
	written     bool // the gradient is overwritten by each pass, not added to
	set         bool // the gradient is overwritten by each fresh pass
}

// output is an output port that the loss depends on, with its gradient.
type output struct{ value, grad device.Mem }

// prepare fills what is read with random values.
func (g *gradientCheck) prepare(size layer.Size, input Fill) {
	in, out := layer.Ports(g.Layer, size)
	for i, port := range in {
		if input == nil || !input(port, g.In[i]) {
			g.fillPort(port, g.In[i])
		}
		if port.Differentiable() {
			g.tensors = append(g.tensors, checkedTensor{name: port.Name, value: g.In[i], grad: g.DIn[i], written: true})
		}
	}
	for i, port := range out {
		if port.Differentiable() {
			g.fill(g.DOut[i], 0, 1)
			g.outputs = append(g.outputs, output{value: g.Out[i], grad: g.DOut[i]})
		}
	}
	for i, param := range layer.Params(g.Layer) {
		g.fill(g.Params[i], param.Init.Mean, 0.3) // well away from the initial values, where many terms vanish
		if param.Running == 0 {                   // else a statistic, which training does not read
			g.tensors = append(g.tensors, checkedTensor{name: param.Name, value: g.Params[i], grad: g.Grads[i], set: param.Fresh})
		}
	}
}

// fillPort gives a port that the caller left alone its values.
func (g *gradientCheck) fillPort(port layer.Port, m device.Mem) {
	if port.Type != device.I32 {
		g.fill(m, 0, 1)
		return
	}
	ids := make([]int32, m.Len())
	for i := range ids {
		ids[i] = 1
		if port.Limit > 0 {
			ids[i] = int32(i * i % port.Limit)
		}
	}
	g.write(m, device.IntBytes(ids))
}

func (g *gradientCheck) problem(format string, args ...any) {
	g.problems = append(g.problems, fmt.Errorf(layer.Name(g.Layer)+": "+format, args...))
}

func (g *gradientCheck) fill(m device.Mem, mean, deviation float64) {
	values := make([]float32, m.Len())
	for i := range values {
		values[i] = float32(mean + deviation*g.rng.NormFloat64())
	}
	g.write(m, device.FloatBytes(values))
}

func (g *gradientCheck) write(m device.Mem, values []byte) {
	if err := device.Write(g.Device, m, values); err != nil {
		g.problem("write: %v", err)
	}
}

func (g *gradientCheck) read(m device.Mem) []float32 {
	values := make([]float32, m.Len())
	if err := device.Read(g.Device, device.FloatBytes(values), m); err != nil {
		g.problem("read: %v", err)
	}
	return values
}

// backward runs the whole backward and checks what it must not touch.
func (g *gradientCheck) backward() {
	before := g.inputs()
	g.Backward()
	for i, after := range g.inputs() {
		if d := firstDifference(before[i], after); d >= 0 {
			g.problem("the backward changed element %d of operand %d that it only reads (the gradients of outputs, then the parameters)", d, i)
		}
	}
}

func (g *gradientCheck) inputs() [][]float32 {
	var out [][]float32
	for _, o := range g.outputs {
		out = append(out, g.read(o.grad))
	}
	for _, p := range g.Params {
		out = append(out, g.read(p))
	}
	return out
}

// halves runs the backward again with the gradients zeroed and the halves apart, other work between them, then a weight
// half once more: the same bits, then their double. Then it is the first of a batch: the same bits again.
func (g *gradientCheck) halves() {
	whole := make([][]float32, len(g.tensors))
	for i, c := range g.tensors {
		whole[i] = g.read(c.grad)
		g.Device.Do(&device.Zero{X: c.grad})
	}
	g.BackwardInput()
	g.fill(g.Shared(), 0, 1) // what other passes share is overwritten in between, and what belongs to the callers
	for _, o := range g.outputs {
		g.fill(o.value, 0, 1)
		defer g.write(o.grad, device.FloatBytes(g.read(o.grad)))
		g.fill(o.grad, 0, 1)
	}
	g.BackwardWeight()
	for i, c := range g.tensors {
		if d := firstDifference(whole[i], g.read(c.grad)); d >= 0 {
			g.problem("gradient of %s: element %d differs when the halves run apart", c.name, d)
		}
	}
	g.BackwardWeight()
	for i, c := range g.tensors {
		scale := 2.0
		if c.written {
			scale = 1
		}
		if e := relative(whole[i], g.read(c.grad), scale); e > 1e-5 {
			g.problem("gradient of %s: off by %.2g after a second weight half, which must add to it", c.name, e)
		}
	}
	g.fresh(whole)
}

// fresh runs the weight half as the first of a batch: whole[i] is the gradient of tensors[i] then. What it is to set holds
// other numbers before.
func (g *gradientCheck) fresh(whole [][]float32) {
	for _, c := range g.tensors {
		switch {
		case c.set:
			g.fill(c.grad, 100, 1)
		case !c.written:
			g.Device.Do(&device.Zero{X: c.grad})
		}
	}
	g.Args.Fresh = true
	g.BackwardWeight()
	g.Args.Fresh = false
	for i, c := range g.tensors {
		if d := firstDifference(whole[i], g.read(c.grad)); d >= 0 {
			g.problem("gradient of %s: element %d differs when the weight half is the first of a batch", c.name, d)
		}
		g.write(c.grad, device.FloatBytes(whole[i]))
	}
}

// compare holds <grad, direction> against the difference quotient of the loss along the direction.
func (g *gradientCheck) compare(c checkedTensor) {
	grad, value := g.read(c.grad), g.read(c.value)
	defer g.write(c.value, device.FloatBytes(value))
	worst, length := 0.0, math.Sqrt(dot(grad, grad))
	for range gradientDirections {
		direction := make([]float32, len(value))
		for i := range direction {
			direction[i] = float32(g.rng.NormFloat64())
		}
		unit := math.Sqrt(dot(direction, direction))
		at := func(step float64) float64 {
			moved := make([]float32, len(value))
			for i := range moved {
				moved[i] = value[i] + float32(step/unit)*direction[i]
			}
			g.write(c.value, device.FloatBytes(moved))
			g.Forward()
			return g.loss()
		}
		const h = gradientStep
		numeric := (8*(at(h)-at(-h)) - (at(2*h) - at(-2*h))) / (12 * h)
		// A random unit direction catches 1/sqrt(n) of the gradient's length: errors are relative to that.
		scale := length/math.Sqrt(float64(len(grad))) + 1e-6
		worst = max(worst, math.Abs(numeric-dot(grad, direction)/unit)/scale)
	}
	g.report = append(g.report, fmt.Sprintf("%s: gradient of %s (length %.3g): largest error %.2g, tolerance %.2g",
		layer.Name(g.Layer), c.name, length, worst, GradientTolerance))
	if !(worst <= GradientTolerance) {
		g.problem("gradient of %s: off by %.2g of its size, tolerance %.2g", c.name, worst, GradientTolerance)
	}
}

// loss is what the gradients are of.
func (g *gradientCheck) loss() float64 {
	sum := 0.0
	for _, o := range g.outputs {
		sum += dot(g.read(o.value), g.read(o.grad))
	}
	return sum
}

func dot(a, b []float32) float64 {
	sum := 0.0
	for i := range a {
		sum += float64(a[i]) * float64(b[i])
	}
	return sum
}

// relative is |b - scale a| / |scale a|.
func relative(a, b []float32, scale float64) float64 {
	var off, size float64
	for i := range a {
		want := scale * float64(a[i])
		off += (float64(b[i]) - want) * (float64(b[i]) - want)
		size += want * want
	}
	return math.Sqrt(off / max(size, 1e-30))
}

// firstDifference is the first index at which a and b differ in their bits, or -1.
func firstDifference(a, b []float32) int {
	for i := range a {
		if math.Float32bits(a[i]) != math.Float32bits(b[i]) {
			return i
		}
	}
	return -1
}
