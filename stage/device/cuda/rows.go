//go:build cuda && cgo && linux && amd64

package cuda

import "github.com/avgpipe/avgpipe/stage/device"

func (d *Device) norm(o *device.Norm) {
	rows, columns := o.Size()
	d.launch("norm").typed(o.Y).mem(o.Mean).mem(o.Rstd).mem(o.X).mem(o.Weight).mem(o.Bias).float(o.Epsilon).int(columns).rows(rows, columns)
}

func (d *Device) normBackward(o *device.NormBackward) {
	rows, columns := o.Size()
	d.launch("norm_backward").mem(o.DX).typed(o.DY).mem(o.X).mem(o.Mean).mem(o.Rstd).mem(o.Weight).mem(o.Plus).int(columns).rows(rows, columns)
}

func (d *Device) normBackwardWeight(o *device.NormBackwardWeight) {
	rows, columns := o.Size()
	d.launch("norm_backward_weight").mem(o.DWeight).mem(o.DBias).typed(o.DY).mem(o.X).mem(o.Mean).mem(o.Rstd).int(rows).int(columns).
		columns(columns)
}

func (d *Device) sumRows(o *device.SumRows) {
	columns := o.Sum.Len()
	d.launch("sum_rows").mem(o.Sum).typed(o.X).int(o.Rows()).int(columns).columns(columns)
}

func (d *Device) crossEntropy(o *device.CrossEntropy) {
	rows, vocabulary := o.Size()
	d.launch("cross_entropy").mem(o.Losses).mem(o.DLogits).mem(o.Logits).mem(o.Targets).now(word(o.Scale)).float(o.Smoothing).int(vocabulary).
		refusing(crossEntropyTargets).rows(rows, vocabulary)
}

func (d *Device) embed(o *device.Embed) {
	rows, width := o.IDs.Len(), o.Width()
	positions, t := o.Positions, max(o.T, 1)
	if !positions.Absent() {
		positions = positions.Slice(o.Past*width, o.T*width)
	}
	d.launch("embed").mem(o.Out).mem(o.Tokens).mem(positions).mem(o.IDs).int(rows).int(t).int(width).int(o.Tokens.Len() / width).flag(o.Add).
		refusing(embedIDs).each(rows * width)
}

func (d *Device) embedBackward(o *device.EmbedBackward) {
	rows, width := o.IDs.Len(), o.Width()
	table := o.DTokens.Len() / width
	d.launch("embed_backward").mem(o.DTokens).mem(o.DOut).mem(o.IDs).int(rows).int(width).int(table).refusing(embedBackwardIDs).
		on(min(table, mostBlocks), blocks(width, blockThreads), blockThreads)
	if !o.DPositions.Absent() {
		n := o.T * width
		d.launch("embed_backward_positions").mem(o.DPositions).mem(o.DOut).int(rows / o.T).int(n).each(n)
	}
}
