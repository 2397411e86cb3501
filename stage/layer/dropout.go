package layer

import "github.com/avgpipe/avgpipe/stage/device"

type dropout struct {
	Layer
	rate float64
}

// NewDropout drops elements of f's one output with a probability of rate (Srivastava et al. 2014). The mask is drawn again in the backward
// from the run's key and f's name, so it is the same on every split. With a rate of 0 it is f itself.
func NewDropout(f Layer, rate float64) Layer {
	if rate == 0 {
		return f
	}
	return &dropout{f, rate}
}

func (l *dropout) Emit(b *Builder, t Tensors, in []device.Mem) (out []device.Mem, backward Backward) {
	y, back := l.Layer.Emit(b, t, in)
	name, columns := Name(l)+".dropout", y[0].Len()/b.Rows()
	return []device.Mem{b.drop(y[0], name, l.rate, columns)}, func(dout []device.Mem) []device.Mem {
		return back([]device.Mem{b.drop(dout[0], name, l.rate, columns)})
	}
}
