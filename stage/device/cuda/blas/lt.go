//go:build cuda && cgo && linux && amd64

package blas

/*
#include "lt.h"
*/
import "C"

import (
	"fmt"
	"math/bits"
	"path/filepath"
	"strings"
	"unsafe"

	"github.com/avgpipe/avgpipe/stage/device"
	"github.com/avgpipe/avgpipe/stage/device/cuda/library"
)

// lt multiplies and adds a bias in one pass, by the library cublasLt, which is a part of cuBLAS.
type lt struct {
	handle    unsafe.Pointer // nil: there is no such library
	stream    unsafe.Pointer
	workspace uintptr
	plans     map[ltKey]*C.struct_avg_lt_plan // nil: cublasLt does not take the shape
}

// ltKey is a product without its addresses.
type ltKey struct {
	product   C.struct_avg_product
	alignment C.uint32_t
}

// loadLt finds cublasLt beside cuBLAS, which cannot be without it. Where it fails products and biases are apart.
func loadLt(s library.Search, cublas string) {
	s.Directories = nil
	found, err := s.Open(filepath.Join(filepath.Dir(cublas), strings.Replace(filepath.Base(cublas), "cublas", "cublasLt", 1)))
	loaded.hasLt = err == nil && C.avg_lt_find(&loaded.lt, found.Handle) == nil
}

func (l *lt) open(stream unsafe.Pointer, workspace uintptr) {
	l.stream, l.workspace, l.plans = stream, workspace, map[ltKey]*C.struct_avg_lt_plan{}
	if loaded.hasLt && C.avg_lt_create(&loaded.lt, &l.handle) != 0 {
		l.handle = nil
	}
}

func (l *lt) close() {
	if l.handle == nil {
		return
	}
	for _, plan := range l.plans {
		if plan != nil {
			C.avg_lt_forget(&loaded.lt, plan)
		}
	}
	C.avg_lt_destroy(&loaded.lt, l.handle)
}

// TakesBias reports whether cublasLt sets the operation's C to the product with a bias, which is of C's type, in one pass. Its heuristics are asked
// once for each shape.
func (h *Handle) TakesBias(o *device.MatMul, bias device.Mem) bool {
	if h.lt.handle == nil {
		return false
	}
	h.describe(o.C, o, Rows{})
	return h.lt.plan(h.product, bias) != nil
}

// Biased sets the operation's C to the product with a bias, where TakesBias.
func (h *Handle) Biased(o *device.MatMul, bias device.Mem) error {
	h.describe(o.C, o, Rows{})
	plan := h.lt.plan(h.product, bias)
	status := C.avg_lt_product(&loaded.lt, h.lt.handle, plan, &h.product, address(bias), C.uintptr_t(h.lt.workspace), h.lt.stream)
	if status != 0 {
		return fmt.Errorf("cublasLt: product with a bias M=%d N=%d K=%d: %w", o.M, o.N, o.K, Status(status))
	}
	return nil
}

// plan is that of a product; nil where there is none.
func (l *lt) plan(p C.struct_avg_product, bias device.Mem) *C.struct_avg_lt_plan {
	key := ltKey{p, C.uint32_t(1) << min(bits.TrailingZeros64(uint64(p.a|p.b|p.c|address(bias))), 4)} // 16 bytes is all that they ask for
	key.product.a, key.product.b, key.product.c = 0, 0, 0
	plan, asked := l.plans[key]
	if !asked {
		plan = l.choose(key)
		l.plans[key] = plan
	}
	return plan
}

// choose asks the library. The answer depends on the key alone, so that it has the same bits whatever the addresses of the first product are.
func (l *lt) choose(key ltKey) *C.struct_avg_lt_plan {
	plan := &C.struct_avg_lt_plan{}
	status := C.avg_lt_choose(&loaded.lt, l.handle, &key.product, key.alignment, WorkspaceBytes, plan)
	if status != 0 || plan.operation == nil {
		return nil
	}
	return plan
}
