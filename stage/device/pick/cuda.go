//go:build cuda && cgo && linux && amd64

package pick

import (
	"errors"
	"fmt"

	"github.com/avgpipe/avgpipe/stage/device"
	"github.com/avgpipe/avgpipe/stage/device/cuda"
)

// graphics are the kinds of graphics processors.
var graphics = []choice{{"gpu", openGPU, unopened{new(cuda.Device)}}}

func openGPU(c Config) (device.Device, string, error) {
	var all []device.Queue
	for range max(c.Graphics.Queues, 1) {
		dev, err := cuda.Open(c.Graphics)
		if err != nil {
			for _, one := range all {
				err = errors.Join(err, one.Close())
			}
			return nil, "", err
		}
		all = append(all, dev)
	}
	name := all[0].Name()
	if len(all) == 1 {
		return all[0], name + ": a GPU of this node", nil
	}
	return device.NewQueues(all), fmt.Sprintf("%s: a GPU of this node, with %d queues", name, len(all)), nil
}

// unopened is a device on no processor, which knows what it would have.
type unopened struct{ *cuda.Device }

// Name implements device.Device.
func (unopened) Name() string { return "gpu (cuda)" }
