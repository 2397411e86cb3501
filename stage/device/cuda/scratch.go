//go:build cuda && cgo && linux && amd64

package cuda

import (
	"github.com/avgpipe/avgpipe/stage/device"
	"github.com/avgpipe/avgpipe/stage/device/cuda/dnn"
)

// Scratch is how many bytes an operation takes beside its operands. Operations run one after the other and share the memory of the largest.
func (d *Device) Scratch(op device.Op) int {
	switch o := op.(type) {
	case *device.MatMul:
		if d.widens(o) {
			return room(device.F32, o.C.Len())
		}
	case *device.AttentionBackward:
		if byMatrixUnits("attention_queries", o.Q, o.S) != "" {
			return room(device.F32, o.AttentionShape.Saved())
		}
	case *device.Convolution:
		return d.convolutionScratch(dnn.Forward, o.ConvolutionShape, o.X.Type())
	case *device.ConvolutionBackward:
		return d.convolutionScratch(dnn.Backward, o.ConvolutionShape, o.DY.Type())
	case *device.ConvolutionBackwardWeight:
		return d.convolutionScratch(dnn.BackwardWeight, o.ConvolutionShape, o.X.Type())
	case *device.LSTMBackward:
		if d.blas != nil && o.Weight.Type() == device.BF16 {
			return room(device.BF16, o.B*4*o.H)
		}
	case *device.AdditiveAttentionBackward:
		return room(device.F32, o.DQ.Len()) + columnsOf(o.B*o.T, o.DV.Len()).bytes(1)
	case *device.SumRows:
		return columnsOf(o.Rows(), o.Sum.Len()).bytes(1)
	case *device.NormBackwardWeight:
		return columnsOf(o.Size()).bytes(2)
	case *device.GroupMoments:
		return partsOf(o.GroupShape).bytes()
	case *device.GroupNormBackward:
		return partsOf(o.GroupShape).bytes() + room(device.F32, 2*o.B*o.Groups)
	}
	return 0
}

// scratch is memory of one operation that is still free.
type scratch struct{ rest device.Mem }

// scratchAlignment is of each piece: as allocations are.
const scratchAlignment = 256

// room is the bytes that a piece of n elements takes.
func room(t device.Type, n int) int {
	return (n*t.Bytes() + scratchAlignment - 1) / scratchAlignment * scratchAlignment
}

// take is n elements.
func (s *scratch) take(t device.Type, n int) device.Mem {
	words := room(t, n) / device.F32.Bytes()
	piece := s.rest.Slice(0, words).As(t, n)
	s.rest = s.rest.Slice(words, s.rest.Len()-words)
	return piece
}

// scratchOf is the memory that an operation takes beside its operands. It is false where there is none.
func (d *Device) scratchOf(op device.Op) (scratch, bool) {
	words := d.Scratch(op) / device.F32.Bytes()
	if d.scratch.Len() < words {
		d.check("destroy graphs", d.graphs.forget(func(*graph) bool { return true })) // they use the old one
		d.Free(d.scratch)
		m, err := d.Alloc(device.F32, words)
		if d.scratch = m; err != nil {
			d.check("scratch of "+device.NameOf(op), err)
			return scratch{}, false
		}
	}
	return scratch{d.scratch.Slice(0, words)}, true
}
