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

// Transport is none: this build has no CUDA.
type Transport struct{}

// Apart reports whether two devices are on different processors: this build has none.
func Apart(device.Device, device.Device) bool { return false }

// Transports returns an error that says what the build lacks.
func Transports(device.Device, device.Device, Config, int) ([]*Transport, error) {
	return nil, ErrAbsent
}

// Name says how it copies.
func (*Transport) Name() string { return "" }

// Copy returns an error that says what the build lacks.
func (*Transport) Copy(device.Mem, device.Mem) error { return ErrAbsent }

// Close does nothing.
func (*Transport) Close() error { return nil }
