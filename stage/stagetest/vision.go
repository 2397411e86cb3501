package stagetest

import (
	"math"
	"testing"

	"github.com/avgpipe/avgpipe/stage/device"
)

// convolutions have one pixel and one channel, odd sizes, strides that leave pixels over, windows wider than the image, the
// first layers of both ResNets, and channels about the blocks of kernels.
var convolutions = []device.Convolution{
	{B: 1, Height: 1, Width: 1, In: 1, Out: 1, Kernel: 1, Stride: 1},
	{B: 2, Height: 5, Width: 7, In: 3, Out: 2, Kernel: 3, Stride: 1, Padding: 1},
	{B: 1, Height: 6, Width: 5, In: 4, Out: 5, Kernel: 3, Stride: 2, Padding: 1},
	{B: 3, Height: 7, Width: 7, In: 2, Out: 3, Kernel: 1, Stride: 2},
	{B: 1, Height: 2, Width: 3, In: 5, Out: 4, Kernel: 5, Stride: 1, Padding: 4},
	{B: 2, Height: 9, Width: 8, In: 3, Out: 16, Kernel: 7, Stride: 2, Padding: 3},
	{B: 2, Height: 8, Width: 8, In: 16, Out: 32, Kernel: 3, Stride: 2, Padding: 1},
	{B: 2, Height: 6, Width: 6, In: 33, Out: 17, Kernel: 3, Stride: 1, Padding: 1},
	{B: 1, Height: 4, Width: 4, In: 64, Out: 48, Kernel: 1, Stride: 1},
	{B: 1, Height: 11, Width: 4, In: 6, Out: 20, Kernel: 4, Stride: 3},
}

func convolution(c *comparison) {
	for _, o := range convolutions {
		oh, ow := o.Output()
		inputs, outputs, window := o.B*o.Height*o.Width*o.In, o.B*oh*ow*o.Out, o.Kernel*o.Kernel
		weights, where := o.Out*o.In*window, shape("%+v", o)
		within := func(n int) float64 { return product * math.Sqrt(float64(n)) }
		forward := []tensor{c.out("y", outputs), c.in("x", inputs), c.in("weight", weights), c.in("bias", o.Out)}
		for _, bias := range []bool{false, true} {
			c.compare("Convolution", where, within(o.In*window), forward, func(d device.Device, m []device.Mem) {
				biased := o
				if bias {
					biased.Bias = m[3]
				}
				d.Convolution(m[0], m[1], m[2], biased)
			})
		}
		backward := []tensor{c.out("dx", inputs), c.in("dy", outputs), c.in("weight", weights)}
		c.compare("ConvolutionBackward", where, within(o.Out*window), backward, func(d device.Device, m []device.Mem) {
			d.ConvolutionBackward(m[0], m[1], m[2], o)
		})
		weight := []tensor{c.out("dweight", weights), c.in("dy", outputs), c.in("x", inputs)}
		c.compare("ConvolutionBackwardWeight", where, within(o.B*oh*ow), weight, func(d device.Device, m []device.Mem) {
			d.ConvolutionBackwardWeight(m[0], m[1], m[2], o)
		})
	}
}

// convolutionSees puts a one into an image of zeros: the output around it is the window, turned over, as the definition
// of Convolution says. It holds the oracle too, which has no other.
func convolutionSees(c *comparison) {
	const size, kernel = 5, 3
	o := device.Convolution{B: 1, Height: size, Width: size, In: 1, Out: 1, Kernel: kernel, Stride: 1, Padding: 1}
	x := tensor{name: "x", floats: make([]float32, size*size)}
	x.floats[2*size+1] = 1 // row 2, column 1
	weight := tensor{name: "weight", floats: []float32{1, 2, 3, 4, 5, 6, 7, 8, 9}}
	want := []float32{
		0, 0, 0, 0, 0,
		9, 8, 7, 0, 0,
		6, 5, 4, 0, 0,
		3, 2, 1, 0, 0,
		0, 0, 0, 0, 0,
	}
	for _, dev := range []device.Device{c.dev, c.oracle} {
		operands := []tensor{c.out("y", size*size), x, weight}
		got := c.run(dev, 0, "Convolution", operands, func(d device.Device, m []device.Mem) { d.Convolution(m[0], m[1], m[2], o) })[0]
		if !equalBits(got, floatBits(want)) {
			c.Errorf("%s: a one at (2,1) gives %v", dev.Name(), got)
		}
	}
}

