package layer

import "github.com/avgpipe/avgpipe/stage/device"

// NewMaxPool is y (B,OH,OW,C), whose shape it returns too: the largest element of each window of x (B,H,W,C), channel by channel. A window has
// kernel rows and columns. The backward finds the winners again.
func NewMaxPool(path string, of Image, kernel, stride, padding int) (Layer, Image) {
	shape := device.Pool{Height: of.Height, Width: of.Width, Channels: of.Channels, Kernel: kernel, Stride: stride, Padding: padding}
	height, width := shape.Output()
	to := Image{height, width, of.Channels}
	sized := func(b *Builder) device.Pool {
		shape := shape
		shape.B = b.Rows()
		return shape
	}
	return newPlain(path, of.Elements(), to.Elements(),
		func(b *Builder, y, x device.Mem) device.Op { return &device.MaxPool{Y: y, X: x, Pool: sized(b)} },
		func(b *Builder, dx, dy, _, x device.Mem) device.Op {
			return &device.MaxPoolBackward{DX: dx, DY: dy, X: x, Pool: sized(b)}
		}), to
}

// NewAveragePool is y (B,C), the mean of x (B,H,W,C) over its pixels.
func NewAveragePool(path string, of Image) Layer {
	return newPlain(path, of.Elements(), of.Channels,
		func(b *Builder, y, x device.Mem) device.Op {
			return &device.AveragePool{Y: y, X: x, B: b.Rows(), P: of.Pixels(), C: of.Channels}
		},
		func(b *Builder, dx, dy, _, _ device.Mem) device.Op {
			return &device.AveragePoolBackward{DX: dx, DY: dy, B: b.Rows(), P: of.Pixels(), C: of.Channels}
		})
}
