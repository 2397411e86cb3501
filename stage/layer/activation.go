package layer

import "github.com/avgpipe/avgpipe/stage/device"

// NewActivation is a function of single elements of x (R,width): GELU, in its tanh form ("gelu_new" in Hugging Face configs) or itself
// ("gelu"), ReLU (Nair and Hinton 2010) or tanh. A GELU lies between two products.
func NewActivation(path string, f device.Function, width int) Layer {
	l := newPlain(path, width, width,
		func(_ *Builder, y, x device.Mem) device.Op { return &device.Unary{Y: y, X: x, Function: f} },
		func(_ *Builder, dx, dy, y, x device.Mem) device.Op {
			if f == device.Tanh {
				x = y
			}
			return &device.UnaryBackward{DX: dx, DY: dy, X: x, Function: f}
		})
	l.x.operand = f == device.GELU || f == device.GELUErf
	l.y.operand = l.x.operand
	return l
}

// NewWiden gives a norm in F32 what a layer between products leaves in the type in which they compute: y = x (R,width).
func NewWiden(path string, width int) Layer {
	l := newPlain(path, width, width,
		func(_ *Builder, y, x device.Mem) device.Op { return &device.Copy{Y: y, X: x} },
		func(_ *Builder, dx, dy, _, _ device.Mem) device.Op { return &device.Copy{Y: dx, X: dy} })
	l.x.operand = true
	return l
}