// pools have the windows of both CNNs, windows that overlap, that are cut off and that skip pixels.
var pools = []device.Pool{
	{B: 1, Height: 1, Width: 1, Channels: 1, Kernel: 1, Stride: 1},
	{B: 2, Height: 6, Width: 4, Channels: 5, Kernel: 2, Stride: 2},
	{B: 1, Height: 9, Width: 8, Channels: 33, Kernel: 3, Stride: 2, Padding: 1},
	{B: 3, Height: 5, Width: 5, Channels: 16, Kernel: 3, Stride: 1, Padding: 1},
	{B: 1, Height: 8, Width: 7, Channels: 3, Kernel: 2, Stride: 3},
}

func pooling(c *comparison) {
	for _, o := range pools {
		oh, ow := o.Output()
		inputs, outputs, where := o.B*o.Height*o.Width*o.Channels, o.B*oh*ow*o.Channels, shape("%+v", o)
		x := c.in("x", inputs)
		for i := range x.floats { // few values, so that many are equal
			x.floats[i] = float32(math.Round(float64(x.floats[i])))
		}
		c.compare("MaxPool", where, exact, []tensor{c.out("y", outputs), x}, func(d device.Device, m []device.Mem) {
			d.MaxPool(m[0], m[1], o)
		})
		c.compare("MaxPoolBackward", where, exact, []tensor{c.out("dx", inputs), c.in("dy", outputs), x}, func(d device.Device, m []device.Mem) {
			d.MaxPoolBackward(m[0], m[1], m[2], o)
		})
	}
	for _, size := range [][3]int{{1, 1, 1}, {2, 49, 3}, {3, 64, 64}, {2, 7, 130}} {
		b, p, n := size[0], size[1], size[2]
		where := shape("B=%d P=%d C=%d", b, p, n)
		c.compare("AveragePool", where, reduction, []tensor{c.out("y", b*n), c.in("x", b*p*n)}, func(d device.Device, m []device.Mem) {
			d.AveragePool(m[0], m[1], b, p, n)
		})
		c.compare("AveragePoolBackward", where, exact, []tensor{c.out("dx", b*p*n), c.in("dy", b*n)}, func(d device.Device, m []device.Mem) {
			d.AveragePoolBackward(m[0], m[1], b, p, n)
		})
	}
}

// groupNorms have batch norms, group norms, one group, a group a channel, more rows than a block of a kernel, and wide rows.
var groupNorms = []device.GroupNorm{
	{B: 1, P: 7, C: 1, Groups: 1},
	{B: 1, P: 50, C: 5, Groups: 5},
	{B: 2, P: 9, C: 6, Groups: 3},
	{B: 3, P: 25, C: 33, Groups: 1},
	{B: 2, P: 4, C: 48, Groups: 48},
	{B: 1, P: 1500, C: 16, Groups: 16},
	{B: 2, P: 700, C: 20, Groups: 4},
	{B: 1, P: 19, C: 1040, Groups: 1040},
}

func groupNorm(c *comparison) {
	for _, n := range groupNorms {
		n.Epsilon = 1e-5
		for _, mean := range []float64{0, 50} { // a variance taken as a difference of squares fails on the second
			groupNormCase(c, n, mean)
		}
	}
}

