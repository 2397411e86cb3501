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

// NewFromPixels brings images from the model's input (B,C,H,W) to the layout of its layers (B,H,W,C). No gradient flows to it.
func NewFromPixels(path string, of Image) Layer {
	return Data{newTranspose(path, of.Channels, of.Pixels())}
}

// newTranspose is x (B,rows,columns) with rows and columns exchanged.
func newTranspose(path string, rows, columns int) Layer {
	return newPlain(path, rows*columns, rows*columns,
		func(b *Builder, y, x device.Mem) device.Op {
			return &device.Transpose{Y: y, X: x, N: b.B, Rows: rows, Columns: columns}
		},
		func(b *Builder, dx, dy, _, _ device.Mem) device.Op {
			return &device.Transpose{Y: dx, X: dy, N: b.B, Rows: columns, Columns: rows}
		})
}

// Data is a layer that works on data, or on what is made of data alone: nobody needs the gradient of its input. At the
// beginning of a model its input is the port of images.
type Data struct{ Layer }

// Describe implements Layer.
func (l Data) Describe(s Size) Description {
	d := l.Layer.Describe(s)
	d.In[0].Name, d.In[0].Constant = PixelsPort, true
	return d
}

// NewFlatten turns images (B,H,W,C) into rows (B,C*H*W) in the order that PyTorch's flatten gives, so that the weights of a
// classifier that follows are the same.
func NewFlatten(path string, of Image) Layer { return newTranspose(path, of.Pixels(), of.Channels) }
