package device

import "fmt"

// ConvolutionShape describes y (B,OH,OW,Out) = x (B,Height,Width,In) * weight (Out,In,Kernel,Kernel) [+ bias (Out)], a
// cross-correlation, as every library has it. Images lie with their channels last, weights in PyTorch's order.
type ConvolutionShape struct {
	B             int // samples
	Height, Width int // of x
	In, Out       int // channels
	Kernel        int // rows and columns of the window
	Stride        int // pixels from one window to the next
	Padding       int // pixels of zeros around x; less than Kernel
	Bias          Mem // optional: (Out)
}

// Output is the size of y: OH and OW.
func (c ConvolutionShape) Output() (height, width int) {
	return windows(c.Height, c.Kernel, c.Stride, c.Padding), windows(c.Width, c.Kernel, c.Stride, c.Padding)
}

// Pool describes the windows of y (B,OH,OW,C) on x (B,Height,Width,C).
type Pool struct {
	B             int // samples
	Height, Width int // of x
	Channels      int
	Kernel        int // rows and columns of the window
	Stride        int // pixels from one window to the next
	Padding       int // pixels around x that never win; at most half of Kernel
}

// Output is the size of y: OH and OW.
func (p Pool) Output() (height, width int) {
	return windows(p.Height, p.Kernel, p.Stride, p.Padding), windows(p.Width, p.Kernel, p.Stride, p.Padding)
}

// windows is how many windows lie on a line of n pixels.
func windows(n, kernel, stride, padding int) int {
	if stride < 1 || n+2*padding < kernel {
		return 0
	}
	return (n+2*padding-kernel)/stride + 1
}

// GroupShape gives the shape of x (B,P,C) whose channels are normalised in Groups groups of C/Groups: each sample's group
// has a mean and a variance of its own (Wu and He 2018, section 3.1). Batch norm (Ioffe and Szegedy 2015) is the same with
// all samples taken for one of B*P positions, and a group for each channel.
type GroupShape struct {
	B       int // samples
	P       int // positions of each: Height * Width
	C       int // channels, a multiple of Groups
	Groups  int
	Epsilon float32
	ReLU    bool // what is below 0 becomes 0, last of all
}

// Operations of convolutional networks. Images are (B,Height,Width,C): channels last.
//
// What a convolution multiplies, the last two operands, is F32, or both are BF16. Products are exact and sums F32 either way, as results are.
type (
	// Convolution computes Y as its shape describes. Within 1e-5 sqrt(In Kernel^2).
	Convolution struct {
		Y, X, Weight Mem
		ConvolutionShape
	}
	// ConvolutionBackward sets DX from DY; Bias is not looked at. Within 1e-5 sqrt(Out Kernel^2).
	ConvolutionBackward struct {
		DX, DY, Weight Mem
		ConvolutionShape
	}
	// ConvolutionBackwardWeight adds to DWeight; Bias is not looked at. Within 1e-5 sqrt(B OH OW).
	ConvolutionBackwardWeight struct {
		DWeight, DY, X Mem
		ConvolutionShape
	}

	// MaxPool sets Y to the largest element of each window, or to a NaN where there is one (exact).
	MaxPool struct {
		Y, X Mem
		Pool
	}
	// MaxPoolBackward sets DX: each window's DY goes to the first element of it, in row order, that is as large as y (exact; where
	// windows overlap, sums are in the order of the windows).
	MaxPoolBackward struct {
		DX, DY, X Mem
		Pool
	}
	// AveragePool sets Y (B,C) to the mean of X (B,P,C) over its positions.
	AveragePool struct {
		Y, X    Mem
		B, P, C int
	}
	// AveragePoolBackward sets DX (B,P,C) = DY (B,C) / P (exact, 1/P rounded before the product).
	AveragePoolBackward struct {
		DX, DY  Mem
		B, P, C int
	}

	// GroupMoments sets Mean and Variance (B,Groups) of X (B,P,C), the variance over the number of elements.
	GroupMoments struct {
		Mean, Variance, X Mem
		GroupShape
	}
	// GroupNorm sets Y = [relu] ((X - Mean) / sqrt(Variance + Epsilon) * Weight (C) + Bias (C) [+ Skip (B,P,C)]); Skip may be absent.
	GroupNorm struct {
		Y, X, Skip, Mean, Variance, Weight, Bias Mem
		GroupShape
	}
	// GroupNormBackward sets DX from DY, with Mean and Variance those of X itself. DZ, unless absent, receives the gradient before the
	// ReLU, which is that of Skip too. Sums (2,B,C) receives the sums over each sample's positions of dz, for the gradient of Bias, and of
	// dz * xhat, for that of Weight.
	GroupNormBackward struct {
		DX, DZ, Sums, DY, X, Skip, Mean, Variance, Weight, Bias Mem
		GroupShape
	}

	// Transpose sets Y (N,C,R) to X (N,R,C) with rows and columns exchanged (exact).
	Transpose struct {
		Y, X             Mem
		N, Rows, Columns int
	}
)

