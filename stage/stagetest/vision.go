package stagetest

import (
	"math"

	"github.com/avgpipe/avgpipe/stage/device"
)

// convolutions have one pixel and one channel, odd sizes, strides that leave pixels over, windows wider than the image, the
// first layers of both ResNets, and channels about the blocks of kernels.
var convolutions = []device.ConvolutionShape{
	{B: 1, Height: 1, Width: 1, In: 1, Out: 1, Kernel: 1, Stride: 1},
	{B: 2, Height: 1, Width: 1, In: 5, Out: 3, Kernel: 3, Stride: 1, Padding: 1},
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
	eachType(func(kind string, of func(tensor) tensor) { convolutionOf(c, kind, of) })
}

// convolutionOf compares convolutions of operands of one type.
func convolutionOf(c *comparison, kind string, of func(tensor) tensor) {
	for _, o := range convolutions {
		oh, ow := o.Output()
		inputs, outputs, window := o.B*o.Height*o.Width*o.In, o.B*oh*ow*o.Out, o.Kernel*o.Kernel
		weights, where := o.Out*o.In*window, shape("%+v", o)
		within := func(n int) float64 { return product * math.Sqrt(float64(n)) }
		forward := []tensor{c.out("y", outputs), of(c.in("x", inputs)), of(c.in("weight", weights)), c.in("bias", o.Out)}
		for _, bias := range []bool{false, true} {
			c.compare("Convolution"+kind, where, within(o.In*window), forward, func(d device.Device, m []device.Mem) {
				biased := o
				if bias {
					biased.Bias = m[3]
				}
				d.Do(&device.Convolution{Y: m[0], X: m[1], Weight: m[2], ConvolutionShape: biased})
			})
		}
		backward := []tensor{c.out("dx", inputs), of(c.in("dy", outputs)), of(c.in("weight", weights))}
		c.compare("ConvolutionBackward"+kind, where, within(o.Out*window), backward, func(d device.Device, m []device.Mem) {
			d.Do(&device.ConvolutionBackward{DX: m[0], DY: m[1], Weight: m[2], ConvolutionShape: o})
		})
		weight := []tensor{c.out("dweight", weights), of(c.in("dy", outputs)), of(c.in("x", inputs))}
		c.compare("ConvolutionBackwardWeight"+kind, where, within(o.B*oh*ow), weight, func(d device.Device, m []device.Mem) {
			d.Do(&device.ConvolutionBackwardWeight{DWeight: m[0], DY: m[1], X: m[2], ConvolutionShape: o})
		})
	}
}

// convolutionSees puts a one into an image of zeros: the output around it is the window, turned over, as the definition
// of Convolution says. It holds the oracle too, which has no other.
func convolutionSees(c *comparison) {
	const size, kernel = 5, 3
	o := device.ConvolutionShape{B: 1, Height: size, Width: size, In: 1, Out: 1, Kernel: kernel, Stride: 1, Padding: 1}
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
		got := c.run(dev, 0, "Convolution", operands, func(d device.Device, m []device.Mem) {
			d.Do(&device.Convolution{Y: m[0], X: m[1], Weight: m[2], ConvolutionShape: o})
		})[0]
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
			d.Do(&device.MaxPool{Y: m[0], X: m[1], Pool: o})
		})
		c.compare("MaxPoolBackward", where, exact, []tensor{c.out("dx", inputs), c.in("dy", outputs), x}, func(d device.Device, m []device.Mem) {
			d.Do(&device.MaxPoolBackward{DX: m[0], DY: m[1], X: m[2], Pool: o})
		})
	}
	for _, size := range [][3]int{{1, 1, 1}, {2, 49, 3}, {3, 64, 64}, {2, 7, 130}} {
		b, p, n := size[0], size[1], size[2]
		where := shape("B=%d P=%d C=%d", b, p, n)
		c.compare("AveragePool", where, reduction, []tensor{c.out("y", b*n), c.in("x", b*p*n)}, func(d device.Device, m []device.Mem) {
			d.Do(&device.AveragePool{Y: m[0], X: m[1], B: b, P: p, C: n})
		})
		c.compare("AveragePoolBackward", where, exact, []tensor{c.out("dx", b*p*n), c.in("dy", b*n)}, func(d device.Device, m []device.Mem) {
			d.Do(&device.AveragePoolBackward{DX: m[0], DY: m[1], B: b, P: p, C: n})
		})
	}
}

