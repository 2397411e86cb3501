package layer

import "github.com/avgpipe/avgpipe/stage/device"

// MaxPool is y (B,OH,OW,C): the largest element of each window of x (B,H,W,C), channel by channel. The
// backward finds the winners again.
type MaxPool struct {
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

// Params implements Layer.
func (l MaxPool) Params() []Param { return nil }

// Emit implements Layer.
func (l MaxPool) Emit(b *Builder, _ Tensors, in []device.Mem) (out []device.Mem, backward Backward) {
	y, shape := b.Floats(l.Output().Elements()), l.shape(b.Size)
	b.Do(&device.MaxPool{Y: y, X: in[0], Pool: shape})
	return single(y, func(dy device.Mem) device.Mem {
		dx := b.Like(in[0])
		b.Do(&device.MaxPoolBackward{DX: dx, DY: dy, X: in[0], Pool: shape})
		return dx
	})
}

// AveragePool is y (B,C), the mean of x (B,H,W,C) over its pixels.
type AveragePool struct {
	Path string
	Of   Image
}

// Name implements Layer.
func (l AveragePool) Name() string { return l.Path }

// Ports implements Layer.
func (l AveragePool) Ports(s Size) (in, out []Port) {
	return row("x", s, l.Of.Elements()), row("y", s, l.Of.Channels)
}

// Params implements Layer.
func (l AveragePool) Params() []Param { return nil }

// Emit implements Layer.
func (l AveragePool) Emit(b *Builder, _ Tensors, in []device.Mem) (out []device.Mem, backward Backward) {
	y := b.Floats(l.Of.Channels)
	b.Do(&device.AveragePool{Y: y, X: in[0], B: b.Rows(), P: l.Of.Pixels(), C: l.Of.Channels})
	return single(y, func(dy device.Mem) device.Mem {
		dx := b.Like(in[0])
		b.Do(&device.AveragePoolBackward{DX: dx, DY: dy, B: b.Rows(), P: l.Of.Pixels(), C: l.Of.Channels})
		return dx
	})
}
