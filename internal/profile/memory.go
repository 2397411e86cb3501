package profile

import (
	"math"

	"github.com/avgpipe/avgpipe/stage/device"
)

// reserve is the part of the memory that no job is planned into: commits, buffers of files, other processes.
const reserve = 0.1

// availableMemory is what this host can give to a job now, in bytes; 0 when it does not say.
func availableMemory() int64 {
	available := device.HostAvailable()
	if available == math.MaxInt64 {
		return 0
	}
	return max(1, int64((1-reserve)*float64(available)))
}
