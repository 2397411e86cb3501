//go:build !(cuda && cgo && linux && amd64)

package cuda

import (
	"github.com/avgpipe/avgpipe/stage/device"
)

// Device is none: this build has no CUDA.
type Device struct{ device.Device }

// Built reports whether this program can have graphics processors.
const Built = false

// Processors returns an error that says what the build lacks.
func Processors(Config) ([]Processor, error) { return nil, ErrAbsent }

// Open returns an error that says what the build lacks.
func Open(c Config) (*Device, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	return nil, ErrAbsent
}

// Probe returns a finding that says what the build lacks.
func Probe(string, Config, bool) Finding { return Finding{Error: ErrAbsent.Error(), Absent: true} }

// DieOfFaults does nothing: this build opens no libraries.
func DieOfFaults() {}