func groupNormCase(c *comparison, n device.GroupNorm, mean float64) {
	elements, groups := n.B*n.P*n.C, n.B*n.Groups
	where := shape("B=%d P=%d C=%d Groups=%d mean=%g", n.B, n.P, n.C, n.Groups, mean)
	x := tensor{name: "x", floats: c.normal(elements, mean, 1)}
	c.compare("GroupMoments", where, reduction, []tensor{c.out("mean", groups), c.out("variance", groups), x}, func(d device.Device, m []device.Mem) {
		d.GroupMoments(m[0], m[1], m[2], n)
	})
	means, variances := c.moments(x, n)
	weight, bias := c.in("weight", n.C), c.in("bias", n.C)
	for _, skip := range []tensor{{name: "no skip"}, c.in("skip", elements)} {
		for _, relu := range []bool{false, true} {
			n.ReLU = relu
			where := shape("%s, %s, ReLU %v", where, skip.name, relu)
			forward := []tensor{c.out("y", elements), x, skip, means, variances, weight, bias}
			c.compare("GroupNorm", where, reduction, forward, func(d device.Device, m []device.Mem) {
				d.GroupNorm(m[0], m[1], m[2], m[3], m[4], m[5], m[6], n)
			})
			for _, dz := range []tensor{{name: "no dz"}, c.out("dz", elements)} {
				backward := []tensor{
					c.out("dx", elements), dz, c.out("sums", 2*n.B*n.C), c.in("dy", elements),
					x, skip, means, variances, weight, bias,
				}
				c.compare("GroupNormBackward", where+", "+dz.name, 5*reduction, backward, func(d device.Device, m []device.Mem) {
					d.GroupNormBackward(m[0], m[1], m[2], m[3], m[4], m[5], m[6], m[7], m[8], m[9], n)
				})
			}
		}
	}
}

// moments are the oracle's, as operands.
func (c *comparison) moments(x tensor, n device.GroupNorm) (mean, variance tensor) {
	groups := n.B * n.Groups
	operands := []tensor{c.out("mean", groups), c.out("variance", groups), x}
	bits := c.run(c.oracle, 0, "GroupMoments", operands, func(d device.Device, m []device.Mem) { d.GroupMoments(m[0], m[1], m[2], n) })
	mean, variance = tensor{name: "mean", floats: make([]float32, groups)}, tensor{name: "variance", floats: make([]float32, groups)}
	for i := range groups {
		mean.floats[i], variance.floats[i] = float32(value(bits[0][i])), float32(value(bits[1][i]))
	}
	return mean, variance
}

// groupNormFuses holds a norm with skip and ReLU against the same norm, Add and ReLU one after the other.
func groupNormFuses(c *comparison) {
	n := device.GroupNorm{B: 2, P: 70, C: 24, Groups: 8, Epsilon: 1e-5}
	elements := n.B * n.P * n.C
	x := c.in("x", elements)
	mean, variance := c.moments(x, n)
	operands := []tensor{
		c.out("y", elements), x, c.in("skip", elements), mean, variance, c.in("weight", n.C), c.in("bias", n.C),
		c.in("dy", elements), c.out("dx", elements), c.out("dz", elements), c.out("sums", 2*n.B*n.C),
	}
	call := func(fused bool) [][]int32 {
		return c.run(c.dev, 0, "GroupNorm", operands, func(d device.Device, m []device.Mem) {
			y, x, skip, mean, variance, weight, bias, dy, dx, dz, sums := m[0], m[1], m[2], m[3], m[4], m[5], m[6], m[7], m[8], m[9], m[10]
			o := n
			o.ReLU = fused
			if fused {
				d.GroupNorm(y, x, skip, mean, variance, weight, bias, o)
				d.GroupNormBackward(dx, dz, sums, dy, x, skip, mean, variance, weight, bias, o)
				return
			}
			d.GroupNorm(y, x, device.Mem{}, mean, variance, weight, bias, o)
			d.Add(y, y, skip)
			d.ReLU(y, y)
			d.ReLUBackward(dz, dy, y)
			d.GroupNormBackward(dx, device.Mem{}, sums, dz, x, device.Mem{}, mean, variance, weight, bias, o)
		})
	}
	one, other := call(true), call(false)
	for i, x := range operands {
		if x.result {
			c.record("GroupNorm, fused", x.name, reduction, one[i], other[i])
		}
	}
}

