//go:build cuda && cgo && linux && amd64

package driver

/*
#include "include/cuda.h"
*/
import "C"

import (
	"fmt"
	"unsafe"
)

// Graph is what a stream was given while it was captured, which runs by one launch. The zero Graph is none.
type Graph struct{ executable C.CUgraphExec }

// BeginCapture has a stream note what the thread gives it, in place of running it. What other threads do goes on.
func BeginCapture(stream unsafe.Pointer) error {
	return failure("begin to capture", C.cuStreamBeginCapture(C.CUstream(stream), C.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL))
}

// EndCapture returns what the stream has noted.
func EndCapture(stream unsafe.Pointer) (g Graph, err error) {
	var noted C.CUgraph
	if err := failure("end a capture", C.cuStreamEndCapture(C.CUstream(stream), &noted)); err != nil {
		return g, err
	}
	err = failure("make a graph", C.cuGraphInstantiateWithFlags(&g.executable, noted, 0))
	C.cuGraphDestroy(noted)
	return g, err
}

// Launch gives the graph to a stream.
func (g Graph) Launch(stream unsafe.Pointer) error {
	return failure("launch a graph", C.cuGraphLaunch(g.executable, C.CUstream(stream)))
}

// Destroy frees the graph when it does not run any more.
func (g Graph) Destroy() error {
	if g.executable == nil {
		return nil
	}
	return failure("destroy a graph", C.cuGraphExecDestroy(g.executable))
}

func failure(doing string, code C.CUresult) error {
	if code == C.CUDA_SUCCESS {
		return nil
	}
	return fmt.Errorf("%s: %w", doing, Error(code))
}
