package main

import (
	"context"
	"math/rand/v2"
	"time"
)

// slowest is how long a sync of a file takes at most on a slow disk.
const slowest = 300 * time.Millisecond

func slowDisk(_ context.Context, h *host) (func() error, error) {
	return h.syncs(func(done <-chan struct{}) {
		select {
		case <-time.After(rand.N(slowest)): // which call waits how long follows from the host's timing anyhow
		case <-done:
		}
	})
}

func stuckDisk(_ context.Context, h *host) (func() error, error) {
	return h.syncs(func(done <-chan struct{}) { <-done })
}

// syncs has each sync of a file wait.
func (h *host) syncs(wait func(done <-chan struct{})) (func() error, error) {
	undo := h.disk.Slow(wait)
	return func() error {
		undo()
		return nil
	}, nil
}
