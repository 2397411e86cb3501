package device

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
func (s ConvolutionShape) Output() (height, width int) {
	return windows(s.Height, s.Kernel, s.Stride, s.Padding), windows(s.Width, s.Kernel, s.Stride, s.Padding)
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

// flops is what each of the three forms computes.
func (s ConvolutionShape) flops() float64 {
	height, width := s.Output()
	return 2 * float64(s.B*height*width) * float64(s.In*s.Out) * float64(s.Kernel*s.Kernel)
}

func (o *Convolution) check(c checks) {
	o.ConvolutionShape.check(c, F32, &o.Y, c.floatingType(&o.X), &o.X, o.X.typ, &o.Weight)
	c.optional(F32, o.Out, &o.Bias)
}

func (o *ConvolutionBackward) check(c checks) {
	o.ConvolutionShape.check(c, c.floatingType(&o.DY), &o.DY, F32, &o.DX, o.DY.typ, &o.Weight)
}

func (o *ConvolutionBackwardWeight) check(c checks) {
	o.ConvolutionShape.check(c, c.floatingType(&o.DY), &o.DY, o.DY.typ, &o.X, F32, &o.DWeight)
}

// check checks the shape and the operands, each with its type.
func (s *ConvolutionShape) check(c checks, outerType Type, outer *Mem, innerType Type, inner *Mem, weightType Type, weight *Mem) {
	c.positive(&s.B, &s.In, &s.Out)
	if s.Padding >= s.Kernel {
		c.fail("a padding of %d, expected 0 to Kernel-1, %d", s.Padding, s.Kernel-1)
	}
	pixels := c.windows(s.Height, s.Width, s.Kernel, s.Stride, s.Padding)
	c.need(outerType, s.B*pixels*s.Out, outer)
	c.need(innerType, s.B*s.Height*s.Width*s.In, inner)
	c.need(weightType, s.Out*s.In*s.Kernel*s.Kernel, weight)
}

// windows is how many windows lie on an image; none is an error.
func (c checks) windows(height, width, kernel, stride, padding int) int {
	oh, ow := windows(height, kernel, stride, padding), windows(width, kernel, stride, padding)
	if kernel < 1 || padding < 0 || oh < 1 || ow < 1 {
		c.fail("%dx%d pixels, Kernel=%d Stride=%d Padding=%d, expected positive numbers, a padding of at least 0 and a window that fits", height, width,
			kernel, stride, padding)
	}
	return oh * ow
}

func (o *MaxPool) check(c checks)         { o.Pool.check(c, &o.Y, &o.X) }
func (o *MaxPoolBackward) check(c checks) { o.Pool.check(c, &o.DY, &o.X, &o.DX) }

func (p *Pool) check(c checks, outer *Mem, inner ...*Mem) {
	c.positive(&p.B, &p.Channels)
	if 2*p.Padding > p.Kernel {
		c.fail("a padding of %d, expected at most half of Kernel, %d", p.Padding, p.Kernel)
	}
	c.need(F32, p.B*c.windows(p.Height, p.Width, p.Kernel, p.Stride, p.Padding)*p.Channels, outer)
	c.need(F32, p.B*p.Height*p.Width*p.Channels, inner...)
}

func (o *AveragePool) check(c checks) {
	c.positive(&o.B, &o.P, &o.C)
	c.need(F32, o.B*o.C, &o.Y)
	c.need(F32, o.B*o.P*o.C, &o.X)
}

func (o *AveragePoolBackward) check(c checks) {
	c.positive(&o.B, &o.P, &o.C)
	c.need(F32, o.B*o.C, &o.DY)
	c.need(F32, o.B*o.P*o.C, &o.DX)
}

func (o *GroupMoments) check(c checks) { o.GroupShape.check(c, &o.X, &o.Mean, &o.Variance) }

func (o *GroupNorm) check(c checks) {
	o.GroupShape.check(c, &o.X, &o.Mean, &o.Variance)
	c.need(F32, o.X.n, &o.Y)
	c.optional(F32, o.X.n, &o.Skip)
	c.need(F32, o.C, &o.Weight, &o.Bias)
}

func (o *GroupNormBackward) check(c checks) {
	o.GroupShape.check(c, &o.X, &o.Mean, &o.Variance)
	c.need(F32, o.X.n, &o.DY, &o.DX)
	c.optional(F32, o.X.n, &o.Skip, &o.DZ)
	c.need(F32, o.C, &o.Weight, &o.Bias)
	c.need(F32, 2*o.B*o.C, &o.Sums)
}

func (n *GroupShape) check(c checks, x, mean, variance *Mem) {
	if c.positive(&n.B, &n.P, &n.C, &n.Groups); n.C%n.Groups != 0 {
		c.fail("C=%d Groups=%d, expected a multiple of Groups", n.C, n.Groups)
	}
	c.need(F32, n.B*n.P*n.C, x)
	c.need(F32, n.B*n.Groups, mean, variance)
}

func (o *Transpose) check(c checks) {
	c.positive(&o.N, &o.Rows, &o.Columns)
	c.need(F32, o.N*o.Rows*o.Columns, &o.Y, &o.X)
}
