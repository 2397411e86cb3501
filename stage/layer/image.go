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
	parameterless
	memoryless
	Path string
	Of   Image
}

// Name implements Layer.
func (l FromPixels) Name() string { return l.Path }

// Ports implements Layer.
func (l FromPixels) Ports(s Size) (in, out []Port) {
	return Data{}.constant(row("x", s, l.Of.Elements())), row("y", s, l.Of.Elements())
}

// Forward implements Layer.
func (l FromPixels) Forward(p Pass) {
	p.Device.Do(&device.Transpose{Y: p.Out, X: p.In, N: p.Size.B, Rows: l.Of.Channels, Columns: l.Of.Pixels()})
}

// BackwardInput implements Layer: the input is data.
func (l FromPixels) BackwardInput(Pass) {}

// Data is a layer that works on data, or on what is made of data alone: the gradient of its input is not computed. At the
// beginning of a model its input is the port of images. The layer's weight half must not need its input half.
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

// FLOPs implements Layer: half of the backward is left out.
func (l Data) FLOPs(s Size) (forward, backward float64) {
	forward, backward = l.Layer.FLOPs(s)
	return forward, backward / 2
}

// BackwardInput implements Layer.
func (l Data) BackwardInput(Pass) {}

// Flatten turns images (B,H,W,C) into rows (B,C*H*W) in the order that PyTorch's flatten gives, so that the weights of a
// classifier that follows are the same.
type Flatten struct {
	parameterless
	memoryless
	Path string
	Of   Image
}

// Name implements Layer.
func (l Flatten) Name() string { return l.Path }

// Ports implements Layer.
func (l Flatten) Ports(s Size) (in, out []Port) {
	return row("x", s, l.Of.Elements()), row("y", s, l.Of.Elements())
}

// Forward implements Layer.
func (l Flatten) Forward(p Pass) {
	p.Device.Do(&device.Transpose{Y: p.Out, X: p.In, N: p.Size.B, Rows: l.Of.Pixels(), Columns: l.Of.Channels})
}

// BackwardInput implements Layer.
func (l Flatten) BackwardInput(p Pass) {
	p.Device.Do(&device.Transpose{Y: p.DIn, X: p.DOut, N: p.Size.B, Rows: l.Of.Channels, Columns: l.Of.Pixels()})
}
