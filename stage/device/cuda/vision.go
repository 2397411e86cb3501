//go:build cuda && cgo && linux && amd64

package cuda

import "github.com/avgpipe/avgpipe/stage/device"

// convolved are the arguments of a convolution: CONVOLUTION of kernels/vision.cu, without n.
func (c *call) convolved(s device.ConvolutionShape) *call {
	height, width := s.Output()
	return c.int(s.Height).int(s.Width).int(s.In).int(s.Out).int(s.Kernel).int(s.Stride).int(s.Padding).int(height).int(width)
}

func (d *Device) convolution(o *device.Convolution) {
	n := o.Y.Len()
	d.launch("convolution").mem(o.Y).mem(o.X).typed(o.Weight).mem(o.Bias).convolved(o.ConvolutionShape).int(n).each(n)
}

func (d *Device) convolutionBackward(o *device.ConvolutionBackward) {
	n := o.DX.Len()
	d.launch("convolution_backward").mem(o.DX).mem(o.DY).typed(o.Weight).convolved(o.ConvolutionShape).int(n).each(n)
}

func (d *Device) convolutionBackwardWeight(o *device.ConvolutionBackwardWeight) {
	d.launch("convolution_backward_weight").mem(o.DWeight).mem(o.DY).typed(o.X).convolved(o.ConvolutionShape).int(o.B).rows(o.DWeight.Len(), o.DY.Len()/o.Out)
}

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

func (d *Device) groupMoments(o *device.GroupMoments) {
	d.launch("group_moments").mem(o.Mean).mem(o.Variance).mem(o.X).int(o.P).int(o.C).int(o.Groups).rows(o.B*o.Groups, o.P)
}

func (d *Device) groupNorm(o *device.GroupNorm) {
	n := o.Y.Len()
	d.launch("group_norm").mem(o.Y).mem(o.X).mem(o.Skip).mem(o.Mean).mem(o.Variance).mem(o.Weight).mem(o.Bias).float(o.Epsilon).flag(o.ReLU).
		int(o.P).int(o.C).int(o.Groups).int(n).each(n)
}

func (d *Device) groupNormBackward(o *device.GroupNormBackward) {
	d.launch("group_norm_backward").mem(o.DX).mem(o.DZ).mem(o.Sums).mem(o.DY).mem(o.X).mem(o.Skip).mem(o.Mean).mem(o.Variance).mem(o.Weight).
		mem(o.Bias).float(o.Epsilon).flag(o.ReLU).int(o.B).int(o.P).int(o.C).int(o.Groups).rows(o.B*o.Groups, o.P)
}

func (d *Device) transpose(o *device.Transpose) {
	d.launch("transpose").mem(o.Y).mem(o.X).int(o.Rows).int(o.Columns).int(o.Y.Len()).each(o.Y.Len())
}

func (d *Device) copyColumns(o *device.CopyColumns) {
	c := o.Columns
	n := c.Rows * c.Columns
	d.launch("copy_columns").mem(o.Y).mem(o.X).int(c.Columns).int(c.YStride).int(c.XStride).flag(c.Add).int(n).each(n)
}
