//go:build !(cuda && cgo && linux && amd64)

package cuda

import (
	"errors"

	"github.com/avgpipe/avgpipe/stage/device"
)

// Device is none: this build has no CUDA.
type Device struct{ device.Device }

// Open returns an error that says what the build lacks.
func Open(c Config) (*Device, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	return nil, errors.New("cuda device: built without CUDA; `make cuda` builds with it (Linux, amd64, cgo)")
}
