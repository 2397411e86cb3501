package device

// Convolution describes y (B,OH,OW,Out) = x (B,Height,Width,In) * weight (Out,In,Kernel,Kernel) [+ bias (Out)], a
// cross-correlation, as every library has it. Images lie with their channels last, weights in PyTorch's order.
type Convolution struct {
	B             int // samples
	Height, Width int // of x
	In, Out       int // channels
	Kernel        int // rows and columns of the window
	Stride        int // pixels from one window to the next
	Padding       int // pixels of zeros around x; less than Kernel
	Bias          Mem // optional: (Out)
}

// Output is the size of y: OH and OW.
func (c Convolution) Output() (height, width int) {
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

// GroupNorm gives the shape of x (B,P,C) whose channels are normalised in Groups groups of C/Groups: each sample's group
// has a mean and a variance of its own (Wu and He 2018, section 3.1). Batch norm (Ioffe and Szegedy 2015) is the same with
// all samples taken for one of B*P positions, and a group for each channel.
type GroupNorm struct {
	B       int // samples
	P       int // positions of each: Height * Width
	C       int // channels, a multiple of Groups
	Groups  int
	Epsilon float32
	ReLU    bool // what is below 0 becomes 0, last of all
}

// Vision are the operations of convolutional networks. Images are (B,Height,Width,C): channels last.
type Vision interface {
	// Convolution computes y as c describes. Within 1e-5 sqrt(In Kernel^2).
	Convolution(y, x, weight Mem, c Convolution)
	// ConvolutionBackward sets dx from dy; c.Bias is not looked at. Within 1e-5 sqrt(Out Kernel^2).
	ConvolutionBackward(dx, dy, weight Mem, c Convolution)
	// ConvolutionBackwardWeight adds to dweight; c.Bias is not looked at. Within 1e-5 sqrt(B OH OW).
	ConvolutionBackwardWeight(dweight, dy, x Mem, c Convolution)

	// MaxPool sets y to the largest element of each window, or to a NaN where there is one (exact).
	MaxPool(y, x Mem, p Pool)
	// MaxPoolBackward sets dx: each window's dy goes to the first element of it, in row order, that is as large as y
	// (exact; where windows overlap, sums are in the order of the windows).
	MaxPoolBackward(dx, dy, x Mem, p Pool)
	// AveragePool sets y (B,C) to the mean of x (B,P,C) over its positions.
	AveragePool(y, x Mem, b, p, c int)
	// AveragePoolBackward sets dx (B,P,C) = dy (B,C) / P (exact, 1/P rounded before the product).
	AveragePoolBackward(dx, dy Mem, b, p, c int)

	// GroupMoments sets mean and variance (B,Groups) of x (B,P,C), the variance over the number of elements.
	GroupMoments(mean, variance, x Mem, n GroupNorm)
	// GroupNorm sets y = [relu] ((x - mean) / sqrt(variance + Epsilon) * weight (C) + bias (C) [+ skip (B,P,C)]); skip may
	// be absent.
	GroupNorm(y, x, skip, mean, variance, weight, bias Mem, n GroupNorm)
	// GroupNormBackward sets dx from dy, with mean and variance those of x itself. dz, unless absent, receives the gradient
	// before the ReLU, which is that of skip too. sums (2,B,C) receives the sums over each sample's positions of dz, for
	// the gradient of bias, and of dz * xhat, for that of weight.
	GroupNormBackward(dx, dz, sums, dy, x, skip, mean, variance, weight, bias Mem, n GroupNorm)

	// ReLU sets y = max(x, 0); a NaN stays one (exact).
	ReLU(y, x Mem)
	// ReLUBackward sets dx = dy where x > 0, else 0; dx may be dy, and x may be the output of ReLU (exact).
	ReLUBackward(dx, dy, x Mem)
	// Transpose sets y (N,C,R) to x (N,R,C) with rows and columns exchanged (exact).
	Transpose(y, x Mem, n, rows, columns int)
}