// groupNorms have batch norms, group norms, one group, a group a channel, more rows than a block of a kernel, and wide rows.
var groupNorms = []device.GroupShape{
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

func groupNormCase(c *comparison, n device.GroupShape, mean float64) {
	elements, groups := n.B*n.P*n.C, n.B*n.Groups
	where := shape("B=%d P=%d C=%d Groups=%d mean=%g", n.B, n.P, n.C, n.Groups, mean)
	x := tensor{name: "x", floats: c.normal(elements, mean, 1)}
	c.compare("GroupMoments", where, reduction, []tensor{c.out("mean", groups), c.out("variance", groups), x}, func(d device.Device, m []device.Mem) {
		d.Do(&device.GroupMoments{Mean: m[0], Variance: m[1], X: m[2], GroupShape: n})
	})
	means, variances := c.moments(x, n)
	weight, bias := c.in("weight", n.C), c.in("bias", n.C)
	for _, skip := range []tensor{{name: "no skip"}, c.in("skip", elements)} {
		for _, relu := range []bool{false, true} {
			n.ReLU = relu
			where := shape("%s, %s, ReLU %v", where, skip.name, relu)
			forward := []tensor{c.out("y", elements), x, skip, means, variances, weight, bias}
			c.compare("GroupNorm", where, reduction, forward, func(d device.Device, m []device.Mem) {
				d.Do(&device.GroupNorm{Y: m[0], X: m[1], Skip: m[2], Mean: m[3], Variance: m[4], Weight: m[5], Bias: m[6], GroupShape: n})
			})
			for _, dz := range []tensor{{name: "no dz"}, c.out("dz", elements)} {
				backward := []tensor{
					c.out("dx", elements), dz, c.out("sums", 2*n.B*n.C), c.in("dy", elements),
					x, skip, means, variances, weight, bias,
				}
				c.compare("GroupNormBackward", where+", "+dz.name, 5*reduction, backward, func(d device.Device, m []device.Mem) {
					d.Do(&device.GroupNormBackward{
						DX: m[0], DZ: m[1], Sums: m[2], DY: m[3], X: m[4], Skip: m[5], Mean: m[6], Variance: m[7], Weight: m[8], Bias: m[9],
						GroupShape: n,
					})
				})
			}
		}
	}
}

// moments are the oracle's, as operands.
func (c *comparison) moments(x tensor, n device.GroupShape) (mean, variance tensor) {
	groups := n.B * n.Groups
	operands := []tensor{c.out("mean", groups), c.out("variance", groups), x}
	bits := c.run(c.oracle, 0, "GroupMoments", operands, func(d device.Device, m []device.Mem) {
		d.Do(&device.GroupMoments{Mean: m[0], Variance: m[1], X: m[2], GroupShape: n})
	})
	mean, variance = tensor{name: "mean", floats: make([]float32, groups)}, tensor{name: "variance", floats: make([]float32, groups)}
	for i := range groups {
		mean.floats[i], variance.floats[i] = float32(value(bits[0][i])), float32(value(bits[1][i]))
	}
	return mean, variance
}

// groupNormFuses holds a norm with skip and ReLU against the same norm, Add and ReLU one after the other.
func groupNormFuses(c *comparison) {
	n := device.GroupShape{B: 2, P: 70, C: 24, Groups: 8, Epsilon: 1e-5}
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
				d.Do(&device.GroupNorm{Y: y, X: x, Skip: skip, Mean: mean, Variance: variance, Weight: weight, Bias: bias, GroupShape: o})
				d.Do(&device.GroupNormBackward{
					DX: dx, DZ: dz, Sums: sums, DY: dy, X: x, Skip: skip, Mean: mean, Variance: variance, Weight: weight, Bias: bias,
					GroupShape: o,
				})
				return
			}
			d.Do(&device.GroupNorm{Y: y, X: x, Mean: mean, Variance: variance, Weight: weight, Bias: bias, GroupShape: o})
			d.Do(&device.Add{Out: y, A: y, B: skip})
			d.Do(&device.Unary{Y: y, X: y, Function: device.ReLU})
			d.Do(&device.UnaryBackward{DX: dz, DY: dy, X: y, Function: device.ReLU})
			d.Do(&device.GroupNormBackward{
				DX: dx, Sums: sums, DY: dz, X: x, Mean: mean, Variance: variance, Weight: weight, Bias: bias, GroupShape: o,
			})
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
		c.compare("ReLU", where, exact, []tensor{c.out("y", n), x}, func(d device.Device, m []device.Mem) { d.Do(&device.Unary{Y: m[0], X: m[1], Function: device.ReLU}) })
		c.compare("ReLUBackward", where, exact, []tensor{c.out("dx", n), c.in("dy", n), x}, func(d device.Device, m []device.Mem) {
			d.Do(&device.UnaryBackward{DX: m[0], DY: m[1], X: m[2], Function: device.ReLU})
		})
		c.compare("ReLUBackward in place", where, exact, []tensor{c.out("dy", n), x}, func(d device.Device, m []device.Mem) {
			d.Do(&device.UnaryBackward{DX: m[0], DY: m[0], X: m[1], Function: device.ReLU})
		})
	}
	for _, size := range [][3]int{{1, 1, 1}, {2, 3, 5}, {3, 100, 3}, {1, 64, 33}} {
		n, rows, columns := size[0], size[1], size[2]
		operands := []tensor{c.out("y", n*rows*columns), c.in("x", n*rows*columns)}
		c.compare("Transpose", shape("N=%d R=%d C=%d", n, rows, columns), exact, operands, func(d device.Device, m []device.Mem) {
			d.Do(&device.Transpose{Y: m[0], X: m[1], N: n, Rows: rows, Columns: columns})
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
		y := c.run(c.dev, 0, "MaxPool", []tensor{c.out("y", o.Channels), x}, func(d device.Device, m []device.Mem) { d.Do(&device.MaxPool{Y: m[0], X: m[1], Pool: o}) })[0]
		if !math.IsNaN(value(y[16])) || math.IsNaN(value(y[15])) {
			c.Errorf("MaxPool: a NaN at pixel %d gives %v, its neighbour %v", at, value(y[16]), value(y[15]))
		}
	}
	n := device.GroupShape{B: 1, P: 40, C: 2, Groups: 2, Epsilon: 1e-5, ReLU: true}
	x := c.in("x", n.P*n.C)
	x.floats[n.C] = nan
	operands := []tensor{c.out("y", n.P*n.C), x, c.out("mean", 2), c.out("variance", 2), c.in("weight", 2), c.in("bias", 2)}
	y := c.run(c.dev, 0, "GroupNorm", operands, func(d device.Device, m []device.Mem) {
		d.Do(&device.GroupMoments{Mean: m[2], Variance: m[3], X: m[1], GroupShape: n})
		d.Do(&device.GroupNorm{Y: m[0], X: m[1], Mean: m[2], Variance: m[3], Weight: m[4], Bias: m[5], GroupShape: n})
	})[0]
	if !math.IsNaN(value(y[0])) || math.IsNaN(value(y[1])) {
		c.Errorf("GroupNorm: a NaN in channel 0 gives %v there, %v in channel 1", value(y[0]), value(y[1]))
	}
}

func visionInvariants(c *comparison) {
	d, none := c.dev, device.Mem{}
	four, eight := c.alloc(d, device.F32, 4), c.alloc(d, device.F32, 8)
	image := device.ConvolutionShape{B: 1, Height: 2, Width: 2, In: 1, Out: 1, Kernel: 1, Stride: 1}
	one := four.Slice(0, 1)
	for name, call := range map[string]func(){
		"Convolution of another image": func() { d.Do(&device.Convolution{Y: four, X: eight, Weight: one, ConvolutionShape: image}) },
		"Convolution with a short bias": func() {
			o := image
			o.Bias = four
			d.Do(&device.Convolution{Y: four, X: four, Weight: one, ConvolutionShape: o})
		},
		"Convolution of mixed operands": func() {
			d.Do(&device.Convolution{Y: four, X: c.alloc(d, device.BF16, 4), Weight: one, ConvolutionShape: image})
		},
		"Convolution without a stride": func() {
			o := image
			o.Stride = 0
			d.Do(&device.Convolution{Y: four, X: four, Weight: one, ConvolutionShape: o})
		},
		"Convolution beyond the image": func() {
			o := image
			o.Kernel = 3
			d.Do(&device.Convolution{Y: four, X: four, Weight: eight, ConvolutionShape: o})
		},
		"ConvolutionBackward": func() { d.Do(&device.ConvolutionBackward{DX: four, DY: eight, Weight: one, ConvolutionShape: image}) },
		"ConvolutionBackwardWeight": func() {
			d.Do(&device.ConvolutionBackwardWeight{DWeight: eight, DY: four, X: four, ConvolutionShape: image})
		},
		"MaxPool of padding alone": func() {
			d.Do(&device.MaxPool{
				Y: four, X: four, Pool: device.Pool{B: 1, Height: 2, Width: 2, Channels: 1, Kernel: 1, Stride: 1, Padding: 1},
			})
		},
		"MaxPoolBackward": func() {
			d.Do(&device.MaxPoolBackward{
				DX: eight, DY: one, X: four, Pool: device.Pool{B: 1, Height: 2, Width: 2, Channels: 1, Kernel: 2, Stride: 2},
			})
		},
		"AveragePool of nothing": func() { d.Do(&device.AveragePool{Y: four, X: four, B: 1, P: 0, C: 4}) },
		"AveragePoolBackward":    func() { d.Do(&device.AveragePoolBackward{DX: four, DY: eight, B: 1, P: 1, C: 4}) },
		"GroupMoments of broken groups": func() {
			d.Do(&device.GroupMoments{Mean: one, Variance: one, X: four, GroupShape: device.GroupShape{B: 1, P: 1, C: 4, Groups: 3}})
		},
		"GroupNorm with a short skip": func() {
			d.Do(&device.GroupNorm{
				Y: four, X: four, Skip: one, Mean: one, Variance: one, Weight: four, Bias: four,
				GroupShape: device.GroupShape{B: 1, P: 1, C: 4, Groups: 1},
			})
		},
		"GroupNormBackward without sums": func() {
			d.Do(&device.GroupNormBackward{
				DX: four, DZ: none, Sums: none, DY: four, X: four, Skip: none, Mean: one, Variance: one, Weight: four, Bias: four,
				GroupShape: device.GroupShape{B: 1, P: 1, C: 4, Groups: 1},
			})
		},
		"ReLU of another length":     func() { d.Do(&device.Unary{Y: four, X: eight, Function: device.ReLU}) },
		"ReLUBackward without dy":    func() { d.Do(&device.UnaryBackward{DX: four, DY: none, X: four, Function: device.ReLU}) },
		"Transpose of another shape": func() { d.Do(&device.Transpose{Y: four, X: four, N: 1, Rows: 2, Columns: 3}) },
	} {
		c.refuses(name, call)
	}
}

// visionAllocations runs every operation once more than it needs to warm up.
func visionAllocations(c *comparison) {
	d := &Recorder{Device: c.dev}
	floats := func(n int) device.Mem { return c.alloc(d, device.F32, n) }
	o := device.ConvolutionShape{B: 2, Height: 4, Width: 4, In: 3, Out: 5, Kernel: 3, Stride: 1, Padding: 1}
	p := device.Pool{B: 2, Height: 4, Width: 4, Channels: 3, Kernel: 2, Stride: 2}
	n := device.GroupShape{B: 2, P: 16, C: 3, Groups: 3, Epsilon: 1e-5, ReLU: true}
	x, y, weight, other, small := floats(2*16*3), floats(2*16*5), floats(5*3*9), floats(2*16*3), floats(2*4*3)
	mean, variance, sums, scale := floats(6), floats(6), floats(12), floats(3)
	for name, call := range map[string]func(){
		"Convolution":               func() { d.Do(&device.Convolution{Y: y, X: x, Weight: weight, ConvolutionShape: o}) },
		"ConvolutionBackward":       func() { d.Do(&device.ConvolutionBackward{DX: x, DY: y, Weight: weight, ConvolutionShape: o}) },
		"ConvolutionBackwardWeight": func() { d.Do(&device.ConvolutionBackwardWeight{DWeight: weight, DY: y, X: x, ConvolutionShape: o}) },
		"MaxPool":                   func() { d.Do(&device.MaxPool{Y: small, X: x, Pool: p}) },
		"MaxPoolBackward":           func() { d.Do(&device.MaxPoolBackward{DX: other, DY: small, X: x, Pool: p}) },
		"AveragePool":               func() { d.Do(&device.AveragePool{Y: mean, X: x, B: 2, P: 16, C: 3}) },
		"AveragePoolBackward":       func() { d.Do(&device.AveragePoolBackward{DX: x, DY: mean, B: 2, P: 16, C: 3}) },
		"GroupMoments":              func() { d.Do(&device.GroupMoments{Mean: mean, Variance: variance, X: x, GroupShape: n}) },
		"GroupNorm": func() {
			d.Do(&device.GroupNorm{Y: other, X: x, Mean: mean, Variance: variance, Weight: scale, Bias: scale, GroupShape: n})
		},
		"GroupNormBackward": func() {
			d.Do(&device.GroupNormBackward{
				DX: other, Sums: sums, DY: x, X: x, Mean: mean, Variance: variance, Weight: scale, Bias: scale, GroupShape: n,
			})
		},
		"ReLU":         func() { d.Do(&device.Unary{Y: other, X: x, Function: device.ReLU}) },
		"ReLUBackward": func() { d.Do(&device.UnaryBackward{DX: other, DY: x, X: x, Function: device.ReLU}) },
		"Transpose":    func() { d.Do(&device.Transpose{Y: other, X: x, N: 2, Rows: 16, Columns: 3}) },
	} {
		d.AllocatesNothing(c.T, name, call)
	}
}
