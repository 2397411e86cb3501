//go:build !(cuda && cgo && linux && amd64)

package cuda

import (
	"errors"

	"github.com/avgpipe/avgpipe/stage/device"
)

// Device is none: this build has no CUDA.
type Device struct{ device.Device }

// ErrAbsent is why this build has no graphics processors.
var ErrAbsent = errors.New("this program is built without CUDA; `make cuda` builds it with CUDA (Linux, amd64, cgo)")

// Processors returns an error that says what the build lacks.
func Processors(Config) ([]Processor, error) { return nil, ErrAbsent }

// Open returns an error that says what the build lacks.
func Open(c Config) (*Device, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	return nil, ErrAbsent
}
