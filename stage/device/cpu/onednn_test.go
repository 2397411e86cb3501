//go:build onednn && cgo && linux && amd64

package cpu_test

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/avgpipe/avgpipe/internal/envtest"
	"github.com/avgpipe/avgpipe/stage/device"
	"github.com/avgpipe/avgpipe/stage/device/cpu"
	"github.com/avgpipe/avgpipe/stage/device/ref"
	"github.com/avgpipe/avgpipe/stage/stagetest"
)

// The best instruction set is what TestConforms runs; these are the others that this processor has.
func TestEveryInstructionSetConforms(t *testing.T) {
	for _, isa := range []string{"avx512", "avx2", "sse2"} {
		t.Run(isa, func(t *testing.T) {
			stagetest.Device(t, func() device.Device {
				d := open(t, cpu.Config{})
				if !d.Restrict(isa) {
					_ = d.Close()
					envtest.Impossible(t, "this processor has no %s", isa)
				}
				if !strings.Contains(d.Name(), isa+", bf16 widened to f32, ") {
					t.Errorf("the name %q does not say %s, nor that it has no bf16 units", d.Name(), isa)
				}
				return d
			})
		})
	}
}

// sample holds operands large enough to be cut into parts for two threads.
type sample struct {
	x, y, z, weight, bias, mean, rstd, qkv, dqkv, saved device.Mem
}

const sampleRows, sampleColumns = 300, 520

func newSample(t *testing.T, d *cpu.Device) *sample {
	t.Helper()
	state := uint32(1)
	fill := func(n int) device.Mem {
		m, err := d.Alloc(device.F32, n)
		if err != nil {
			t.Fatal(err)
		}
		for i := range m.F32() {
			state = state*1664525 + 1013904223
			m.F32()[i] = float32(int32(state)) / (1 << 30)
		}
		return m
	}
	n := sampleRows * sampleColumns
	return &sample{
		x: fill(n), y: fill(n), z: fill(n), weight: fill(sampleColumns), bias: fill(sampleColumns),
		mean: fill(sampleRows), rstd: fill(sampleRows), qkv: fill(3 * n), dqkv: fill(3 * n), saved: fill(sampleRows * 13),
	}
}

// run chains every operation that this package cuts into parts; the products are oneDNN's.
func (s *sample) run(d *cpu.Device) float64 {
	const rows, columns = sampleRows, sampleColumns
	a := device.AttentionShape{B: 1, T: rows, H: 13, S: columns / 13, QStride: 3 * columns, KVStride: 3 * columns}
	q, k, v := thirds(s.qkv, a)
	dq, dk, dv := thirds(s.dqkv, a)
	d.Do(&device.Norm{Y: s.y, Mean: s.mean, Rstd: s.rstd, X: s.x, Weight: s.weight, Bias: s.bias, Epsilon: 1e-5})
	d.Do(&device.Unary{Y: s.z, X: s.y, Function: device.GELU})
	d.Do(&device.UnaryBackward{DX: s.y, DY: s.z, X: s.x, Function: device.GELU})
	d.Do(&device.NormBackward{DX: s.y, DY: s.y, X: s.x, Mean: s.mean, Rstd: s.rstd, Weight: s.weight, Plus: s.z})
	d.Do(&device.NormBackwardWeight{DWeight: s.weight, DBias: s.bias, DY: s.y, X: s.x, Mean: s.mean, Rstd: s.rstd})
	d.Do(&device.SumRows{Sum: s.bias, X: s.y})
	d.Do(&device.Attention{Out: s.z, Saved: s.saved, Q: q, K: k, V: v, AttentionShape: a})
	d.Do(&device.AttentionBackward{DQ: dq, DK: dk, DV: dv, DOut: s.y, Q: q, K: k, V: v, Out: s.z, Saved: s.saved, AttentionShape: a})
	d.Do(&device.Axpy{Y: s.x, A: 0.5, X: s.dqkv.Slice(7, s.x.Len())})
	sum, err := d.Alloc(device.F64, 1)
	if err != nil {
		panic(err)
	}
	d.Do(&device.SquaredNorm{Sum: sum, X: s.x})
	d.Do(&device.AdamStep{P: s.y, G: s.z, M: s.x, V: s.dqkv.Slice(0, s.x.Len()), Sum: sum, Adam: device.Adam{Update: device.Update{Correction1: 1, Correction2: 1}}})
	return sum.F64()[0]
}

