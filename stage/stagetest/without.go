package stagetest

import (
	"fmt"
	"strings"

	"github.com/avgpipe/avgpipe/stage/device"
)

// Without is a device that lacks the operations whose names begin with Prefix.
type Without struct {
	device.Device
	Prefix string // "Convolution"
}

// Has implements device.Device.
func (w *Without) Has(op device.Op) bool {
	return !strings.HasPrefix(fmt.Sprintf("%T", op), "*device."+w.Prefix) && w.Device.Has(op)
}

// Do implements device.Device.
func (w *Without) Do(op device.Op) {
	if !w.Has(op) {
		panic(fmt.Sprintf("%s: no operation %T", w.Name(), op))
	}
	w.Device.Do(op)
}

// Name implements device.Device.
func (w *Without) Name() string { return w.Device.Name() + " without " + w.Prefix }
