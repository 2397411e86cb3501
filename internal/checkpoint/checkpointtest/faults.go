// Package checkpointtest injects faults into package checkpoint, for tests of what durable files do on a bad day.
package checkpointtest

import (
	"errors"
	"io/fs"
	"sync"
	"syscall"
	"testing"

	"github.com/avgpipe/avgpipe/internal/checkpoint"
)

// ErrCrashed is what every operation fails with after a crash: the process is gone, and so does nothing any more.
var ErrCrashed = errors.New("injected crash")

// Faults fail operations on demand. Its methods may be called concurrently.
type Faults struct {
	mu       sync.Mutex
	fail     map[checkpoint.Op]error
	crashAt  checkpoint.Op
	crashed  bool
	capacity int // bytes that can still be written; negative: no limit
}

// New injects faults until the test ends. Nothing fails yet.
func New(t testing.TB) *Faults {
	f := &Faults{fail: map[checkpoint.Op]error{}, capacity: -1}
	checkpoint.InjectFaults(f.check)
	t.Cleanup(func() { checkpoint.InjectFaults(nil) })
	return f
}

// Fail makes every later op fail with err; nil heals it.
func (f *Faults) Fail(op checkpoint.Op, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.fail[op] = err
}

// CrashAt makes the next op and everything after it fail with ErrCrashed, as for a process that was killed just before it; "" ends that.
func (f *Faults) CrashAt(op checkpoint.Op) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.crashAt, f.crashed = op, false
}

// Capacity lets n more bytes be written; a write that exceeds them fails with ENOSPC.
func (f *Faults) Capacity(n int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.capacity = int(n)
}

func (f *Faults) check(op checkpoint.Op, bytes int) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.crashed = f.crashed || op == f.crashAt
	switch {
	case f.crashed:
		return ErrCrashed
	case f.fail[op] != nil:
		return f.fail[op]
	case f.capacity >= 0 && bytes > f.capacity:
		return &fs.PathError{Op: string(op), Path: "a full disk", Err: syscall.ENOSPC}
	case f.capacity >= 0:
		f.capacity -= bytes
	}
	return nil
}