func rectifier(c *comparison) {
	for _, n := range lengths {
		where, x := shape("n=%d", n), c.in("x", n)
		copy(x.floats, []float32{0, float32(math.Copysign(0, -1)), float32(math.NaN()), float32(math.Inf(1)), float32(math.Inf(-1))})
		c.compare("ReLU", where, exact, []tensor{c.out("y", n), x}, func(d device.Device, m []device.Mem) { d.ReLU(m[0], m[1]) })
		c.compare("ReLUBackward", where, exact, []tensor{c.out("dx", n), c.in("dy", n), x}, func(d device.Device, m []device.Mem) {
			d.ReLUBackward(m[0], m[1], m[2])
		})
		c.compare("ReLUBackward in place", where, exact, []tensor{c.out("dy", n), x}, func(d device.Device, m []device.Mem) {
			d.ReLUBackward(m[0], m[0], m[1])
		})
	}
	for _, size := range [][3]int{{1, 1, 1}, {2, 3, 5}, {3, 100, 3}, {1, 64, 33}} {
		n, rows, columns := size[0], size[1], size[2]
		operands := []tensor{c.out("y", n*rows*columns), c.in("x", n*rows*columns)}
		c.compare("Transpose", shape("N=%d R=%d C=%d", n, rows, columns), exact, operands, func(d device.Device, m []device.Mem) {
			d.Transpose(m[0], m[1], n, rows, columns)
		})
	}
}

// visionPoison puts a value that is not finite into a window and a row: it must not vanish.
func visionPoison(c *comparison) {
	nan := float32(math.NaN())
	o := device.Pool{B: 1, Height: 2, Width: 2, Channels: 17, Kernel: 2, Stride: 2}
	for at := range 4 {
		x := c.in("x", 4*o.Channels)
		x.floats[at*o.Channels+16] = nan
		y := c.run(c.dev, 0, "MaxPool", []tensor{c.out("y", o.Channels), x}, func(d device.Device, m []device.Mem) { d.MaxPool(m[0], m[1], o) })[0]
		if !math.IsNaN(value(y[16])) || math.IsNaN(value(y[15])) {
			c.Errorf("MaxPool: a NaN at pixel %d gives %v, its neighbour %v", at, value(y[16]), value(y[15]))
		}
	}
	n := device.GroupNorm{B: 1, P: 40, C: 2, Groups: 2, Epsilon: 1e-5, ReLU: true}
	x := c.in("x", n.P*n.C)
	x.floats[n.C] = nan
	operands := []tensor{c.out("y", n.P*n.C), x, c.out("mean", 2), c.out("variance", 2), c.in("weight", 2), c.in("bias", 2)}
	y := c.run(c.dev, 0, "GroupNorm", operands, func(d device.Device, m []device.Mem) {
		d.GroupMoments(m[2], m[3], m[1], n)
		d.GroupNorm(m[0], m[1], device.Mem{}, m[2], m[3], m[4], m[5], n)
	})[0]
	if !math.IsNaN(value(y[0])) || math.IsNaN(value(y[1])) {
		c.Errorf("GroupNorm: a NaN in channel 0 gives %v there, %v in channel 1", value(y[0]), value(y[1]))
	}
}

