//go:build cuda && cgo && linux && amd64

// Package blas multiplies matrices with cuBLAS, which it loads while the program runs.
package blas

/*
#cgo CFLAGS: -O2 -std=c11 -Wall -Wextra
#cgo LDFLAGS: -ldl
#include "lt.h"
*/
import "C"

import (
	"fmt"
	"sync"
	"unsafe"

	"github.com/avgpipe/avgpipe/stage/device"
	"github.com/avgpipe/avgpipe/stage/device/cuda/library"
)

// libraries are the names of cuBLAS, of the versions whose functions are those of blas.h.
var libraries = []string{"libcublas.so.13", "libcublas.so.12", "libcublas.so.11"}

// Numbers of cuBLAS.
const (
	typeF32, typeBF16 = 0, 14
	computeF32        = 68 // products and sums in float32
	computeTF32       = 77 // products of float32 rounded to TF32, which has 10 bits behind the point
)

// Handle multiplies on one stream.
type Handle struct {
	handle  unsafe.Pointer
	version int
	tf32    bool
	product C.struct_avg_product // the one in progress
	lt      lt
}

var loaded struct {
	sync.Mutex
	path  string // empty: none
	blas  C.struct_avg_blas
	lt    C.struct_avg_lt
	hasLt bool
}

// Open returns a handle in the thread's context, of the library that Load found. It works in memory of the device, WorkspaceBytes of it. tf32: it
// may round operands of F32 to TF32.
func Open(stream unsafe.Pointer, workspace uintptr, tf32 bool) (*Handle, error) {
	h := &Handle{tf32: tf32}
	var version C.int
	if status := C.avg_blas_create(&loaded.blas, &h.handle, stream, C.uintptr_t(workspace), WorkspaceBytes, &version); status != 0 {
		return nil, fmt.Errorf("open a handle of cuBLAS, %s: %w", loaded.path, Status(status))
	}
	h.version = int(version)
	h.lt.open(stream, workspace)
	return h, nil
}

// WorkspaceBytes is what cuBLAS's documentation recommends for processors of compute capability 9.0; others need 4 MiB.
const WorkspaceBytes = 32 << 20

// Load finds cuBLAS, and returns its path. A process keeps the first that it finds.
func Load(s library.Search) (path string, err error) {
	loaded.Lock()
	defer loaded.Unlock()
	if loaded.path != "" {
		return loaded.path, nil
	}
	found, err := s.First(libraries, func(l *library.Library) error {
		if lacking := C.avg_blas_find(&loaded.blas, l.Handle); lacking != nil {
			return fmt.Errorf("%s has no %s, expected cuBLAS 11, 12 or 13", l.Path, C.GoString(lacking))
		}
		return nil
	})
	if err != nil {
		return "", fmt.Errorf("no cuBLAS: %w", err)
	}
	loaded.path = found.Path
	loadLt(s, found.Path)
	return found.Path, nil
}

// Status is how a call of cuBLAS failed.
type Status int

// NoMemory is the status of a call that found no memory.
const NoMemory Status = 3

// statuses are the names that cuBLAS's documentation has for statuses.
var statuses = map[Status]string{
	1: "NOT_INITIALIZED", NoMemory: "ALLOC_FAILED", 7: "INVALID_VALUE", 8: "ARCH_MISMATCH", 11: "MAPPING_ERROR", 13: "EXECUTION_FAILED",
	14: "INTERNAL_ERROR", 15: "NOT_SUPPORTED", 16: "LICENSE_ERROR",
}

func (s Status) Error() string {
	if name, known := statuses[s]; known {
		return fmt.Sprintf("status %d, CUBLAS_STATUS_%s", int(s), name)
	}
	return fmt.Sprintf("status %d", int(s))
}

// Version names that of the library: "12.4.1".
func (h *Handle) Version() string { return name(h.version) }

// name reads a version as the library has it: 120401 is 12.4.1. Those of cuBLAS 11 count thousands, to which the minor number adds: 12103 is 11.11.3.
func name(version int) string {
	if version < 100000 {
		return fmt.Sprintf("11.%d.%d", (version-11000)/100, version%100)
	}
	return fmt.Sprintf("%d.%d.%d", version/10000, version%10000/100, version%100)
}

// Close frees the handle.
func (h *Handle) Close() error {
	h.lt.close()
	if status := C.avg_blas_destroy(&loaded.blas, h.handle); status != 0 {
		return fmt.Errorf("close cuBLAS: %w", Status(status))
	}
	return nil
}

// Takes reports whether cuBLAS multiplies operands of these types: A and B of one, and C of theirs or F32.
func Takes(o *device.MatMul) bool {
	return o.A.Type() == o.B.Type() && (o.C.Type() == device.F32 || o.C.Type() == o.A.Type())
}

// Rows says how many elements lie from one stored row of A and of C to the next; the zero Rows: they are side by side.
type Rows struct{ A, C int }

// MatMul sets c, in place of the operation's C, to the product without its bias, or adds it.
func (h *Handle) MatMul(c device.Mem, o *device.MatMul, accumulate bool) error {
	return h.Apart(c, o, accumulate, Rows{})
}

// Apart is MatMul of rows that lie apart.
func (h *Handle) Apart(c device.Mem, o *device.MatMul, accumulate bool, rows Rows) error {
	h.describe(c, o, rows)
	h.product.beta = C.float(truth(accumulate))
	if status := C.avg_blas_product(&loaded.blas, h.handle, &h.product); status != 0 {
		return fmt.Errorf("cuBLAS: product M=%d N=%d K=%d: %w", o.M, o.N, o.K, Status(status))
	}
	return nil
}

// describe sets the product in progress. BLAS has matrices by columns: there C' = op(B)' op(A)'.
func (h *Handle) describe(c device.Mem, o *device.MatMul, rows Rows) {
	h.product = C.struct_avg_product{
		trans_a: truth(o.TransB), trans_b: truth(o.TransA), m: C.int(o.N), n: C.int(o.M), k: C.int(o.K),
		lda: columns(o.K, o.N, o.TransB), ldb: columns(o.M, o.K, o.TransA), ldc: C.int(o.N),
		type_a: typeOf(o.B), type_b: typeOf(o.A), type_c: typeOf(c), compute: computeF32,
		a: address(o.B), b: address(o.A), c: address(c),
	}
	if rows != (Rows{}) {
		h.product.ldb, h.product.ldc = C.int(rows.A), C.int(rows.C)
	}
	if h.tf32 && h.product.type_a == typeF32 {
		h.product.compute = computeTF32
	}
}

// columns is the length of a stored row of an operand whose op is (rows, columns).
func columns(rows, columns int, transposed bool) C.int {
	if transposed {
		return C.int(rows)
	}
	return C.int(columns)
}

func typeOf(m device.Mem) C.int {
	if m.Type() == device.BF16 {
		return typeBF16
	}
	return typeF32
}

func address(m device.Mem) C.uintptr_t { return C.uintptr_t(uintptr(m.Pointer())) }

func truth(b bool) C.int {
	if b {
		return 1
	}
	return 0
}
