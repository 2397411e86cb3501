//go:build !(cuda && cgo && linux && amd64)

package nvml

import (
	"fmt"

	"github.com/avgpipe/avgpipe/internal/gpu"
)

// Open says that this build has no driver.
func Open() (gpu.Source, error) {
	return nil, fmt.Errorf("%w: built without CUDA; `make cuda` builds with it (Linux, amd64, cgo)", gpu.ErrNone)
}
