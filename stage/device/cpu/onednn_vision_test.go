//go:build onednn && cgo && linux && amd64

package cpu_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/avgpipe/avgpipe/stage/device"
	"github.com/avgpipe/avgpipe/stage/device/cpu"
)

// resNetConvolutions are those of the first layers and of a group of blocks of both ResNets.
var resNetConvolutions = []device.ConvolutionShape{
	{B: 2, Height: 224, Width: 224, In: 3, Out: 64, Kernel: 7, Stride: 2, Padding: 3},
	{B: 2, Height: 56, Width: 56, In: 64, Out: 256, Kernel: 1, Stride: 1},
	{B: 2, Height: 56, Width: 56, In: 256, Out: 512, Kernel: 1, Stride: 2},
	{B: 2, Height: 56, Width: 56, In: 128, Out: 128, Kernel: 3, Stride: 2, Padding: 1},
	{B: 4, Height: 32, Width: 32, In: 3, Out: 16, Kernel: 3, Stride: 1, Padding: 1},
	{B: 4, Height: 32, Width: 32, In: 16, Out: 16, Kernel: 3, Stride: 1, Padding: 1},
}

func TestConvolutionsOfAModelUseNoReferenceKernel(t *testing.T) {
	d := open(t, cpu.Config{})
	defer func() { _ = d.Close() }()
	for _, c := range resNetConvolutions {
		for _, kind := range []device.Type{device.F32, device.BF16} {
			names := d.ConvolutionImplementations(c, kind)
			t.Logf("%+v of %v: %v", c, kind, names)
			if len(names) != 3 || slices.ContainsFunc(names, func(name string) bool { return name == "" || strings.HasPrefix(name, "ref") }) {
				t.Errorf("%+v of %v uses the kernels %q", c, kind, names)
			}
		}
	}
}

func TestNormsOfImagesDoNotDependOnTheNumberOfThreads(t *testing.T) {
	for _, n := range []device.GroupShape{
		{B: 1, P: 9000, C: 48, Groups: 48, Epsilon: 1e-5, ReLU: true},
		{B: 3, P: 1100, C: 70, Groups: 7, Epsilon: 1e-5, ReLU: true},
	} {
		var want []float32
		for _, threads := range []int{1, 2, 3} {
			got := normOnThreads(t, n, threads)
			if want == nil {
				want = got
			}
			if !slices.Equal(got, want) {
				t.Errorf("%+v: %d threads give other bits than 1", n, threads)
			}
		}
	}
}

// normOnThreads runs forward and backward and returns all that they write.
func normOnThreads(t *testing.T, n device.GroupShape, threads int) []float32 {
	t.Helper()
	d := open(t, cpu.Config{Threads: threads})
	defer func() { _ = d.Close() }()
	size := n.B * n.P * n.C
	x, dy, y, dx := ramp(t, d, size), ramp(t, d, size), ramp(t, d, size), ramp(t, d, size)
	mean, variance := ramp(t, d, n.B*n.Groups), ramp(t, d, n.B*n.Groups)
	weight, bias, sums := ramp(t, d, n.C), ramp(t, d, n.C), ramp(t, d, 2*n.B*n.C)
	for i := range dy.F32() {
		dy.F32()[i] *= float32(i % 5)
	}
	d.Do(&device.GroupMoments{Mean: mean, Variance: variance, X: x, GroupShape: n})
	d.Do(&device.GroupNorm{Y: y, X: x, Mean: mean, Variance: variance, Weight: weight, Bias: bias, GroupShape: n})
	d.Do(&device.GroupNormBackward{
		DX: dx, Sums: sums, DY: dy, X: x, Mean: mean, Variance: variance, Weight: weight, Bias: bias, GroupShape: n,
	})
	if err := d.Synchronize(); err != nil {
		t.Fatal(err)
	}
	return slices.Concat(mean.F32(), variance.F32(), y.F32(), dx.F32(), sums.F32())
}
