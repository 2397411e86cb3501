//go:build cuda && cgo && linux && amd64

package cuda

import (
	"errors"
	"fmt"

	"gorgonia.org/cu"

	"github.com/avgpipe/avgpipe/stage/device/cuda/driver"
)

// Built reports whether this program can have graphics processors.
const Built = true

// Processors lists the graphics processors that the driver shows, in its order. Devices can be opened on those of LeastCapability. It takes no memory.
func Processors(c Config) (all []Processor, err error) {
	if err := driver.Load(c.Library, c.Visible, c.Opening); err != nil {
		return nil, err
	}
	count, err := cu.NumDevices()
	if err != nil {
		return nil, fmt.Errorf("count the graphics processors: %w", err)
	}
	for i := range count {
		gpu, err := cu.GetDevice(i)
		if err != nil {
			return nil, fmt.Errorf("graphics processor %d: %w", i, err)
		}
		uuid, noUUID := gpu.UUID()
		name, noName := gpu.Name()
		bytes, noBytes := gpu.TotalMem()
		major, noMajor := gpu.Attribute(cu.ComputeCapabilityMajor)
		minor, noMinor := gpu.Attribute(cu.ComputeCapabilityMinor)
		if err := errors.Join(noUUID, noName, noBytes, noMajor, noMinor); err != nil {
			return nil, fmt.Errorf("graphics processor %d: ask what it is: %w", i, err)
		}
		all = append(all, Processor{
			UUID: "GPU-" + uuid.String(), Name: name, Capability: fmt.Sprintf("%d.%d", major, minor), MemoryBytes: bytes,
		})
	}
	return all, nil
}
