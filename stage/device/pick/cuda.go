//go:build cuda && cgo && linux && amd64

package pick

import (
	"github.com/avgpipe/avgpipe/stage/device"
	"github.com/avgpipe/avgpipe/stage/device/cuda"
)

// graphics are the kinds of graphics processors.
var graphics = []choice{{"cuda", openCUDA}}

func openCUDA(c Config) (device.Device, string, error) {
	dev, err := cuda.Open(c.Graphics)
	if err != nil {
		return nil, "", err
	}
	return dev, dev.Name() + ": asked for by name", nil
}
