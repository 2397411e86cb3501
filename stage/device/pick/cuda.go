//go:build cuda && cgo && linux && amd64

package pick

import (
	"github.com/avgpipe/avgpipe/stage/device"
	"github.com/avgpipe/avgpipe/stage/device/cuda"
)

// graphics are the kinds of graphics processors.
var graphics = []choice{{"gpu", openGPU, unopened{new(cuda.Device)}}}

func openGPU(c Config) (device.Device, string, error) {
	dev, err := cuda.Open(c.Graphics)
	if err != nil {
		return nil, "", err
	}
	return dev, dev.Name() + ": a GPU of this node", nil
}

// unopened is a device on no processor, which knows what it would have.
type unopened struct{ *cuda.Device }

// Name implements device.Device.
func (unopened) Name() string { return "gpu (cuda)" }