// thirds are q, k and v, interleaved row by row.
func thirds(m device.Mem, a device.AttentionShape) (q, k, v device.Mem) {
	return m.Slice(0, a.Queries()), m.Slice(a.H*a.S, a.Keys()), m.Slice(2*a.H*a.S, a.Keys())
}

// Kernels of our own cut products by columns, and by rows where there are fewer strips of columns than threads; large ones into blocks of
// rows and of k too.
func TestProductsOfOurOwnDoNotDependOnTheNumberOfThreads(t *testing.T) {
	for _, m := range []device.Product{
		{M: 100, N: 150, K: 300},
		{M: 500, N: 50, K: 130},
		{M: 5, N: 150, K: 300},
		{M: 1040, N: 70, K: 1090, Accumulate: true},
		{M: 50, N: 150, K: 131, TransA: true},
		{M: 50, N: 150, K: 1091, TransA: true, Accumulate: true},
		{M: 1040, N: 1050, K: 270, TransA: true},
	} {
		for _, of := range []device.Type{device.F32, device.BF16} {
			where := fmt.Sprintf("M=%d N=%d K=%d TransA=%v of %v", m.M, m.N, m.K, m.TransA, of)
			want := multiplied(t, ref.New(), m, of)
			var one []float32
			for _, threads := range []int{1, 2, 3, 5} {
				d := open(t, cpu.Config{Threads: threads})
				if !strings.Contains(d.Name(), "in dot products") {
					envtest.Impossible(t, "products of this processor are oneDNN's")
				}
				got := multiplied(t, d, m, of)
				if one == nil {
					one = got
				} else if !slices.Equal(one, got) {
					t.Errorf("%s: %d threads have other bits than 1", where, threads)
				}
				if err := d.Close(); err != nil {
					t.Fatal(err)
				}
			}
			largest, tolerance := 0.0, 1e-6*338*float64(m.K) // 338: above the largest product of two elements
			for i := range want {
				largest = max(largest, math.Abs(float64(want[i]-one[i])))
			}
			t.Logf("%s: largest difference %.2g, tolerance %.2g", where, largest, tolerance)
			if !(largest <= tolerance) {
				t.Errorf("%s: off by %g, tolerance %g", where, largest, tolerance)
			}
		}
	}
}

// multiplied is the product of two matrices with elements of a type, on a device.
func multiplied(t *testing.T, d device.Device, m device.Product, of device.Type) []float32 {
	t.Helper()
	var operands [3]device.Mem
	for i, n := range [3]int{m.M * m.N, m.M * m.K, m.K * m.N} {
		x, err := d.Alloc(device.F32, n)
		if err != nil {
			t.Fatal(err)
		}
		for j := range x.F32() {
			x.F32()[j] = float32(j%17)/8 - 1
			if i == 1 {
				x.F32()[j] *= float32(j%1013) / 3
			}
		}
		if operands[i] = x; i > 0 && of != device.F32 {
			if operands[i], err = d.Alloc(of, n); err != nil {
				t.Fatal(err)
			}
			d.Do(&device.Copy{Y: operands[i], X: x})
		}
	}
	d.Do(&device.MatMul{C: operands[0], A: operands[1], B: operands[2], Product: m})
	if err := d.Synchronize(); err != nil {
		t.Fatal(err)
	}
	return slices.Clone(operands[0].F32())
}

func TestResultsDoNotDependOnTheNumberOfThreads(t *testing.T) {
	var sums []float64
	var bits [][]float32
	for _, threads := range []int{1, 2, 3} {
		d := open(t, cpu.Config{Threads: threads})
		s := newSample(t, d)
		sums = append(sums, s.run(d))
		bits = append(bits, append(append([]float32(nil), s.x.F32()...), s.weight.F32()...))
		if err := d.Close(); err != nil {
			t.Fatal(err)
		}
	}
	for i := range sums {
		if sums[i] != sums[0] {
			t.Errorf("the squared norm is %v with %d threads, %v with 1", sums[i], i+1, sums[0])
		}
		for j, v := range bits[i] {
			if v != bits[0][j] {
				t.Fatalf("element %d is %v with %d threads, %v with 1", j, v, i+1, bits[0][j])
			}
		}
	}
}

