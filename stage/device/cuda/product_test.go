//go:build cuda && cgo && linux && amd64

package cuda_test

import (
	"fmt"
	"reflect"
	"testing"

	"github.com/avgpipe/avgpipe/stage/device"
	"github.com/avgpipe/avgpipe/stage/device/cuda"
	"github.com/avgpipe/avgpipe/stage/device/cuda/cudatest"
)

// product is the values of A, whose rows are 8 long, times one column of ones and one of halves, with a bias of 0 and 100.
func product(t *testing.T, d device.Device, kind device.Type, values []float32) []float32 {
	t.Helper()
	rows := len(values) / 8
	wide := alloc(t, d, len(values)+16)
	bias, c := alloc(t, d, 2), alloc(t, d, 2*rows)
	columns := make([]float32, 16)
	for i := range columns {
		columns[i] = 1 / float32(1+i/8)
	}
	d.Upload(wide, device.FloatBytes(append(append([]float32{}, values...), columns...)))
	d.Upload(bias, device.FloatBytes([]float32{0, 100}))
	all, err := d.Alloc(kind, wide.Len())
	if err != nil {
		t.Fatal(err)
	}
	result, err := d.Alloc(kind, 2*rows)
	if err != nil {
		t.Fatal(err)
	}
	d.Do(&device.Copy{Y: all, X: wide})
	d.Do(&device.MatMul{C: result, A: all.Slice(0, len(values)), B: all.Slice(len(values), 16), Product: device.Product{
		M: rows, N: 2, K: 8, TransB: true, Bias: bias,
	}})
	d.Do(&device.Copy{Y: c, X: result})
	got := make([]float32, 2*rows)
	if err := device.Read(d, device.FloatBytes(got), c); err != nil {
		t.Fatal(err)
	}
	return got
}

// Whoever adds the bias, the values are the same; only one product is run, of the one library or of the other.
func TestABiasIsAddedWithTheProductWhereTheLibraryDoes(t *testing.T) {
	library := cudatest.Library(t)
	values := []float32{1, 2, 3, 4, 5, 6, 7, 8, 0, 0, 0, 0, 0.5, 0, 0, 0, -1, 1, -1, 1, 2, 2, 2, 2}
	for _, kind := range []device.Type{device.F32, device.BF16} {
		for _, refuses := range []bool{false, true} {
			t.Run(fmt.Sprintf("%v refuses %v", kind, refuses), func(t *testing.T) {
				library.RefuseEpilogues(refuses)
				defer library.RefuseEpilogues(false)
				d := open(t, library)
				defer d.Close()
				fused, plain := library.Calls("cublasLtMatmul"), library.Calls("cublasGemmEx")
				for range 2 {
					if got, want := product(t, d, kind, values), []float32{36, 118, 0.5, 100.25, 8, 104}; kind == device.F32 && !reflect.DeepEqual(got, want) {
						t.Errorf("the product is %v, want %v", got, want)
					} else if want[3] = 100; kind == device.BF16 && !reflect.DeepEqual(got, want) {
						t.Errorf("the product in BF16 is %v, want %v", got, want)
					}
				}
				fused, plain = library.Calls("cublasLtMatmul")-fused, library.Calls("cublasGemmEx")-plain
				if want := [2]int{2, 0}; refuses != ([2]int{fused, plain} != want) {
					t.Errorf("%d products with a bias and %d without", fused, plain)
				}
			})
		}
	}
}

// A product of F32 keeps all bits unless TF32 is asked for, which drops those behind the tenth.
func TestTF32IsForThoseWhoAsk(t *testing.T) {
	library := cudatest.Library(t)
	const fine = 1.0 / 4096
	values := []float32{1 + fine, 0, 0, 0, 0, 0, 0, 0}
	for _, x := range []struct {
		tf32 bool
		want float32
	}{{false, 1 + fine}, {true, 1}} {
		for _, refuses := range []bool{false, true} {
			library.RefuseEpilogues(refuses)
			d := openWith(t, cuda.Config{Library: library.Path(), Libraries: []string{library.Directory()}, TF32: x.tf32})
			if got := product(t, d, device.F32, values)[0]; got != x.want {
				t.Errorf("TF32 %v, refuses %v: the product is %v, want %v", x.tf32, refuses, got, x.want)
			}
			if err := d.Close(); err != nil {
				t.Error(err)
			}
		}
	}
	library.RefuseEpilogues(false)
}

// Which algorithm adds a bias depends on the alignment that is told apart, not on the address that came first: the bits are the same.
func TestBiasesAtOtherAddressesGiveTheSameBits(t *testing.T) {
	library := cudatest.Library(t)
	for _, offsets := range [][]int{{0, 4}, {4, 0}} {
		d := open(t, library)
		operands, biases, c := alloc(t, d, 16), alloc(t, d, 8), alloc(t, d, 1)
		d.Upload(operands, device.FloatBytes([]float32{1e8, -1e8, 1, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1}))
		d.Do(&device.Zero{X: biases})
		for _, at := range offsets {
			d.Do(&device.MatMul{C: c, A: operands.Slice(0, 8), B: operands.Slice(8, 8), Product: device.Product{
				M: 1, N: 1, K: 8, TransB: true, Bias: biases.Slice(at, 1),
			}})
			got := []float32{0}
			if err := device.Read(d, device.FloatBytes(got), c); err != nil || got[0] != 1 {
				t.Errorf("biases at elements %v: the product with the one at %d is %v (%v), expected 1", offsets, at, got[0], err)
			}
		}
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	}
	if calls := library.Calls("cublasLtMatmul"); calls != 4 {
		t.Errorf("cublasLt multiplied %d times, expected 4", calls)
	}
}
