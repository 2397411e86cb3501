//go:build cuda && cgo && linux && amd64

// Package dnn computes convolutions with cuDNN, which it loads while the program runs.
package dnn

/*
#cgo CFLAGS: -O2 -std=c11 -Wall -Wextra
#cgo LDFLAGS: -ldl
#include "dnn.h"
*/
import "C"

import (
	"errors"
	"fmt"
	"sync"
	"unsafe"

	"github.com/avgpipe/avgpipe/stage/device"
	"github.com/avgpipe/avgpipe/stage/device/cuda/library"
)

// libraries are the names of cuDNN, of the versions whose functions are those of dnn.h.
var libraries = []string{"libcudnn.so.9", "libcudnn.so.8"}

// Handle computes on one stream.
type Handle struct {
	handle unsafe.Pointer
	plans  map[key]*Plan // nil: cuDNN does not take it
}

// Form is one of the three forms of a convolution.
type Form int

// Forms: what a convolution sets, or adds to.
const (
	Forward        Form = iota // y
	Backward                   // the gradient of x
	BackwardWeight             // the gradient of weights
)

// Plan is a convolution that cuDNN has taken: of F32 images with their channels last, and weights (Out,Kernel,Kernel,In).
type Plan struct {
	key  key
	plan C.struct_avg_plan
}

// Workspace is the bytes that it takes beside its operands.
func (p *Plan) Workspace() int { return int(p.plan.workspace) }

type key struct {
	form  Form
	shape device.ConvolutionShape
	short bool
}

var loaded struct {
	sync.Mutex
	path string // empty: none
	dnn  C.struct_avg_dnn
}

// Open loads cuDNN and returns a handle in the thread's context.
func Open(s library.Search, stream unsafe.Pointer) (*Handle, error) {
	path, err := Load(s)
	if err != nil {
		return nil, err
	}
	h := &Handle{plans: map[key]*Plan{}}
	if err := failure("open a handle of "+path, C.avg_dnn_create(&loaded.dnn, &h.handle, stream)); err != nil {
		return nil, err
	}
	return h, nil
}

// Load finds cuDNN, and returns its path. A process keeps the first that it finds.
func Load(s library.Search) (path string, err error) {
	loaded.Lock()
	defer loaded.Unlock()
	if loaded.path != "" {
		return loaded.path, nil
	}
	found, err := s.First(libraries, take)
	if err != nil {
		return "", fmt.Errorf("no cuDNN: %w", err)
	}
	loaded.path = found.Path
	return found.Path, nil
}

// Versions of cuDNN that the numbers and functions of dnn.c are those of.
const leastVersion, versionAfter = 8000, 100000

// take finds the functions.
func take(l *library.Library) error {
	if lacking := C.avg_dnn_find(&loaded.dnn, l.Handle); lacking != nil {
		return fmt.Errorf("%s has no %s, expected cuDNN 8 or 9", l.Path, C.GoString(lacking))
	}
	if version := int(C.avg_dnn_version(&loaded.dnn)); version < leastVersion || version >= versionAfter {
		return fmt.Errorf("%s: version %d, expected %d to %d: cuDNN 8.0 to 9.99", l.Path, version, leastVersion, versionAfter-1)
	}
	return nil
}

// failure is the error of a status.
func failure(doing string, status C.int) error {
	if status == 0 {
		return nil
	}
	return fmt.Errorf("cuDNN: %s: status %d, %s", doing, int(status), C.GoString(C.avg_dnn_words(&loaded.dnn, status)))
}

// Version is that of the library: "9.1".
func (h *Handle) Version() string {
	version, major := int(C.avg_dnn_version(&loaded.dnn)), 1000
	if version >= 90000 {
		major = 10000
	}
	return fmt.Sprintf("%d.%d", version/major, version%major/100)
}

// Close frees the handle and its plans.
func (h *Handle) Close() error {
	for _, p := range h.plans {
		if p != nil {
			C.avg_dnn_free(&loaded.dnn, &p.plan)
		}
	}
	return failure("close", C.avg_dnn_destroy(&loaded.dnn, h.handle))
}

// Math of convolutions: of float32, or of float32 rounded to TF32, which keeps what is of BF16 as it is.
const mathTF32, mathF32 = 1, 3

// mostWorkspace bounds what a convolution takes beside its operands.
const mostWorkspace = 256 << 20

// Plan is the plan of a convolution, made at its first use. Where operands are short, all elements of x and weights, or of what is multiplied in a
// backward, are those of BF16. It is nil where cuDNN does not take the convolution, or takes it
// with too much memory.
func (h *Handle) Plan(form Form, s device.ConvolutionShape, short bool) *Plan {
	s.Bias = device.Mem{}
	k := key{form, s, short}
	if p, ok := h.plans[k]; ok {
		return p
	}
	oh, ow := s.Output()
	shape := C.struct_avg_shape{
		b: C.int(s.B), height: C.int(s.Height), width: C.int(s.Width), in: C.int(s.In), out: C.int(s.Out), kernel: C.int(s.Kernel),
		stride: C.int(s.Stride), padding: C.int(s.Padding), oh: C.int(oh), ow: C.int(ow), form: C.int(form), math: mathF32,
	}
	if short {
		shape.math = mathTF32
	}
	p := &Plan{key: k}
	if C.avg_dnn_plan(&loaded.dnn, h.handle, shape, &p.plan) != 0 || p.Workspace() > mostWorkspace {
		h.Forget(p)
		return nil
	}
	h.plans[k] = p
	return p
}

// Forget makes a plan one that cuDNN does not take.
func (h *Handle) Forget(p *Plan) {
	C.avg_dnn_free(&loaded.dnn, &p.plan)
	h.plans[p.key] = nil
}

// ErrRefused is the error of a convolution that cuDNN does not support, though it has planned it.
var ErrRefused = errors.New("cuDNN: not supported")

// statusUnsupported is what version 8 returns then, and the first of those of version 9, which say why.
const (
	statusUnsupported       = 9
	statusesUnsupported     = 3000
	statusesUnsupportedPast = 4000
)

// Run runs a plan. What it sets, or adds to, is one of x, y and weight. ErrRefused is the error where it does not, after all.
func (h *Handle) Run(p *Plan, accumulate bool, x, y, weight, workspace device.Mem) error {
	beta := C.float(0)
	if accumulate {
		beta = 1
	}
	status := C.avg_dnn_run(&loaded.dnn, h.handle, &p.plan, beta, address(x), address(y), address(weight), address(workspace))
	if status == statusUnsupported || status >= statusesUnsupported && status < statusesUnsupportedPast {
		return ErrRefused
	}
	return failure("run", status)
}

func address(m device.Mem) C.uintptr_t { return C.uintptr_t(uintptr(m.Pointer())) }
