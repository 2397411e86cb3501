//go:build cuda && cgo && linux && amd64

// Package driver loads the CUDA driver while a program runs. gorgonia.org/cu links against it and initialises it before main; this package
// defines all functions that cu refers to as jumps to where Load found them, so that a program starts on machines without a driver too.
//
// Builds need -I for include and -L for lib, whose libcuda.a is empty: `make cuda` sets both.
package driver

/*
#cgo CFLAGS: -O2 -std=c11 -Wall -Wextra
#include "include/cuda.h"
#include "thunks.h"
*/
import "C"

import (
	"fmt"
	"os"
	"strings"
	"sync"
	"unsafe"

	"github.com/avgpipe/avgpipe/stage/device/cuda/library"
)

// Library is the driver's library where a configuration names none.
const Library = "libcuda.so.1"

// least is the version of CUDA that a driver must be for: the oldest that reads the kernels (PTX 7.8) and has all functions.
const least = 11080

// Error is a failure of the driver.
type Error int

// Error names the failure as the driver's documentation does.
func (e Error) Error() string {
	var name *C.char
	if C.cuGetErrorName(C.CUresult(e), &name) != C.CUDA_SUCCESS {
		return fmt.Sprintf("error %d of the driver", int(e))
	}
	return C.GoString(name)
}

// InitError is the failure of a driver that was loaded: its library is one, and has no device.
type InitError struct {
	Path string
	Code Error
}

func (e *InitError) Error() string {
	return fmt.Sprintf("no CUDA device: initialise %s: %v; `nvidia-smi` says more", e.Path, e.Code)
}

// Unwrap returns the driver's error.
func (e *InitError) Unwrap() error { return e.Code }

var loaded struct {
	sync.Mutex
	path string
}

// Load loads and initialises the driver's library, Library where path is "", and has it show the processors of these UUIDs, or all where there are
// none. A process keeps the driver that it has loaded. Opening, where it is not nil, is told before the library is opened, and before it is
// initialised.
func Load(path string, visible []string, opening func(path string)) error {
	if path == "" {
		path = Library
	}
	loaded.Lock()
	defer loaded.Unlock()
	switch loaded.path {
	case "":
		if err := load(path, visible, opening); err != nil {
			return err
		}
		loaded.path = path
	case path:
	default:
		return fmt.Errorf("load the CUDA driver %s: this process has loaded %s; restart it", path, loaded.path)
	}
	return nil
}

func load(path string, visible []string, opening func(path string)) error {
	if len(visible) > 0 { // cgo passes it on to the C library, where the driver reads it
		if err := os.Setenv("CUDA_VISIBLE_DEVICES", strings.Join(visible, ",")); err != nil {
			return fmt.Errorf("choose graphics processors: %w", err)
		}
	}
	found, err := library.Search{Opening: opening}.Open(path)
	if err != nil {
		return fmt.Errorf("no CUDA device: %w; install the driver of the GPU, or name its library in the configuration (cuda_driver)", err)
	}
	missing := C.avg_load(found.Handle)
	var version C.int
	if C.cuDriverGetVersion(&version); version > 0 && version < least {
		return fmt.Errorf("no CUDA device: %s is a driver for CUDA %d.%d, expected %d.%d or above; update the driver", path, version/1000,
			version%1000/10, least/1000, least%1000/10)
	}
	if names := strings.Fields(C.GoString(missing)); len(names) > 0 {
		return fmt.Errorf("no CUDA device: %s lacks %s; update the driver", path, strings.Join(names, ", "))
	}
	if opening != nil {
		opening(path)
	}
	if code := Error(C.avg_init()); code != 0 {
		return &InitError{path, code}
	}
	return nil
}

// HostAlloc returns page-locked memory of the host, which a device reads and writes without the processor, at the same address.
func HostAlloc(bytes int) (unsafe.Pointer, error) {
	var at unsafe.Pointer
	if code := C.cuMemHostAlloc(&at, C.size_t(bytes), portable|mapped); code != C.CUDA_SUCCESS {
		return nil, fmt.Errorf("allocate %d bytes of page-locked memory: %w", bytes, Error(code))
	}
	return at, nil
}

// Flags of cuMemHostAlloc: for all contexts, and for kernels too.
const portable, mapped = 1, 2

// HostFree frees what HostAlloc returned.
func HostFree(at unsafe.Pointer) error {
	if code := C.cuMemFreeHost(at); code != C.CUDA_SUCCESS {
		return fmt.Errorf("free page-locked memory: %w", Error(code))
	}
	return nil
}

// AllowShared lets a launch of a kernel, a CUfunction, ask for so many bytes of dynamic shared memory. Without it 48 KiB are the most.
func AllowShared(kernel unsafe.Pointer, bytes int) error {
	return failure("allow a kernel shared memory", C.cuFuncSetAttribute(C.CUfunction(kernel), C.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, C.int(bytes)))
}
