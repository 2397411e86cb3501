//go:build cuda && cgo && linux && amd64

package cuda

import (
	"fmt"
	"sync/atomic"
)

// fault is what a kernel refused to read, in page-locked memory: struct Fault of kernels/common.cuh.
type fault struct {
	found, operation      int32
	index, id, low, count int64
}

// The operations that refuse ids, with the operand that holds them.
var refusing = [...]string{"Embed: ids", "EmbedBackward: ids", "CrossEntropy: targets", "Dropout: ids"}

// Places in refusing.
const (
	embedIDs = iota
	embedBackwardIDs
	crossEntropyTargets
	dropoutIDs
)

// err is what kernels that have ended refused, in the words of device.CheckIDs. Forgetting it lets them find the next.
func (f *fault) err(forget bool) error {
	if atomic.LoadInt32(&f.found) != 1 {
		return nil
	}
	err := fmt.Errorf("%s[%d] is %d, expected %d to %d", refusing[f.operation], f.index, f.id, f.low, f.count-1)
	if forget {
		atomic.StoreInt32(&f.found, 0)
	}
	return err
}