// check panics unless c describes a convolution with an output.
func (c ConvolutionShape) check(op string) (inputs, outputs, weights int) {
	oh, ow := c.Output()
	if c.B < 1 || c.In < 1 || c.Out < 1 || c.Kernel < 1 || c.Padding < 0 || c.Padding >= c.Kernel || oh < 1 || ow < 1 {
		panic(fmt.Sprintf("device: %s: B=%d of %dx%d, In=%d Out=%d, Kernel=%d Stride=%d Padding=%d, expected positive numbers, "+
			"a padding of 0 to Kernel-1 and a window that fits", op, c.B, c.Height, c.Width, c.In, c.Out, c.Kernel, c.Stride, c.Padding))
	}
	return c.B * c.Height * c.Width * c.In, c.B * oh * ow * c.Out, c.Out * c.In * c.Kernel * c.Kernel
}

// flops is what each of the three forms computes.
func (c ConvolutionShape) flops() float64 {
	height, width := c.Output()
	return 2 * float64(c.B*height*width) * float64(c.In*c.Out) * float64(c.Kernel*c.Kernel)
}

// Check implements Op.
func (o *Convolution) Check() {
	const op = "Convolution"
	t := floating(op, "x", o.X.typ)
	o.need(op, o.Y, F32, o.X, t, o.Weight, t)
	needOptional(op, "bias", o.Bias, o.Out)
}

// Check implements Op.
func (o *ConvolutionBackward) Check() {
	const op = "ConvolutionBackward"
	t := floating(op, "dy", o.DY.typ)
	o.need(op, o.DY, t, o.DX, F32, o.Weight, t)
}

// Check implements Op.
func (o *ConvolutionBackwardWeight) Check() {
	const op = "ConvolutionBackwardWeight"
	t := floating(op, "dy", o.DY.typ)
	o.need(op, o.DY, t, o.X, t, o.DWeight, F32)
}

func (c ConvolutionShape) need(op string, outer Mem, outerType Type, inner Mem, innerType Type, weight Mem, weightType Type) {
	inputs, outputs, weights := c.check(op)
	need(op, "the output side", outer, outerType, outputs)
	need(op, "the input side", inner, innerType, inputs)
	need(op, "weight", weight, weightType, weights)
}

// Check implements Op.
func (o *MaxPool) Check() { o.need("MaxPool", o.Y, o.X) }

// Check implements Op.
func (o *MaxPoolBackward) Check() {
	o.need("MaxPoolBackward", o.DY, o.X)
	o.need("MaxPoolBackward", o.DY, o.DX)
}

func (p Pool) need(op string, y, x Mem) {
	oh, ow := p.Output()
	if p.B < 1 || p.Channels < 1 || p.Kernel < 1 || p.Padding < 0 || 2*p.Padding > p.Kernel || oh < 1 || ow < 1 {
		panic(fmt.Sprintf("device: %s: B=%d of %dx%d, Channels=%d, Kernel=%d Stride=%d Padding=%d, expected positive numbers, "+
			"a padding of at most half of Kernel and a window that fits", op, p.B, p.Height, p.Width, p.Channels, p.Kernel, p.Stride, p.Padding))
	}
	need(op, "y", y, F32, p.B*oh*ow*p.Channels)
	need(op, "x", x, F32, p.B*p.Height*p.Width*p.Channels)
}

// Check implements Op.
func (o *AveragePool) Check() { needMeans("AveragePool", o.Y, o.X, o.B, o.P, o.C) }

// Check implements Op.
func (o *AveragePoolBackward) Check() { needMeans("AveragePoolBackward", o.DY, o.DX, o.B, o.P, o.C) }

func needMeans(op string, y, x Mem, b, p, c int) {
	needPositive(op, b, p, c)
	need(op, "y", y, F32, b*c)
	need(op, "x", x, F32, b*p*c)
}

// Check implements Op.
func (o *GroupMoments) Check() { o.needMoments("GroupMoments", o.X, o.Mean, o.Variance) }

// Check implements Op.
func (o *GroupNorm) Check() {
	o.need("GroupNorm", o.Y, o.X, o.Skip, o.Mean, o.Variance, o.Weight, o.Bias)
}

// Check implements Op.
func (o *GroupNormBackward) Check() {
	const op = "GroupNormBackward"
	o.need(op, o.DY, o.X, o.Skip, o.Mean, o.Variance, o.Weight, o.Bias)
	need(op, "dx", o.DX, F32, o.X.n)
	needOptional(op, "dz", o.DZ, o.X.n)
	need(op, "sums", o.Sums, F32, 2*o.B*o.C)
}

func (n GroupShape) needMoments(op string, x, mean, variance Mem) {
	if n.B < 1 || n.P < 1 || n.C < 1 || n.Groups < 1 || n.C%n.Groups != 0 {
		panic(fmt.Sprintf("device: %s: B=%d P=%d C=%d Groups=%d, expected positive numbers, C a multiple of Groups",
			op, n.B, n.P, n.C, n.Groups))
	}
	need(op, "x", x, F32, n.B*n.P*n.C)
	need(op, "mean", mean, F32, n.B*n.Groups)
	need(op, "variance", variance, F32, n.B*n.Groups)
}

func (n GroupShape) need(op string, y, x, skip, mean, variance, weight, bias Mem) {
	n.needMoments(op, x, mean, variance)
	need(op, "y", y, F32, x.n)
	needOptional(op, "skip", skip, x.n)
	need(op, "weight", weight, F32, n.C)
	need(op, "bias", bias, F32, n.C)
}

// Check implements Op.
func (o *Transpose) Check() {
	needPositive("Transpose", o.N, o.Rows, o.Columns)
	needF32("Transpose", o.N*o.Rows*o.Columns, o.Y, o.X)
}
