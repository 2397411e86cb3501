package layer

import "github.com/avgpipe/avgpipe/stage/device"

// Image is the shape of the images (Height,Width,Channels) of one layer, channels last. Micro-batches of images have one
// position: T = 1.
type Image struct{ Height, Width, Channels int }

// Pixels is the number of pixels, P.
func (i Image) Pixels() int { return i.Height * i.Width }

// Elements is the number of elements.
func (i Image) Elements() int { return i.Pixels() * i.Channels }

// PixelsPort is the name of the port through which images enter a model, (B,C,H,W).
const PixelsPort = "pixels"

// FromPixels brings images from the model's input (B,C,H,W) to the layout of its layers (B,H,W,C). No gradient flows to it.
type FromPixels struct {
	Path string
	Of   Image
}

// Name implements Layer.
func (l FromPixels) Name() string { return l.Path }

// Ports implements Layer.
func (l FromPixels) Ports(s Size) (in, out []Port) {
	return Data{}.constant(row("x", s, l.Of.Elements())), row("y", s, l.Of.Elements())
}

// Params implements Layer.
func (l FromPixels) Params() []Param { return nil }

// Emit implements Layer: the input is data.
func (l FromPixels) Emit(b *Builder, _ Tensors, in []device.Mem) (out []device.Mem, backward Backward) {
	y := b.Floats(l.Of.Elements())
	b.Do(&device.Transpose{Y: y, X: in[0], N: b.B, Rows: l.Of.Channels, Columns: l.Of.Pixels()})
	return single(y, func(device.Mem) device.Mem { return device.Mem{} })
}

// Data is a layer that works on data, or on what is made of data alone: nobody needs the gradient of its input. At the
// beginning of a model its input is the port of images.
type Data struct{ Layer }

func (l Data) constant(in []Port) []Port {
	in[0].Name, in[0].Constant = PixelsPort, true
	return in
}

// Ports implements Layer.
func (l Data) Ports(s Size) (in, out []Port) {
	in, out = l.Layer.Ports(s)
	return l.constant(in), out
}

// Flatten turns images (B,H,W,C) into rows (B,C*H*W) in the order that PyTorch's flatten gives, so that the weights of a
// classifier that follows are the same.
type Flatten struct {
	Path string
	Of   Image
}

// Name implements Layer.
func (l Flatten) Name() string { return l.Path }

// Ports implements Layer.
func (l Flatten) Ports(s Size) (in, out []Port) {
	return row("x", s, l.Of.Elements()), row("y", s, l.Of.Elements())
}

// Params implements Layer.
func (l Flatten) Params() []Param { return nil }

// Emit implements Layer.
func (l Flatten) Emit(b *Builder, _ Tensors, in []device.Mem) (out []device.Mem, backward Backward) {
	y := b.Floats(l.Of.Elements())
	b.Do(&device.Transpose{Y: y, X: in[0], N: b.B, Rows: l.Of.Pixels(), Columns: l.Of.Channels})
	return single(y, func(dy device.Mem) device.Mem {
		dx := b.Like(in[0])
		b.Do(&device.Transpose{Y: dx, X: dy, N: b.B, Rows: l.Of.Channels, Columns: l.Of.Pixels()})
		return dx
	})
}
