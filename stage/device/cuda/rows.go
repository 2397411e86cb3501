//go:build cuda && cgo && linux && amd64

package cuda

import "github.com/avgpipe/avgpipe/stage/device"

func (d *Device) norm(o *device.Norm) {
	rows, columns := o.Size()
	d.launch("norm").typed(o.Y).mem(o.Mean).mem(o.Rstd).mem(o.X).mem(o.Weight).mem(o.Bias).float(o.Epsilon).int(columns).packRows(rows, columns)
}

func (d *Device) normBackward(o *device.NormBackward) {
	rows, columns := o.Size()
	d.launch("norm_backward").mem(o.DX).typed(o.DY).mem(o.X).mem(o.Mean).mem(o.Rstd).mem(o.Weight).mem(o.Plus).int(columns).packRows(rows, columns)
}

func (d *Device) normBackwardWeight(o *device.NormBackwardWeight) {
	scratch, ok := d.scratchOf(o)
	if !ok {
		return
	}
	c, weight, bias := columnsOf(o.Size()), device.Mem{}, device.Mem{} // the sums of parts
	if c.parts > 1 {
		weight, bias = scratch.take(device.F32, c.floats()), scratch.take(device.F32, c.floats())
	}
	d.launch("norm_backward_weight").mem(o.DWeight).mem(weight).mem(o.DBias).mem(bias).typed(o.DY).mem(o.X).mem(o.Mean).mem(o.Rstd).columns(c)
	d.addParts(o.DWeight, weight, c)
	d.addParts(o.DBias, bias, c)
}

func (d *Device) sumRows(o *device.SumRows) {
	if scratch, ok := d.scratchOf(o); ok {
		d.sumInto(scratch, o)
	}
}

// sumInto is sumRows with scratch of the operation that it is part of.
func (d *Device) sumInto(scratch scratch, o *device.SumRows) {
	c, parts := columnsOf(o.Rows(), o.Sum.Len()), device.Mem{}
	if c.parts > 1 {
		parts = scratch.take(device.F32, c.floats())
	}
	d.launch("sum_rows").mem(o.Sum).mem(parts).typed(o.X).columns(c)
	d.addParts(o.Sum, parts, c)
}

// addParts adds the sums of parts to y, unless one of them is absent.
func (d *Device) addParts(y, parts device.Mem, c columns) {
	if !y.Absent() && !parts.Absent() {
		d.launch("add_parts").mem(y).mem(parts).int(c.parts).int(c.columns).each(c.columns)
	}
}

// columns are columns to add up, in parts of their rows: a block has one of so many columns. Where there is more than one their sums, float64, lie
// in scratch. How many there are depends on the shape alone, and so do the bits of the sums.
type columns struct{ rows, columns, parts, rowsOfAPart int }

// The columns that a block adds up, STRIPE of kernels/rows.cu; how many blocks keep a processor's memory busy; and the rows that are worth a block.
const (
	stripe       = 128
	enoughBlocks = 512
	leastRows    = 64
)

func columnsOf(rows, width int) columns {
	parts := max(1, min(rows/leastRows, enoughBlocks/blocks(width, stripe)))
	c := columns{rows: rows, columns: width, rowsOfAPart: blocks(rows, parts)}
	c.parts = blocks(rows, c.rowsOfAPart)
	return c
}

// floats is the room that the sums of parts take.
func (c columns) floats() int { return 2 * c.parts * c.columns }

// bytes is the scratch for so many of them.
func (c columns) bytes(sums int) int {
	if c.parts == 1 {
		return 0
	}
	return sums * room(device.F32, c.floats())
}

// columns are the arguments that kernels end with which add columns up; they run.
func (c *call) columns(of columns) {
	c.int(of.rows).int(of.columns).int(of.rowsOfAPart).on(blocks(of.columns, stripe), of.parts, blockThreads)
}

func (d *Device) crossEntropy(o *device.CrossEntropy) {
	rows, vocabulary := o.Size()
	d.launch("cross_entropy").mem(o.Losses).mem(o.DLogits).mem(o.Logits).mem(o.Targets).now(word(o.Scale)).float(o.Smoothing).int(vocabulary).
		refusing(crossEntropyTargets).packRows(rows, vocabulary)
}

func (d *Device) embed(o *device.Embed) {
	rows, width := o.IDs.Len(), o.Width()
	positions, t := o.Positions, max(o.T, 1)
	if !positions.Absent() {
		positions = positions.Slice(o.Past*width, o.T*width)
	}
	d.launch("embed").mem(o.Out).mem(o.Tokens).mem(positions).mem(o.IDs).int(t).int(width).int(o.Tokens.Len()/width).flag(o.Add).
		refusing(embedIDs).packRows(rows, width)
}

func (d *Device) embedBackward(o *device.EmbedBackward) {
	rows, width := o.IDs.Len(), o.Width()
	table := o.DTokens.Len() / width
	d.launch("embed_backward").mem(o.DTokens).mem(o.DOut).mem(o.IDs).int(rows).int(width).int(table).refusing(embedBackwardIDs).
		on(min(table, mostBlocks), 1, min(max(blocks(width, warp)*warp, blockThreads), 1024))
	if !o.DPositions.Absent() {
		n := o.T * width
		d.launch("embed_backward_positions").mem(o.DPositions).mem(o.DOut).int(rows / o.T).int(n).each(n)
	}
}
