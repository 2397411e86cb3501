package emulated

import "github.com/avgpipe/avgpipe/stage/device"

// Convolution implements device.Device.
func (d *Device) Convolution(y, x, weight device.Mem, c device.Convolution) {
	c.Check(y, x, weight)
	d.compute(window(c))
}

// ConvolutionBackward implements device.Device.
func (d *Device) ConvolutionBackward(dx, dy, weight device.Mem, c device.Convolution) {
	c.CheckBackward(dx, dy, weight)
	d.compute(window(c))
}

// ConvolutionBackwardWeight implements device.Device.
func (d *Device) ConvolutionBackwardWeight(dweight, dy, x device.Mem, c device.Convolution) {
	c.CheckBackwardWeight(dweight, dy, x)
	d.compute(window(c))
}

// window is the FLOPs of each of the three.
func window(c device.Convolution) float64 {
	height, width := c.Output()
	return 2 * float64(c.B*height*width) * float64(c.In*c.Out) * float64(c.Kernel*c.Kernel)
}

// MaxPool implements device.Device.
func (d *Device) MaxPool(y, x device.Mem, p device.Pool) {
	p.Check("MaxPool", y, x)
	d.move(y, x)
}

// MaxPoolBackward implements device.Device.
func (d *Device) MaxPoolBackward(dx, dy, x device.Mem, p device.Pool) {
	p.Check("MaxPoolBackward", dy, x)
	p.Check("MaxPoolBackward", dy, dx)
	d.move(dx, dy, x)
}

// AveragePool implements device.Device.
func (d *Device) AveragePool(y, x device.Mem, b, p, c int) {
	device.CheckAveragePool("AveragePool", y, x, b, p, c)
	d.move(y, x)
}

// AveragePoolBackward implements device.Device.
func (d *Device) AveragePoolBackward(dx, dy device.Mem, b, p, c int) {
	device.CheckAveragePool("AveragePoolBackward", dy, dx, b, p, c)
	d.move(dx, dy)
}

// GroupMoments implements device.Device.
func (d *Device) GroupMoments(mean, variance, x device.Mem, n device.GroupNorm) {
	n.CheckMoments(mean, variance, x)
	d.move(mean, variance, x)
}

// GroupNorm implements device.Device.
func (d *Device) GroupNorm(y, x, skip, mean, variance, weight, bias device.Mem, n device.GroupNorm) {
	n.CheckForward(y, x, skip, mean, variance, weight, bias)
	d.move(y, x, skip, mean, variance, weight, bias)
}

// GroupNormBackward implements device.Device.
func (d *Device) GroupNormBackward(dx, dz, sums, dy, x, skip, mean, variance, weight, bias device.Mem, n device.GroupNorm) {
	n.CheckBackward(dx, dz, sums, dy, x, skip, mean, variance, weight, bias)
	d.move(dx, dz, sums, dy, x, skip, mean, variance, weight, bias)
}

// ReLU implements device.Device.
func (d *Device) ReLU(y, x device.Mem) {
	device.CheckReLU("ReLU", y, x)
	d.move(y, x)
}

// ReLUBackward implements device.Device.
func (d *Device) ReLUBackward(dx, dy, x device.Mem) {
	device.CheckReLU("ReLUBackward", dx, dy, x)
	d.move(dx, dy, x)
}

// Transpose implements device.Device.
func (d *Device) Transpose(y, x device.Mem, n, rows, columns int) {
	device.CheckTranspose(y, x, n, rows, columns)
	d.move(y, x)
}
