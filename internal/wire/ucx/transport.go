//go:build ucx && cgo && linux

package ucx

/*
#cgo CFLAGS: -O2 -std=gnu11 -Wall -Wextra
#cgo LDFLAGS: -ldl
#include <stdlib.h>
#include "ucx.h"
*/
import "C"

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/avgpipe/avgpipe/internal/wire"
)

// Built reports whether this program has UCX.
const Built = true

// The status codes of UCX that have a meaning here.
const ok = C.int(C.UCS_OK)

var load = sync.OnceValue(func() error {
	if problem := C.avg_ucx_load(); problem != nil {
		return fmt.Errorf("open UCX: %s: expected libucp.so.0 of UCX 1.13 or later (Debian: libucx0)", C.GoString(problem))
	}
	var major, minor C.uint
	if C.avg_ucx_version(&major, &minor); major != 1 || minor < 13 {
		return fmt.Errorf("open UCX: libucp.so.0 is of UCX %d.%d, expected 1.13 or later", major, minor)
	}
	return nil
})

// Transport opens paths on some network devices. It is for one process, and may be used concurrently.
type Transport struct {
	context C.ucp_context_h
	open    atomic.Int64 // paths, also those of which UCX still has memory
}

// New opens the library, once for the process, and the devices: names as ucx_info -d prints them, commas between them.
func New(devices string) (*Transport, error) {
	if err := load(); err != nil {
		return nil, err
	}
	t, names := &Transport{}, C.CString(devices)
	defer C.free(unsafe.Pointer(names))
	if err := failure("open the devices "+devices, C.avg_ucx_init(names, &t.context)); err != nil {
		return nil, err
	}
	return t, nil
}

// Close frees the devices. All paths must be closed.
func (t *Transport) Close() error {
	if n := t.open.Load(); n > 0 {
		return fmt.Errorf("close UCX: %d paths are open: its devices stay open until the process ends", n)
	}
	C.avg_ucx_cleanup(t.context)
	return nil
}

// Name implements wire.Transport.
func (t *Transport) Name() string { return "ucx" }

// Open implements wire.Transport.
func (t *Transport) Open() (wire.Path, error) { return open(t) }

// errGone is wrapped by what fails because the other end is.
var errGone = errors.New("the other end is gone")

func failure(doing string, status C.int) error {
	if status == ok {
		return nil
	}
	return fmt.Errorf("%s: UCX says %q (%d)", doing, C.GoString(C.avg_ucx_error(status)), int(status))
}
