//go:build cuda && cgo && linux && amd64

package nvml

/*
#cgo CFLAGS: -O2 -std=c11 -Wall -Wextra
#cgo LDFLAGS: -ldl
#include <stdlib.h>
#include "thunks.h"
*/
import "C"

import (
	"errors"
	"unsafe"
)

// load finds the functions that go-nvml refers to in a library, which stays open. go-nvml leaves them to the dynamic linker, which ends a program that
// binds at once, and any that calls one that the library lacks. Here they are jumps.
func load(path string) error {
	name := C.CString(path)
	defer C.free(unsafe.Pointer(name))
	if message := C.avg_nvml_load(name); message != nil {
		return errors.New(C.GoString(message))
	}
	return nil
}
