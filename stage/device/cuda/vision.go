//go:build cuda && cgo && linux && amd64

package cuda

import "github.com/avgpipe/avgpipe/stage/device"

// pooled are the arguments of a pool: POOL of kernels/vision.cu, without n.
func (c *call) pooled(p device.Pool) *call {
	height, width := p.Output()
	return c.int(p.Height).int(p.Width).int(p.Channels).int(p.Kernel).int(p.Stride).int(p.Padding).int(height).int(width)
}

func (d *Device) maxPool(o *device.MaxPool) {
	d.launch("max_pool").mem(o.Y).mem(o.X).pooled(o.Pool).int(o.Y.Len()).each(o.Y.Len())
}

func (d *Device) maxPoolBackward(o *device.MaxPoolBackward) {
	d.launch("max_pool_backward").mem(o.DX).mem(o.DY).mem(o.X).pooled(o.Pool).int(o.DX.Len()).each(o.DX.Len())
}

func (d *Device) averagePool(o *device.AveragePool) {
	d.launch("average_pool").mem(o.Y).mem(o.X).int(o.P).int(o.C).int(o.Y.Len()).each(o.Y.Len())
}

func (d *Device) averagePoolBackward(o *device.AveragePoolBackward) {
	d.launch("average_pool_backward").mem(o.DX).mem(o.DY).float(1 / float32(o.P)).int(o.P).int(o.C).int(o.DX.Len()).each(o.DX.Len())
}

// parts is how kernels cut the positions of a norm of groups, by its shape alone.
type parts struct {
	device.GroupShape
	tiles, parts, span int // of channels; of positions; positions of a part
}

// The channels that a block has, and the least positions.
const normChannels, leastSpan = 32, 64

func partsOf(s device.GroupShape) parts {
	tiles := blocks(s.C, normChannels)
	span := max(leastSpan, blocks(s.P, max(1, mostBlocks/(s.B*tiles))))
	return parts{s, tiles, blocks(s.P, span), span}
}

// bytes is what the parts take: two numbers of each channel.
func (p parts) bytes() int { return room(device.F32, p.len()) }

func (p parts) len() int { return p.B * p.parts * p.C * 2 }

// parts are the arguments PARTS of kernels/vision.cu.
func (c *call) parts(p parts) *call {
	return c.int(p.P).int(p.C).int(p.Groups).int(p.parts).int(p.span)
}

// ofParts runs a kernel with a block for each part of 32 channels.
func (c *call) ofParts(p parts) { c.parts(p).blocks(p.B * p.parts * p.tiles) }

// foldThreads is FOLD of kernels/vision.cu.
const foldThreads = 64

func (d *Device) groupMoments(o *device.GroupMoments) {
	s, ok := d.scratchOf(o)
	if !ok {
		return
	}
	p := partsOf(o.GroupShape)
	found := s.take(device.F32, p.len())
	d.launch("moments_of_parts").mem(found).mem(o.X).ofParts(p)
	d.launch("group_moments").mem(o.Mean).mem(o.Variance).mem(found).mem(o.X).parts(p).on(o.B*o.Groups, 1, foldThreads)
}

// normed are the arguments NORM of kernels/vision.cu.
func (c *call) normed(x, skip, mean, variance, weight, bias device.Mem, s device.GroupShape) *call {
	return c.mem(x).mem(skip).mem(mean).mem(variance).mem(weight).mem(bias).float(s.Epsilon).flag(s.ReLU)
}

func (d *Device) groupNorm(o *device.GroupNorm) {
	n := o.Y.Len()
	d.launch("group_norm").mem(o.Y).normed(o.X, o.Skip, o.Mean, o.Variance, o.Weight, o.Bias, o.GroupShape).int(o.P).int(o.C).int(o.Groups).int(n).each(n)
}

// groupNormBackward reads x and dy twice: for the sums of each channel, and then for dx.
func (d *Device) groupNormBackward(o *device.GroupNormBackward) {
	s, ok := d.scratchOf(o)
	if !ok {
		return
	}
	p, n := partsOf(o.GroupShape), o.DX.Len()
	found, means := s.take(device.F32, p.len()), s.take(device.F32, 2*o.B*o.Groups)
	normed := func(c *call) *call { return c.normed(o.X, o.Skip, o.Mean, o.Variance, o.Weight, o.Bias, o.GroupShape) }
	normed(d.launch("group_norm_backward_parts").mem(found).mem(o.DZ).mem(o.DY)).ofParts(p)
	d.launch("group_norm_backward_sums").mem(o.Sums).mem(means).mem(found).mem(o.Weight).int(o.B).parts(p).
		rows(o.B*o.Groups, warp*o.C/o.Groups)
	normed(d.launch("group_norm_backward").mem(o.DX).mem(o.DY)).mem(means).int(o.P).int(o.C).int(o.Groups).int(n).each(n)
}

// transposeTile is the rows and columns that a block of the kernel has.
const transposeTile = 32

func (d *Device) transpose(o *device.Transpose) {
	d.launch("transpose").mem(o.Y).mem(o.X).int(o.Rows).int(o.Columns).
		blocks(o.N * blocks(o.Rows, transposeTile) * blocks(o.Columns, transposeTile))
}

func (d *Device) copyColumns(o *device.CopyColumns) {
	c := o.Columns
	n := c.Rows * c.Columns
	d.launch("copy_columns").mem(o.Y).mem(o.X).int(c.Columns).int(c.YStride).int(c.XStride).flag(c.Add).int(n).each(n)
}