// Shapes of one tile of keys and of several, with fewer heads than threads, as many and more.
func TestAttentionDoesNotDependOnTheNumberOfThreads(t *testing.T) {
	for _, typ := range []device.Type{device.F32, device.BF16} {
		for _, a := range []device.AttentionShape{
			{B: 1, T: 200, H: 1, S: 64},
			{B: 1, T: 1000, H: 1, S: 24},
			{B: 3, T: 900, H: 1, S: 20, Bidirectional: true},
			{B: 1, T: 1500, H: 7, S: 8, Window: 700},
			{B: 1, T: 1201, H: 4, KV: 2, S: 8, Dropout: device.DropoutMask{Rate: 0.1, Key: 7}},
		} {
			var want [][]byte
			for _, threads := range []int{1, 2, 3, 5} {
				got := attend(t, threads, typ, a)
				if want == nil {
					want = got
				}
				for i, name := range []string{"out", "saved", "dq", "dk", "dv"} {
					if !bytes.Equal(got[i], want[i]) {
						t.Errorf("%+v of %v: %s with %d threads differs from that with one", a, typ, name, threads)
					}
				}
			}
		}
	}
}

// attend returns the results of an attention and of its backward.
func attend(t *testing.T, threads int, typ device.Type, a device.AttentionShape) (results [][]byte) {
	d := open(t, cpu.Config{Threads: threads})
	defer func() { _ = d.Close() }()
	state := uint32(1)
	fill := func(typ device.Type, n int) device.Mem {
		wide, errWide := d.Alloc(device.F32, n)
		m, err := d.Alloc(typ, n)
		if err := errors.Join(errWide, err); err != nil {
			t.Fatal(err)
		}
		for i := range wide.F32() {
			state = state*1664525 + 1013904223
			wide.F32()[i] = float32(int32(state)) / (1 << 30)
		}
		d.Do(&device.Copy{Y: m, X: wide})
		return m
	}
	n, keys := a.Queries(), a.Keys()
	q, k, v, out, dout, saved := fill(typ, n), fill(typ, keys), fill(typ, keys), fill(typ, n), fill(typ, n), fill(device.F32, a.Saved())
	dq, dk, dv := fill(typ, n), fill(typ, keys), fill(typ, keys)
	d.Do(&device.Attention{Out: out, Saved: saved, Q: q, K: k, V: v, AttentionShape: a})
	d.Do(&device.AttentionBackward{DQ: dq, DK: dk, DV: dv, DOut: dout, Q: q, K: k, V: v, Out: out, Saved: saved, AttentionShape: a})
	if err := d.Synchronize(); err != nil {
		t.Fatal(err)
	}
	for _, m := range []device.Mem{out, saved, dq, dk, dv} {
		content := make([]byte, m.Bytes())
		d.Download(content, m)
		results = append(results, content)
	}
	return results
}

func TestFreeOfWhatAllocDidNotReturnPanics(t *testing.T) {
	d := open(t, cpu.Config{})
	defer func() { _ = d.Close() }()
	m, err := d.Alloc(device.F32, 4)
	if err != nil {
		t.Fatal(err)
	}
	d.Free(m)
	defer func() {
		if recover() == nil {
			t.Error("no panic")
		}
	}()
	d.Free(m)
}

// oneDNN falls back to a plain loop, a hundred times slower, where it has no kernel for a layout.
func TestProductsOfAModelUseNoReferenceKernel(t *testing.T) {
	d := open(t, cpu.Config{})
	defer func() { _ = d.Close() }()
	for flags := range 8 {
		m := device.Product{M: 256, N: 384, K: 128, TransA: flags&1 != 0, TransB: flags&2 != 0, Accumulate: flags&4 != 0}
		name := d.Implementation(m)
		t.Logf("%+v: %s", m, name)
		if name == "" || strings.HasPrefix(name, "ref") {
			t.Errorf("%+v uses the kernel %q", m, name)
		}
	}
}
