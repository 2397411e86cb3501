package layer

import (
	"math"

	"github.com/avgpipe/avgpipe/stage/device"
)

// Convolution is y (B,OH,OW,Out) = x (B,H,W,In) * W (Out,In,Kernel,Kernel) [+ b]. It saves nothing and keeps nothing: the
// weight half needs x and dy alone.
type Convolution struct {
	memoryless
	Path    string // "layer1.0.conv1": the parameters are Path.weight and Path.bias
	Of      Image  // the input
	Out     int    // channels
	Kernel  int    // rows and columns of the window
	Stride  int
	Padding int
	Bias    bool
}

// Name implements Layer.
func (l Convolution) Name() string { return l.Path }

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

// Params implements Layer: the weight, then the bias. Weights keep the variance of what flows back through a ReLU (He et al.
// 2015, equation 14).
func (l Convolution) Params() []Param {
	fanOut := l.Kernel * l.Kernel * l.Out
	ps := []Param{{
		Name: l.Path + ".weight", Shape: []int{l.Out, l.Of.Channels, l.Kernel, l.Kernel},
		Init: Init{Deviation: math.Sqrt(2 / float64(fanOut))}, Decay: true,
	}}
	if l.Bias {
		ps = append(ps, Param{Name: l.Path + ".bias", Shape: []int{l.Out}})
	}
	return ps
}

// Ports implements Layer.
func (l Convolution) Ports(s Size) (in, out []Port) {
	return row("x", s, l.Of.Elements()), row("y", s, l.Output().Elements())
}

// FLOPs implements Layer.
func (l Convolution) FLOPs(s Size) (forward, backward float64) {
	forward = 2 * float64(s.Rows()) * float64(l.Output().Elements()) * float64(l.Of.Channels*l.Kernel*l.Kernel)
	return forward, 2 * forward
}

// Forward implements Layer.
func (l Convolution) Forward(p Pass) {
	c := l.shape(p.Size)
	if l.Bias {
		c.Bias = p.Params[1]
	}
	p.Device.Do(&device.Convolution{Y: p.Out, X: p.In, Weight: p.Params[0], ConvolutionShape: c})
}

// BackwardInput implements Layer.
func (l Convolution) BackwardInput(p Pass) {
	p.Device.Do(&device.ConvolutionBackward{DX: p.DIn, DY: p.DOut, Weight: p.Params[0], ConvolutionShape: l.shape(p.Size)})
}

// BackwardWeight implements Layer.
func (l Convolution) BackwardWeight(p Pass) {
	p.Device.Do(&device.ConvolutionBackwardWeight{DWeight: p.Grads[0], DY: p.DOut, X: p.In, ConvolutionShape: l.shape(p.Size)})
	if l.Bias {
		p.Device.Do(&device.SumRows{Sum: p.Grads[1], X: p.DOut})
	}
}
