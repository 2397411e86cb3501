//go:build cuda && cgo && linux && amd64

// Package nccl copies memory between two graphics processors of this process with NCCL, which it loads while the program runs.
package nccl

/*
#cgo CFLAGS: -O2 -std=c11 -Wall -Wextra
#cgo LDFLAGS: -ldl
#include "nccl.h"
*/
import "C"

import (
	"errors"
	"fmt"
	"sync"
	"unsafe"

	"github.com/avgpipe/avgpipe/stage/device/cuda/library"
)

// names are those of NCCL, of all versions whose functions are those of nccl.h.
var names = []string{"libnccl.so.2"}

// least is the first version that sends and receives: 2.7.
const least = 2700

// inProgress is how NCCL says that a communicator still works at something.
const inProgress = 7

var loaded struct {
	sync.Mutex
	path    string // empty: none
	version C.int
	nccl    C.struct_avg_nccl
}

// Load finds NCCL, and returns its path. A process keeps the first that it finds.
func Load(s library.Search) (path string, err error) {
	loaded.Lock()
	defer loaded.Unlock()
	if loaded.path != "" {
		return loaded.path, nil
	}
	found, err := s.First(names, take)
	if err != nil {
		return "", fmt.Errorf("no NCCL: %w", err)
	}
	loaded.path = found.Path
	return found.Path, nil
}

// take finds the functions.
func take(l *library.Library) error {
	if lacking := C.avg_nccl_find(&loaded.nccl, l.Handle); lacking != nil {
		return fmt.Errorf("%s has no %s, expected NCCL 2.7 or later", l.Path, C.GoString(lacking))
	}
	if err := failure("ask "+l.Path+" for its version", C.avg_nccl_version(&loaded.nccl, &loaded.version)); err != nil {
		return err
	}
	if loaded.version < least {
		return fmt.Errorf("%s: version %d, expected %d or above: NCCL 2.7", l.Path, int(loaded.version), least)
	}
	return nil
}

// Version names the version of the library that Load found: "2.19.3".
func Version() string {
	v := int(loaded.version)
	if v < 10000 { // as the library counted before 2.9
		return fmt.Sprintf("%d.%d.%d", v/1000, v%1000/100, v%100)
	}
	return fmt.Sprintf("%d.%d.%d", v/10000, v%10000/100, v%100)
}

func failure(doing string, result C.int) error {
	if result == 0 {
		return nil
	}
	return fmt.Errorf("%s: NCCL says %q (%d)", doing, C.GoString(C.avg_nccl_error(&loaded.nccl, result)), int(result))
}

// ErrHung is in the error of what has not ended in its time.
var ErrHung = errors.New("not ended")

var alone struct {
	sync.Mutex
	hung error // why NCCL is not called any more
}

// Alone does something with communicators, and returns when that has ended on the processors. Nothing else of NCCL runs meanwhile in this process: it is
// not safe for several communicators on one processor, and operations that two processors begin in different orders wait for each other. When do
// returns an ErrHung, it is the last: that error is all that Alone returns from then on.
func Alone(do func() error) error {
	alone.Lock()
	defer alone.Unlock()
	if alone.hung != nil {
		return alone.hung
	}
	err := do()
	if errors.Is(err, ErrHung) {
		alone.hung = fmt.Errorf("%w; NCCL is not used any more in this process, and its communicators stay until that ends", err)
		return alone.hung
	}
	return err
}

// Pair copies from one processor to another. All its functions are for Alone. Failed and Abort may be called beside Copy; nothing else runs beside
// another call.
type Pair struct {
	communicators [2]unsafe.Pointer
	aborted       bool
}

// Open makes the communicators of two processors, by their numbers, of the library that Load found.
func Open(from, to int) (*Pair, error) {
	p := &Pair{}
	ordinals := [2]C.int{C.int(from), C.int(to)}
	if err := failure("make communicators", C.avg_nccl_create(&loaded.nccl, &p.communicators[0], &ordinals[0])); err != nil {
		return nil, err
	}
	return p, nil
}

// Copy hands a copy to a stream of each processor, which lie there.
func (p *Pair) Copy(dst, src uintptr, bytes int, from, to unsafe.Pointer) error {
	streams := [2]unsafe.Pointer{from, to}
	return failure("send and receive", C.avg_nccl_copy(&loaded.nccl, &p.communicators[0], C.uintptr_t(dst), C.uintptr_t(src), C.size_t(bytes), &streams[0]))
}

// Failed is the first failure of what was handed over.
func (p *Pair) Failed() error {
	for _, c := range p.communicators {
		var result C.int
		if err := failure("ask for failures", C.avg_nccl_state(&loaded.nccl, c, &result)); err != nil {
			return err
		}
		if result != inProgress && result != 0 {
			return failure("send and receive", result)
		}
	}
	return nil
}

// Abort ends what was handed over and has not ended. The pair must not be used any more, but for Close.
func (p *Pair) Abort() {
	p.aborted = true
	for _, c := range p.communicators {
		C.avg_nccl_abort(&loaded.nccl, c)
	}
}

// Close frees the communicators.
func (p *Pair) Close() (err error) {
	if p.aborted { // which has freed them
		return nil
	}
	for _, c := range p.communicators {
		err = errors.Join(err, failure("destroy a communicator", C.avg_nccl_destroy(&loaded.nccl, c)))
	}
	return err
}
