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
