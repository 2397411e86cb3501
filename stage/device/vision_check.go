package device

import "fmt"

// check panics unless c describes a convolution with an output.
func (c Convolution) check(op string) (inputs, outputs, weights int) {
	oh, ow := c.Output()
	if c.B < 1 || c.In < 1 || c.Out < 1 || c.Kernel < 1 || c.Padding < 0 || c.Padding >= c.Kernel || oh < 1 || ow < 1 {
		panic(fmt.Sprintf("device: %s: B=%d of %dx%d, In=%d Out=%d, Kernel=%d Stride=%d Padding=%d, expected positive numbers, "+
			"a padding of 0 to Kernel-1 and a window that fits", op, c.B, c.Height, c.Width, c.In, c.Out, c.Kernel, c.Stride, c.Padding))
	}
	return c.B * c.Height * c.Width * c.In, c.B * oh * ow * c.Out, c.Out * c.In * c.Kernel * c.Kernel
}

// Check panics unless the operands of Convolution fit.
func (c Convolution) Check(y, x, weight Mem) {
	const op = "Convolution"
	c.need(op, y, x, weight)
	if !c.Bias.Absent() {
		Need(op, "bias", c.Bias, F32, c.Out)
	}
}

// CheckBackward panics unless the operands of ConvolutionBackward fit.
func (c Convolution) CheckBackward(dx, dy, weight Mem) { c.need("ConvolutionBackward", dy, dx, weight) }

// CheckBackwardWeight panics unless the operands of ConvolutionBackwardWeight fit.
func (c Convolution) CheckBackwardWeight(dweight, dy, x Mem) {
	c.need("ConvolutionBackwardWeight", dy, x, dweight)
}

func (c Convolution) need(op string, outer, inner, weight Mem) {
	inputs, outputs, weights := c.check(op)
	Need(op, "the output side", outer, F32, outputs)
	Need(op, "the input side", inner, F32, inputs)
	Need(op, "weight", weight, F32, weights)
}

// Check panics unless the operands of MaxPool, or the gradients in their places, fit.
func (p Pool) Check(op string, y, x Mem) {
	oh, ow := p.Output()
	if p.B < 1 || p.Channels < 1 || p.Kernel < 1 || p.Padding < 0 || 2*p.Padding > p.Kernel || oh < 1 || ow < 1 {
		panic(fmt.Sprintf("device: %s: B=%d of %dx%d, Channels=%d, Kernel=%d Stride=%d Padding=%d, expected positive numbers, "+
			"a padding of at most half of Kernel and a window that fits", op, p.B, p.Height, p.Width, p.Channels, p.Kernel, p.Stride, p.Padding))
	}
	Need(op, "y", y, F32, p.B*oh*ow*p.Channels)
	Need(op, "x", x, F32, p.B*p.Height*p.Width*p.Channels)
}

// CheckAveragePool panics unless the operands of AveragePool, or the gradients in their places, fit.
func CheckAveragePool(op string, y, x Mem, b, p, c int) {
	needPositive(op, b, p, c)
	Need(op, "y", y, F32, b*c)
	Need(op, "x", x, F32, b*p*c)
}

func needPositive(op string, first, second, third int) {
	if first < 1 || second < 1 || third < 1 {
		panic(fmt.Sprintf("device: %s: dimensions %d, %d and %d, expected all positive", op, first, second, third))
	}
}

// needGroups panics unless the shape is one and the statistics fit.
func (n GroupNorm) needGroups(op string, x, mean, variance Mem) {
	if n.B < 1 || n.P < 1 || n.C < 1 || n.Groups < 1 || n.C%n.Groups != 0 {
		panic(fmt.Sprintf("device: %s: B=%d P=%d C=%d Groups=%d, expected positive numbers, C a multiple of Groups",
			op, n.B, n.P, n.C, n.Groups))
	}
	Need(op, "x", x, F32, n.B*n.P*n.C)
	Need(op, "mean", mean, F32, n.B*n.Groups)
	Need(op, "variance", variance, F32, n.B*n.Groups)
}

// CheckMoments panics unless the operands of GroupMoments fit.
func (n GroupNorm) CheckMoments(mean, variance, x Mem) {
	n.needGroups("GroupMoments", x, mean, variance)
}

// CheckForward panics unless the operands of GroupNorm fit.
func (n GroupNorm) CheckForward(y, x, skip, mean, variance, weight, bias Mem) {
	n.need("GroupNorm", y, x, skip, mean, variance, weight, bias)
}

// CheckBackward panics unless the operands of GroupNormBackward fit.
func (n GroupNorm) CheckBackward(dx, dz, sums, dy, x, skip, mean, variance, weight, bias Mem) {
	const op = "GroupNormBackward"
	n.need(op, dy, x, skip, mean, variance, weight, bias)
	Need(op, "dx", dx, F32, x.n)
	if !dz.Absent() {
		Need(op, "dz", dz, F32, x.n)
	}
	Need(op, "sums", sums, F32, 2*n.B*n.C)
}

func (n GroupNorm) need(op string, y, x, skip, mean, variance, weight, bias Mem) {
	n.needGroups(op, x, mean, variance)
	Need(op, "y", y, F32, x.n)
	if !skip.Absent() {
		Need(op, "skip", skip, F32, x.n)
	}
	Need(op, "weight", weight, F32, n.C)
	Need(op, "bias", bias, F32, n.C)
}

// CheckReLU panics unless the operands of ReLU, or of ReLUBackward, have the same length.
func CheckReLU(op string, operands ...Mem) {
	for _, m := range operands {
		Need(op, "operand", m, F32, operands[0].n)
	}
}

// CheckTranspose panics unless the operands of Transpose fit.
func CheckTranspose(y, x Mem, n, rows, columns int) {
	const op = "Transpose"
	needPositive(op, n, rows, columns)
	Need(op, "y", y, F32, n*rows*columns)
	Need(op, "x", x, F32, n*rows*columns)
}
