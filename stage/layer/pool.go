package layer

import "github.com/avgpipe/avgpipe/stage/device"

// MaxPool is y (B,OH,OW,C): the largest element of each window of x (B,H,W,C), channel by channel. It saves nothing: the
// backward finds the winners again.
type MaxPool struct {
	parameterless
	memoryless
	Path    string
	Of      Image
	Kernel  int // rows and columns of the window
	Stride  int
	Padding int
}

// Name implements Layer.
func (l MaxPool) Name() string { return l.Path }

func (l MaxPool) shape(s Size) device.Pool {
	return device.Pool{
		B: s.Rows(), Height: l.Of.Height, Width: l.Of.Width, Channels: l.Of.Channels,
		Kernel: l.Kernel, Stride: l.Stride, Padding: l.Padding,
	}
}

// Output is the shape of y.
func (l MaxPool) Output() Image {
	height, width := l.shape(Size{B: 1, T: 1}).Output()
	return Image{Height: height, Width: width, Channels: l.Of.Channels}
}

// Ports implements Layer.
func (l MaxPool) Ports(s Size) (in, out []Port) {
	return row("x", s, l.Of.Elements()), row("y", s, l.Output().Elements())
}

// Forward implements Layer.
func (l MaxPool) Forward(p Pass) {
	p.Device.Do(&device.MaxPool{Y: p.Out, X: p.In, Pool: l.shape(p.Size)})
}

// BackwardInput implements Layer.
func (l MaxPool) BackwardInput(p Pass) {
	p.Device.Do(&device.MaxPoolBackward{DX: p.DIn, DY: p.DOut, X: p.In, Pool: l.shape(p.Size)})
}

// AveragePool is y (B,C), the mean of x (B,H,W,C) over its pixels.
type AveragePool struct {
	parameterless
	memoryless
	Path string
	Of   Image
}

// Name implements Layer.
func (l AveragePool) Name() string { return l.Path }

// Ports implements Layer.
func (l AveragePool) Ports(s Size) (in, out []Port) {
	return row("x", s, l.Of.Elements()), row("y", s, l.Of.Channels)
}

// Forward implements Layer.
func (l AveragePool) Forward(p Pass) {
	p.Device.Do(&device.AveragePool{Y: p.Out, X: p.In, B: p.Size.Rows(), P: l.Of.Pixels(), C: l.Of.Channels})
}

// BackwardInput implements Layer.
func (l AveragePool) BackwardInput(p Pass) {
	p.Device.Do(&device.AveragePoolBackward{DX: p.DIn, DY: p.DOut, B: p.Size.Rows(), P: l.Of.Pixels(), C: l.Of.Channels})
}
