//go:build cuda && cgo && linux && amd64

package cuda_test

import (
	"testing"

	"github.com/avgpipe/avgpipe/stage/device"
	"github.com/avgpipe/avgpipe/stage/device/cuda"
	"github.com/avgpipe/avgpipe/stage/device/cuda/cudatest"
	"github.com/avgpipe/avgpipe/stage/stagetest"
)

// scratched are operations with scratch, whose operands are those of a device.
var scratched = map[string]func(float, brain func(n int) device.Mem) device.Op{
	"a product that is rounded with its bias": func(float, brain func(int) device.Mem) device.Op {
		return &device.MatMul{C: brain(6), A: brain(8), B: brain(12), Product: device.Product{M: 2, N: 3, K: 4, Bias: float(3)}}
	},
	"a convolution": func(float, _ func(int) device.Mem) device.Op {
		return &device.Convolution{Y: float(2 * 25 * 4), X: float(2 * 25 * 3), Weight: float(4 * 3 * 9), ConvolutionShape: small}
	},
	"a convolution of BF16": func(float, brain func(int) device.Mem) device.Op {
		return &device.Convolution{Y: float(2 * 25 * 4), X: brain(2 * 25 * 3), Weight: brain(4 * 3 * 9), ConvolutionShape: small}
	},
	"a convolution's backward": func(float, _ func(int) device.Mem) device.Op {
		return &device.ConvolutionBackward{DX: float(2 * 25 * 3), DY: float(2 * 25 * 4), Weight: float(4 * 3 * 9), ConvolutionShape: small}
	},
	"a convolution's backward of weights": func(float, brain func(int) device.Mem) device.Op {
		return &device.ConvolutionBackwardWeight{DWeight: float(4 * 3 * 9), DY: brain(2 * 25 * 4), X: brain(2 * 25 * 3), ConvolutionShape: small}
	},
	"an LSTM's backward": func(float, brain func(int) device.Mem) device.Op {
		return &device.LSTMBackward{
			DGates: float(24 * 5), Carry: float(12 * 5), DOut: float(6 * 5), Gates: float(24 * 5), Cells: float(6 * 5), Weight: brain(4 * 25),
			LSTMShape: device.LSTMShape{B: 6, T: 1, H: 5, OutStride: 5},
		}
	},
	"additive attention's backward": func(float, _ func(int) device.Mem) device.Op {
		return &device.AdditiveAttentionBackward{
			DQ: float(30), DK: float(30), DV: float(5), DProbabilities: float(18), Probabilities: float(18), Q: float(30), K: float(30), V: float(5),
			Additive: device.Additive{B: 2, T: 3, N: 5},
		}
	},
	"moments": func(float, _ func(int) device.Mem) device.Op {
		return &device.GroupMoments{Mean: float(4), Variance: float(4), X: float(2 * 70 * 6), GroupShape: device.GroupShape{B: 2, P: 70, C: 6, Groups: 2}}
	},
	"a group norm's backward": func(float, _ func(int) device.Mem) device.Op {
		n := 2 * 70 * 6
		return &device.GroupNormBackward{
			DX: float(n), Sums: float(24), DY: float(n), X: float(n), Mean: float(4), Variance: float(4), Weight: float(6), Bias: float(6),
			GroupShape: device.GroupShape{B: 2, P: 70, C: 6, Groups: 2},
		}
	},
}

var small = device.ConvolutionShape{B: 2, Height: 5, Width: 5, In: 3, Out: 4, Kernel: 3, Stride: 1, Padding: 1}

func TestOperationsTakeTheScratchThatTheySay(t *testing.T) {
	library := cudatest.Library(t)
	for _, own := range []cuda.Config{{}, {OwnConvolutions: true}, {OwnProducts: true}} {
		for name, of := range scratched {
			own.Library, own.Libraries = library.Path(), []string{library.Directory()}
			d := openWith(t, own)
			mem := func(kind device.Type) func(int) device.Mem {
				return func(n int) device.Mem {
					m, err := d.Alloc(kind, n)
					if err != nil {
						t.Fatal(err)
					}
					return m
				}
			}
			op := of(mem(device.F32), mem(device.BF16))
			before := library.Held()
			d.Do(op)
			if took := library.Held() - before; took != d.Scratch(op) {
				t.Errorf("%s, on %s: took %d bytes beside its operands, and said %d", name, d.Name(), took, d.Scratch(op))
			}
			if err := d.Synchronize(); err != nil {
				t.Error(err)
			}
			if err := d.Close(); err != nil {
				t.Error(err)
			}
		}
	}
}

// Samples whose windows take much are multiplied some at a time: scratch does not grow with them.
func TestTheWindowsOfAConvolutionAreBounded(t *testing.T) {
	library := cudatest.Library(t)
	d := openWith(t, cuda.Config{Library: library.Path(), OwnConvolutions: true})
	of := func(samples int) int {
		weight, x := device.NewSymbol(device.F32, 64*64*9), device.NewSymbol(device.F32, samples*56*56*64)
		return d.Scratch(&device.Convolution{X: x, Weight: weight, ConvolutionShape: device.ConvolutionShape{
			B: samples, Height: 56, Width: 56, In: 64, Out: 64, Kernel: 3, Stride: 1, Padding: 1,
		}})
	}
	if one, many := of(1), of(512); one != 147456+56*56*64*9*4 || many > 147456+64<<20 {
		t.Errorf("one sample takes %d bytes, 512 take %d", one, many)
	}
	if err := d.Close(); err != nil {
		t.Error(err)
	}
}

func TestConvolutionsOfAFewSamplesAtATimeConform(t *testing.T) {
	library := cudatest.Library(t)
	defer cuda.BoundWindows(1)()
	c := cuda.Config{Library: library.Path(), Libraries: []string{library.Directory()}, OwnConvolutions: true}
	stagetest.Device(t, func() device.Device { return openWith(t, c) }, "convolutions")
}

// A context turns positions that come later: their table is there before the first pass, for as many as its cache holds.
func TestTheTableOfRotationsIsThatOfTheCache(t *testing.T) {
	library := cudatest.Library(t)
	d := open(t, library)
	defer d.Close()
	const capacity, s = 100, 8
	x := alloc(t, d, s)
	rotate := &device.Rotate{Y: x, X: x, Rotation: device.Rotation{B: 1, T: 1, Heads: 1, S: s, Theta: 10000}}
	ops := []device.Op{rotate, &device.CacheAppend{
		Cache: alloc(t, d, capacity*s), X: x, Stride: s, CacheShape: device.CacheShape{B: 1, T: 1, KV: 1, S: s, Capacity: capacity},
	}}
	before := library.Held()
	if err := d.Prepare(ops); err != nil {
		t.Fatal(err)
	}
	if took := library.Held() - before; took != 4*capacity*s || took != d.Workspace(ops) {
		t.Errorf("prepared %d bytes, said %d, expected %d", took, d.Workspace(ops), 4*capacity*s)
	}
	before, rotate.Past = library.Held(), capacity-1
	d.Do(rotate)
	if took := library.Held() - before; took != 0 {
		t.Errorf("the last position took %d bytes", took)
	}
	if err := d.Synchronize(); err != nil {
		t.Error(err)
	}
}
