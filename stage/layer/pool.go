package layer

import "github.com/avgpipe/avgpipe/stage/device"

// NewMaxPool is y (B,OH,OW,C), whose shape it returns too: the largest element of each window of x (B,H,W,C), channel by channel. A window has
// kernel rows and columns. The backward finds the winners again.
func NewMaxPool(path string, of Image, kernel, stride, padding int) (Layer, Image) {
	shape := device.Pool{Height: of.Height, Width: of.Width, Channels: of.Channels, Kernel: kernel, Stride: stride, Padding: padding}
	height, width := shape.Output()
	to := Image{height, width, of.Channels}
	return newPlain(path, of.Elements(), to.Elements(), func(b *Builder, x device.Mem) (y device.Mem, back func(dy device.Mem) (dx device.Mem)) {
		shape := shape
		shape.B, y = b.Rows(), b.Floats(to.Elements())
		b.Do(&device.MaxPool{Y: y, X: x, Pool: shape})
		return y, func(dy device.Mem) device.Mem {
			dx := b.Like(x)
			b.Do(&device.MaxPoolBackward{DX: dx, DY: dy, X: x, Pool: shape})
			return dx
		}
	}), to
}

// NewAveragePool is y (B,C), the mean of x (B,H,W,C) over its pixels.
func NewAveragePool(path string, of Image) Layer {
	return newPlain(path, of.Elements(), of.Channels, func(b *Builder, x device.Mem) (y device.Mem, back func(dy device.Mem) (dx device.Mem)) {
		y = b.Floats(of.Channels)
		b.Do(&device.AveragePool{Y: y, X: x, B: b.Rows(), P: of.Pixels(), C: of.Channels})
		return y, func(dy device.Mem) device.Mem {
			dx := b.Like(x)
			b.Do(&device.AveragePoolBackward{DX: dx, DY: dy, B: b.Rows(), P: of.Pixels(), C: of.Channels})
			return dx
		}
	})
}