func visionInvariants(c *comparison) {
	d, none := c.dev, device.Mem{}
	four, eight := c.alloc(d, device.F32, 4), c.alloc(d, device.F32, 8)
	image := device.Convolution{B: 1, Height: 2, Width: 2, In: 1, Out: 1, Kernel: 1, Stride: 1}
	one := four.Slice(0, 1)
	for name, call := range map[string]func(){
		"Convolution of another image":  func() { d.Convolution(four, eight, one, image) },
		"Convolution with a short bias": func() { o := image; o.Bias = four; d.Convolution(four, four, one, o) },
		"Convolution without a stride":  func() { o := image; o.Stride = 0; d.Convolution(four, four, one, o) },
		"Convolution beyond the image":  func() { o := image; o.Kernel = 3; d.Convolution(four, four, eight, o) },
		"ConvolutionBackward":           func() { d.ConvolutionBackward(four, eight, one, image) },
		"ConvolutionBackwardWeight":     func() { d.ConvolutionBackwardWeight(eight, four, four, image) },
		"MaxPool of padding alone": func() {
			d.MaxPool(four, four, device.Pool{B: 1, Height: 2, Width: 2, Channels: 1, Kernel: 1, Stride: 1, Padding: 1})
		},
		"MaxPoolBackward": func() {
			d.MaxPoolBackward(eight, one, four, device.Pool{B: 1, Height: 2, Width: 2, Channels: 1, Kernel: 2, Stride: 2})
		},
		"AveragePool of nothing":        func() { d.AveragePool(four, four, 1, 0, 4) },
		"AveragePoolBackward":           func() { d.AveragePoolBackward(four, eight, 1, 1, 4) },
		"GroupMoments of broken groups": func() { d.GroupMoments(one, one, four, device.GroupNorm{B: 1, P: 1, C: 4, Groups: 3}) },
		"GroupNorm with a short skip": func() {
			d.GroupNorm(four, four, one, one, one, four, four, device.GroupNorm{B: 1, P: 1, C: 4, Groups: 1})
		},
		"GroupNormBackward without sums": func() {
			d.GroupNormBackward(four, none, none, four, four, none, one, one, four, four, device.GroupNorm{B: 1, P: 1, C: 4, Groups: 1})
		},
		"ReLU of another length":     func() { d.ReLU(four, eight) },
		"ReLUBackward without dy":    func() { d.ReLUBackward(four, none, four) },
		"Transpose of another shape": func() { d.Transpose(four, four, 1, 2, 3) },
	} {
		if !panics(call) {
			c.Errorf("%s did not panic", name)
		}
	}
}

// visionAllocations runs every operation once more than it needs to warm up.
func visionAllocations(c *comparison) {
	d := c.dev
	floats := func(n int) device.Mem { return c.alloc(d, device.F32, n) }
	o := device.Convolution{B: 2, Height: 4, Width: 4, In: 3, Out: 5, Kernel: 3, Stride: 1, Padding: 1}
	p := device.Pool{B: 2, Height: 4, Width: 4, Channels: 3, Kernel: 2, Stride: 2}
	n := device.GroupNorm{B: 2, P: 16, C: 3, Groups: 3, Epsilon: 1e-5, ReLU: true}
	x, y, weight, other, small := floats(2*16*3), floats(2*16*5), floats(5*3*9), floats(2*16*3), floats(2*4*3)
	mean, variance, sums, scale := floats(6), floats(6), floats(12), floats(3)
	for name, call := range map[string]func(){
		"Convolution":               func() { d.Convolution(y, x, weight, o) },
		"ConvolutionBackward":       func() { d.ConvolutionBackward(x, y, weight, o) },
		"ConvolutionBackwardWeight": func() { d.ConvolutionBackwardWeight(weight, y, x, o) },
		"MaxPool":                   func() { d.MaxPool(small, x, p) },
		"MaxPoolBackward":           func() { d.MaxPoolBackward(other, small, x, p) },
		"AveragePool":               func() { d.AveragePool(mean, x, 2, 16, 3) },
		"AveragePoolBackward":       func() { d.AveragePoolBackward(x, mean, 2, 16, 3) },
		"GroupMoments":              func() { d.GroupMoments(mean, variance, x, n) },
		"GroupNorm":                 func() { d.GroupNorm(other, x, device.Mem{}, mean, variance, scale, scale, n) },
		"GroupNormBackward": func() {
			d.GroupNormBackward(other, device.Mem{}, sums, x, x, device.Mem{}, mean, variance, scale, scale, n)
		},
		"ReLU":         func() { d.ReLU(other, x) },
		"ReLUBackward": func() { d.ReLUBackward(other, x, x) },
		"Transpose":    func() { d.Transpose(other, x, 2, 16, 3) },
	} {
		if got := testing.AllocsPerRun(5, call); got != 0 {
			c.Errorf("%s: %v allocations a run, want none", name, got)
		}
	}
}
