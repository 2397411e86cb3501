package cuda

import "errors"

// ErrAbsent is why a build without CUDA has no graphics processors.
var ErrAbsent = errors.New("this program is built without CUDA; `make cuda` builds it with CUDA (Linux, amd64, cgo)")

// Processor is a graphics processor that the driver shows to this process.
type Processor struct {
	UUID, Name  string
	Capability  string // of CUDA: "9.0"
	MemoryBytes int64
}

// Libraries that Probe knows.
const (
	Driver = "driver"
	BLAS   = "cuBLAS"
	DNN    = "cuDNN"
	NCCL   = "NCCL"
)

// LeastCapability is the major number of the compute capability of the oldest processors that the kernels are compiled for.
const LeastCapability = 8

// Finding is what Probe found of a library.
type Finding struct {
	Path       string      `json:"path,omitempty"`  // of the library that was opened; empty: none was
	Error      string      `json:"error,omitempty"` // why it cannot be used; empty: it can
	Absent     bool        `json:"absent,omitempty"`
	Processors []Processor `json:"processors,omitempty"` // that the driver shows
	// NoDevice is set where the driver's library was opened and failed to find a device.
	NoDevice bool `json:"no_device,omitempty"`
}
