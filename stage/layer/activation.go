package layer

import "github.com/avgpipe/avgpipe/stage/device"

// NewActivation is a function of single elements of x (R,width): GELU, in its tanh form ("gelu_new" in Hugging Face configs) or itself
// ("gelu"), ReLU (Nair and Hinton 2010) or tanh. A GELU lies between two products.
func NewActivation(path string, f device.Function, width int) Layer {
	l := newPlain(path, width, width, func(b *Builder, x device.Mem) (y device.Mem, back func(dy device.Mem) (dx device.Mem)) {
		y = b.Like(x)
		b.Do(&device.Unary{Y: y, X: x, Function: f})
		return y, func(dy device.Mem) device.Mem {
			dx, seen := b.Like(x), x
			if f == device.Tanh {
				seen = y
			}
			b.Do(&device.UnaryBackward{DX: dx, DY: dy, X: seen, Function: f})
			return dx
		}
	})
	l.x.operand = f == device.GELU || f == device.GELUErf
	l.y.operand = l.x.operand
	return l
}

// NewWiden gives a norm in F32 what a layer between products leaves in the type in which they compute: y = x (R,width).
func NewWiden(path string, width int) Layer {
	l := newPlain(path, width, width, func(b *Builder, x device.Mem) (y device.Mem, back func(dy device.Mem) (dx device.Mem)) {
		y = b.Floats(width)
		b.Do(&device.Copy{Y: y, X: x})
		return y, func(dy device.Mem) device.Mem {
			dx := b.Like(x)
			b.Do(&device.Copy{Y: dx, X: dy})
			return dx
		}
	})
	l.x.operand = true
	return l
}
