package ref

import (
	"math"

	"github.com/avgpipe/avgpipe/stage/device"
)

// function is a device.Function: its value at x, and the gradient of x, or of the result for tanh, from that of the result.
type function struct {
	value    func(x float64) float32
	gradient func(dy, x float64) float32
}

var functions = [...]function{
	device.GELU:    {gelu, geluGradient},
	device.GELUErf: {geluErf, geluErfGradient},
	device.Tanh:    {func(x float64) float32 { return float32(tanh(x)) }, tanhGradient},
	device.ReLU:    {func(x float64) float32 { return relu(float32(x)) }, reluGradient},
}

// unary runs device.Unary.
func (d *Device) unary(o *device.Unary) {
	ys, xs, f := d.result(0, o.Y), d.read(1, o.X), functions[o.Function]
	for i, v := range xs {
		ys[i] = f.value(float64(v))
	}
	d.finish(0, o.Y)
}

// unaryBackward runs device.UnaryBackward.
func (d *Device) unaryBackward(o *device.UnaryBackward) {
	dxs, dys, xs, f := d.result(0, o.DX), d.read(1, o.DY), d.read(2, o.X), functions[o.Function]
	for i, v := range xs {
		dxs[i] = f.gradient(float64(dys[i]), float64(v))
	}
	d.finish(0, o.DX)
}

// geluCubic is the coefficient of the tanh form (Hendrycks and Gimpel 2016, section 2).
const geluCubic = 0.044715

var geluScale = math.Sqrt(2 / math.Pi)

// geluTanh is tanh(sqrt(2/pi) (x + 0.044715 x^3)).
func geluTanh(x float64) float64 {
	return tanh(geluScale * (x + float64(geluCubic*x*x*x)))
}

func gelu(x float64) float32 { return float32(0.5 * x * (1 + geluTanh(x))) }

func geluGradient(dy, x float64) float32 {
	t := geluTanh(x)
	inner := geluScale * (1 + float64(3*geluCubic*x*x))
	slope := 0.5*(1+t) + float64(0.5*x*(1-float64(t*t))*inner)
	return float32(dy * slope)
}

// normal is the standard normal distribution: its cumulative probability at x, and its density. The probability is
// 1/2 + density (x + x^3/3 + x^5/(3 5) + ...) (Marsaglia 2004, section 3).
func normal(x float64) (cumulative, density float64) {
	if x != x {
		return x, x
	}
	density = exp(-0.5*x*x) / math.Sqrt(2*math.Pi)
	switch { // beyond, the tail is below a unit in the last place of a float32 product with x
	case x < -9:
		return 0, density
	case x > 9:
		return 1, density
	}
	sum, term, square := x, x, float64(x*x)
	for i := 3.0; sum != sum+term; i += 2 {
		term *= square / i
		sum += term
	}
	return 0.5 + float64(density*sum), density
}

func geluErf(x float64) float32 {
	p, _ := normal(x)
	return float32(x * p)
}

func geluErfGradient(dy, x float64) float32 {
	p, density := normal(x)
	return float32(dy * (p + float64(x*density)))
}

func tanhGradient(dy, y float64) float32 {
	v := float32(y)
	return float32(dy) * (1 - float32(v*v))
}

// relu is max(x, 0), or NaN.
func relu(x float32) float32 {
	if x <= 0 {
		return 0
	}
	return x
}

func reluGradient(dy, x float64) float32 {
	if x > 0 {
		return float32(dy)
	}
	return 0
}
