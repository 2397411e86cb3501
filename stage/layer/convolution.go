package layer

import (
	"math"

	"github.com/avgpipe/avgpipe/stage/device"
)

// Convolution is y (B,OH,OW,Out) = x (B,H,W,In) * W (Out,In,Kernel,Kernel) [+ b]. Where products compute in BF16, so does it, from a
// copy of W and with x and dy rounded; its results are F32.
type Convolution struct {
	Path    string // "layer1.0.conv1": the parameters are Path.weight and Path.bias
	Of      Image  // the input
	Out     int    // channels
	Kernel  int    // rows and columns of the window
	Stride  int
	Padding int
	Bias    bool
}

// shape is the device's view of a micro-batch.
func (l Convolution) shape(s Size) device.ConvolutionShape {
	return device.ConvolutionShape{
		B: s.Rows(), Height: l.Of.Height, Width: l.Of.Width, In: l.Of.Channels, Out: l.Out,
		Kernel: l.Kernel, Stride: l.Stride, Padding: l.Padding,
	}
}

// Output is the shape of y.
func (l Convolution) Output() Image {
	height, width := l.shape(Size{B: 1, T: 1}).Output()
	return Image{Height: height, Width: width, Channels: l.Out}
}

// Describe implements Layer: the parameters are the weight, then the bias. Weights keep the variance of what flows back through a ReLU (He
// et al. 2015, equation 14).
func (l Convolution) Describe(s Size) Description {
	fanOut := l.Kernel * l.Kernel * l.Out
	ps := []Param{{
		Name: l.Path + ".weight", Shape: []int{l.Out, l.Of.Channels, l.Kernel, l.Kernel},
		Init: Init{Deviation: math.Sqrt(2 / float64(fanOut))}, Decay: true, Product: true,
	}}
	if l.Bias {
		ps = append(ps, Param{Name: l.Path + ".bias", Shape: []int{l.Out}})
	}
	return Description{l.Path, ps, row("x", s, l.Of.Elements()), row("y", s, l.Output().Elements())}
}

// Emit implements Layer.
func (l Convolution) Emit(b *Builder, t Tensors, in []device.Mem) (out []device.Mem, backward Backward) {
	x, y, shape := in[0], b.Floats(l.Output().Elements()), l.shape(b.Size)
	biased := shape
	if l.Bias {
		biased.Bias = t.Params[1]
	}
	b.Do(&device.Convolution{Y: y, X: b.narrow(x), Weight: t.Params[0], ConvolutionShape: biased})
	return single(y, func(dy device.Mem) device.Mem {
		if l.Bias {
			b.Do(&device.SumRows{Sum: t.Grads[1], X: dy})
		}
		dy = b.narrow(dy)
		b.Do(&device.ConvolutionBackwardWeight{DWeight: t.Grads[0], DY: dy, X: b.narrow(x), ConvolutionShape: shape})
		dx := b.Like(x)
		b.Do(&device.ConvolutionBackward{DX: dx, DY: dy, Weight: t.Params[0], ConvolutionShape: shape})
		return dx
	})
}
