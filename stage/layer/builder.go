package layer

import (
	"github.com/avgpipe/avgpipe/stage/device"
	"github.com/avgpipe/avgpipe/stage/program"
)

// Builder is what layers write their operations to, for a micro-batch of one size.
type Builder struct {
	*program.Builder
	Size
	// Evaluating says that no backward follows. Nothing is dropped out, and running statistics are used instead of the micro-batch's own.
	Evaluating bool
	// Recomputing says that this forward repeats one of the same micro-batch: running statistics have been counted.
	Recomputing bool
	// Repeated says that this forward of a training will run again before its backward.
	Repeated bool
	// Context is nil unless the pass continues sequences.
	Context *Context

	narrowed map[device.Mem]device.Mem // what narrow made in this pass
}

// Floats is a new tensor (R,columns) of F32.
func (b *Builder) Floats(columns int) device.Mem { return b.New(device.F32, b.Rows()*columns) }

// Operand is a new tensor (R,columns) that a product reads or writes: in BF16 where products compute in it.
func (b *Builder) Operand(columns int) device.Mem { return b.New(b.Compute, b.Rows()*columns) }

// Like is a new tensor of the type and the length of m.
func (b *Builder) Like(m device.Mem) device.Mem { return b.New(m.Type(), m.Len()) }

// narrow is x in the type in which products compute. All who ask for it within a pass share it; another pass makes it again, which costs
// less than keeping it.
func (b *Builder) narrow(x device.Mem) device.Mem {
	if x.Type() == b.Compute {
		return x
	}
	y, ok := b.narrowed[x]
	if !ok {
		y = b.New(b.Compute, x.Len())
		b.Do(&device.Copy{Y: y, X: x})
		b.narrowed[x] = y
	}
	return y
}

// add is a new tensor, x + y, of x's type.
func (b *Builder) add(x, y device.Mem) device.Mem {
	sum := b.Like(x)
	b.Do(&device.Add{Out: sum, A: x, B: y})
	return sum
}

// rounded is a sum, of F32, in the type of x.
func (b *Builder) rounded(sum, x device.Mem) device.Mem {
	if x.Type() == device.F32 {
		return sum
	}
	return b.narrow(sum)
}

// drop is x (R,columns) with elements dropped by the random numbers of this name.
func (b *Builder) drop(x device.Mem, name string, rate float64, columns int) device.Mem {
	return b.dropped(x, device.Mem{}, rate, device.DropoutMask{
		Stream: device.StreamOf(name), PerSample: b.T * columns, Rows: b.Rows(), Columns: columns, Share: 1,
	})
}

// dropped is a new tensor, x with elements dropped, or rows by their ids; x itself where nothing is dropped.
func (b *Builder) dropped(x, ids device.Mem, rate float64, mask device.DropoutMask) device.Mem {
	if rate == 0 || b.Evaluating {
		return x
	}
	y := b.Like(x)
	mask.Rate = float32(rate)
	b.Do(&device.Dropout{Y: y, X: x, IDs: ids, DropoutMask: mask})
	return y
}
