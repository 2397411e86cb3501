package cpu

import (
	"fmt"
	"testing"

	"github.com/avgpipe/avgpipe/stage/device"
)

// BenchmarkConvolution has the convolutions of a ResNet for CIFAR-10 and of ResNet-50.
func BenchmarkConvolution(b *testing.B) {
	d := newBench(b, 1)
	for _, c := range []device.ConvolutionShape{
		{B: 32, Height: 32, Width: 32, In: 3, Out: 16, Kernel: 3, Stride: 1, Padding: 1},
		{B: 32, Height: 32, Width: 32, In: 16, Out: 16, Kernel: 3, Stride: 1, Padding: 1},
		{B: 32, Height: 8, Width: 8, In: 64, Out: 64, Kernel: 3, Stride: 1, Padding: 1},
		{B: 4, Height: 224, Width: 224, In: 3, Out: 64, Kernel: 7, Stride: 2, Padding: 3},
		{B: 4, Height: 56, Width: 56, In: 64, Out: 64, Kernel: 3, Stride: 1, Padding: 1},
		{B: 4, Height: 56, Width: 56, In: 256, Out: 64, Kernel: 1, Stride: 1},
		{B: 4, Height: 56, Width: 56, In: 256, Out: 512, Kernel: 1, Stride: 2},
	} {
		oh, ow := c.Output()
		inputs, outputs, weights := c.B*c.Height*c.Width*c.In, c.B*oh*ow*c.Out, c.In*c.Out*c.Kernel*c.Kernel
		x, y, w := d.floats(inputs), d.floats(outputs), d.floats(weights)
		name := fmt.Sprintf("B=%d,H=%d,In=%d,Out=%d,Kernel=%d,Stride=%d", c.B, c.Height, c.In, c.Out, c.Kernel, c.Stride)
		bytes, flops := 4*(inputs+outputs+weights), 2*float64(outputs)*float64(c.In*c.Kernel*c.Kernel)
		d.run(name+"/forward", bytes, flops, func() { d.d.Do(&device.Convolution{Y: y, X: x, Weight: w, ConvolutionShape: c}) })
		d.run(name+"/input", bytes, flops, func() { d.d.Do(&device.ConvolutionBackward{DX: x, DY: y, Weight: w, ConvolutionShape: c}) })
		d.run(name+"/weight", bytes, flops, func() { d.d.Do(&device.ConvolutionBackwardWeight{DWeight: w, DY: y, X: x, ConvolutionShape: c}) })
	}
}

// BenchmarkImages has the other operations of a ResNet, on 32 images of 32 by 32 with 16 channels.
func BenchmarkImages(b *testing.B) {
	const samples, pixels, channels = 32, 32 * 32, 16
	const n = samples * pixels * channels
	d := newBench(b, 1)
	x, y, z, skip := d.floats(n), d.floats(n), d.floats(n), d.floats(n)
	mean, variance, weight, sums := d.floats(channels), d.floats(channels), d.floats(channels), d.floats(2*channels)
	norm := device.GroupShape{B: 1, P: samples * pixels, C: channels, Groups: channels, Epsilon: 1e-5, ReLU: true}
	pool := device.Pool{B: samples, Height: 32, Width: 32, Channels: channels, Kernel: 3, Stride: 2, Padding: 1}
	small := d.floats(n / 4)
	none := device.Mem{}
	d.run("GroupMoments", 4*n, 0, func() { d.d.Do(&device.GroupMoments{Mean: mean, Variance: variance, X: x, GroupShape: norm}) })
	d.run("GroupNorm", 8*n, 0, func() {
		d.d.Do(&device.GroupNorm{Y: y, X: x, Skip: none, Mean: mean, Variance: variance, Weight: weight, Bias: weight, GroupShape: norm})
	})
	d.run("GroupNorm,skip", 12*n, 0, func() {
		d.d.Do(&device.GroupNorm{Y: y, X: x, Skip: skip, Mean: mean, Variance: variance, Weight: weight, Bias: weight, GroupShape: norm})
	})
	d.run("GroupNormBackward", 20*n, 0, func() {
		d.d.Do(&device.GroupNormBackward{
			DX: y, DZ: none, Sums: sums, DY: z, X: x, Skip: none, Mean: mean, Variance: variance, Weight: weight, Bias: weight,
			GroupShape: norm,
		})
	})
	d.run("ReLU", 8*n, 0, func() { d.d.Do(&device.Unary{Y: y, X: x, Function: device.ReLU}) })
	d.run("MaxPool", 5*n, 0, func() { d.d.Do(&device.MaxPool{Y: small, X: x, Pool: pool}) })
	d.run("MaxPoolBackward", 9*n, 0, func() { d.d.Do(&device.MaxPoolBackward{DX: y, DY: small, X: x, Pool: pool}) })
	d.run("Transpose", 8*n, 0, func() { d.d.Do(&device.Transpose{Y: y, X: x, N: samples, Rows: pixels, Columns: channels}) })
}
