//go:build cuda && cgo && linux && amd64

package cuda

import (
	"fmt"

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
		if heldQueries.of(o.Q, o.S) != "" {
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

// Workspace implements device.Planner: the largest scratch, and a table for each kind of rotation.
func (d *Device) Workspace(ops []device.Op) int {
	largest, tables := 0, 0
	for _, op := range ops {
		largest = max(largest, d.Scratch(op))
	}
	for r := range rotationsOf(ops) {
		tables += r.T * r.S * device.F32.Bytes()
	}
	return largest + tables
}

// Prepare implements device.Planner.
func (d *Device) Prepare(ops []device.Op) error {
	for _, op := range ops {
		if err := d.reserve(op); err != nil {
			return err
		}
	}
	for r := range rotationsOf(ops) {
		if _, err := d.table(r); err != nil {
			return err
		}
	}
	return nil
}

// rotationsOf are the kinds of rotations in operations, each with all positions that it turns. Where sequences continue, that is what their cache holds.
func rotationsOf(ops []device.Op) map[device.Rotation]bool {
	longest, cached := map[device.Rotation]int{}, 0
	for _, op := range ops {
		switch o := op.(type) {
		case *device.Rotate:
			kind := device.Rotation{S: o.S, Theta: o.Theta, Stretch: o.Stretch}
			longest[kind] = max(longest[kind], o.Past+o.T)
		case *device.CacheAppend:
			cached = max(cached, o.Capacity)
		}
	}
	all := map[device.Rotation]bool{}
	for kind, positions := range longest {
		kind.T = max(positions, cached)
		all[kind] = true
	}
	return all
}

// reserve makes the scratch at least as large as an operation needs. Graphs have the address of the old one.
func (d *Device) reserve(op device.Op) (err error) {
	bytes := d.Scratch(op)
	if d.scratch.Bytes() >= bytes {
		return nil
	}
	d.check("destroy graphs", d.graphs.forget(func(*graph) bool { return true }))
	d.Free(d.scratch)
	if d.scratch, err = d.Alloc(device.F32, bytes/device.F32.Bytes()); err != nil {
		return fmt.Errorf("memory beside the operands of %s: %w", device.NameOf(op), err)
	}
	return nil
}

// scratchOf is the memory that an operation takes beside its operands. It is false where there is none.
func (d *Device) scratchOf(op device.Op) (scratch, bool) {
	if err := d.reserve(op); err != nil {
		d.check("run "+device.NameOf(op), err)
		return scratch{}, false
	}
	return scratch{d.scratch.Slice(0, d.Scratch(op)/device.F32.Bytes())}, true
}
