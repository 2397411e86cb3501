//go:build cuda && cgo && linux && amd64

package cuda

import (
	"cmp"
	"errors"
	"fmt"
	"runtime"
	"unsafe"

	"gorgonia.org/cu"

	"github.com/avgpipe/avgpipe/stage/device/cuda/blas"
	"github.com/avgpipe/avgpipe/stage/device/cuda/dnn"
	"github.com/avgpipe/avgpipe/stage/device/cuda/driver"
	"github.com/avgpipe/avgpipe/stage/device/cuda/library"
	"github.com/avgpipe/avgpipe/stage/device/cuda/nccl"
)

// DieOfFaults lets the process die of a fault in a library by its signal, in place of the Go runtime's report.
func DieOfFaults() { library.DieOfFaults() }

// Probe opens a library as a device would, and says what it found. A library that hangs or faults takes the process along, so it is called in one of
// its own. Of cuBLAS and cuDNN it also makes a handle, if handles says so.
func Probe(name string, c Config, handles bool) Finding {
	var f Finding
	var err error
	switch name {
	case Driver:
		if f.Processors, err = Processors(c); err == nil {
			f.Path = cmp.Or(c.Library, driver.Library)
		}
	case BLAS:
		f.Path, err = blas.Load(search(c))
		if err == nil && handles {
			err = onAny(c, openBLAS)
		}
	case DNN:
		f.Path, err = dnn.Load(search(c))
		if err == nil && handles {
			err = onAny(c, openDNN)
		}
	case NCCL: // communicators, which want two processors, are made when they are wanted
		f.Path, err = nccl.Load(search(c))
	default:
		err = fmt.Errorf("library %q, expected %s, %s, %s or %s", name, Driver, BLAS, DNN, NCCL)
	}
	if err != nil {
		f.Error = err.Error()
	}
	_, f.NoDevice = errors.AsType[*driver.InitError](err)
	f.Absent = errors.Is(err, library.ErrAbsent)
	return f
}

// onAny calls do on a stream of the first processor that gives this process a context. Where none does, as where another process has them for
// itself, nothing is known.
func onAny(c Config, do func(stream cu.Stream) error) error {
	if err := driver.Load(c.Library, c.Visible, c.Opening); err != nil {
		return nil //nolint:nilerr // that is the driver's finding
	}
	count, _ := cu.NumDevices() // none: nothing is known
	for i := range count {
		gpu, err := cu.GetDevice(i)
		if err != nil {
			continue
		}
		context, err := gpu.RetainPrimaryCtx()
		if err != nil {
			continue
		}
		return errors.Join(inContext(context, do), gpu.ReleasePrimaryCtx())
	}
	return nil
}

// inContext calls do with a stream of a context.
func inContext(context cu.CUContext, do func(stream cu.Stream) error) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := cu.SetCurrentContext(context); err != nil {
		return nil // as onAny says
	}
	stream, err := cu.MakeStream(cu.NonBlocking)
	if err != nil {
		return nil
	}
	return errors.Join(do(stream), stream.Destroy())
}

func openBLAS(stream cu.Stream) error {
	workspace, err := cu.MemAlloc(blas.WorkspaceBytes)
	if err != nil {
		return nil //nolint:nilerr // somebody else has the memory
	}
	h, err := blas.Open(unsafe.Pointer(stream.C()), uintptr(workspace), false)
	if err == nil {
		err = h.Close()
	}
	if errors.Is(err, blas.NoMemory) {
		err = nil
	}
	return errors.Join(err, cu.MemFree(workspace))
}

func openDNN(stream cu.Stream) error {
	h, err := dnn.Open(library.Search{}, unsafe.Pointer(stream.C()))
	if err != nil {
		return err
	}
	return h.Close()
}
