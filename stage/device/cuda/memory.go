//go:build cuda && cgo && linux && amd64

package cuda

import (
	"fmt"
	"sync"
)

// budget is what stages take of a processor's memory, on all devices of this process. What devices take for themselves is a part of the CUDA context, as
// it is priced.
type budget struct {
	mu           sync.Mutex
	limit, taken int64 // bytes; limit 0: what the processor has
}

// bound sets the limit. The last device that is opened with one decides.
func (b *budget) bound(limit int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if limit > 0 {
		b.limit = limit
	}
}

// take reports why so many bytes more are too many. Whoever takes them gives them back.
func (b *budget) take(bytes int64) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.limit > 0 && bytes > b.limit-b.taken {
		return fmt.Errorf("allocate memory of the device: %d bytes asked for, %d taken by this process, %d is its limit (devices.gpu.memory, less the CUDA context); "+
			"raise devices.gpu.memory, or use fewer pipelines, smaller micro-batches or more stages", bytes, b.taken, b.limit)
	}
	b.taken += bytes
	return nil
}

func (b *budget) give(bytes int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.taken -= bytes
}
