// Package checkpointtest injects faults into a checkpoint.FS, for tests of what durable files do on a bad day.
package checkpointtest

import (
	"errors"
	"io/fs"
	"sync"
	"syscall"

	"github.com/avgpipe/avgpipe/internal/checkpoint"
)

// Op names an operation that can fail.
type Op string

// The operations that Faults can make fail.
const (
	MkdirAll   Op = "mkdir"
	CreateTemp Op = "create"
	Open       Op = "open"
	Write      Op = "write"
	Sync       Op = "sync"
	Close      Op = "close"
	Rename     Op = "rename"
	Remove     Op = "remove"
	ReadDir    Op = "readdir"
	SyncDir    Op = "syncdir"
)

// ErrCrashed is what every operation of a crashed file system returns: the process is gone, and so does nothing any more.
var ErrCrashed = errors.New("injected crash")

// Faults is a file system that fails on demand. Its methods may be called concurrently.
type Faults struct {
	checkpoint.FS

	mu       sync.Mutex
	fail     map[Op]error
	crashAt  Op
	crashed  bool
	capacity int64 // bytes that can still be written; negative: no limit
}

// New wraps a file system. Nothing fails yet.
func New(fsys checkpoint.FS) *Faults {
	return &Faults{FS: fsys, fail: map[Op]error{}, capacity: -1}
}

// Fail makes every later op fail with err, without an effect; nil heals it.
func (f *Faults) Fail(op Op, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.fail[op] = err
}

// CrashAt makes the next op and everything after it fail with ErrCrashed and do nothing, as for a process that was killed
// just before it.
func (f *Faults) CrashAt(op Op) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.crashAt = op
}

// Capacity lets n more bytes be written; the write that exceeds them is cut short with ENOSPC.
func (f *Faults) Capacity(n int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.capacity = n
}

// check is the fault of an operation, if it is to have one.
func (f *Faults) check(op Op) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.crashAt == op {
		f.crashed = true
	}
	if f.crashed {
		return ErrCrashed
	}
	return f.fail[op]
}

// take is how many of n bytes fit.
func (f *Faults) take(n int) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.capacity < 0 {
		return n
	}
	n = int(min(int64(n), f.capacity))
	f.capacity -= int64(n)
	return n
}

// do is an operation, unless it is to fail.
func (f *Faults) do(op Op, operation func() error) error {
	if err := f.check(op); err != nil {
		return err
	}
	return operation()
}

// MkdirAll implements checkpoint.FS.
func (f *Faults) MkdirAll(dir string, perm fs.FileMode) error {
	return f.do(MkdirAll, func() error { return f.FS.MkdirAll(dir, perm) })
}

// CreateTemp implements checkpoint.FS.
func (f *Faults) CreateTemp(dir string, perm fs.FileMode) (file checkpoint.File, err error) {
	err = f.do(CreateTemp, func() error { file, err = f.FS.CreateTemp(dir, perm); return err })
	if err != nil {
		return nil, err
	}
	return &faultyFile{file, f}, nil
}

// Open implements checkpoint.FS.
func (f *Faults) Open(name string) (file checkpoint.File, err error) {
	err = f.do(Open, func() error { file, err = f.FS.Open(name); return err })
	return file, err
}

// Rename implements checkpoint.FS.
func (f *Faults) Rename(from, to string) error {
	return f.do(Rename, func() error { return f.FS.Rename(from, to) })
}

// Remove implements checkpoint.FS.
func (f *Faults) Remove(name string) error {
	return f.do(Remove, func() error { return f.FS.Remove(name) })
}

// ReadDir implements checkpoint.FS.
func (f *Faults) ReadDir(dir string) (names []string, err error) {
	err = f.do(ReadDir, func() error { names, err = f.FS.ReadDir(dir); return err })
	return names, err
}

// SyncDir implements checkpoint.FS.
func (f *Faults) SyncDir(dir string) error {
	return f.do(SyncDir, func() error { return f.FS.SyncDir(dir) })
}

// Available implements checkpoint.FS.
func (f *Faults) Available(dir string) (int64, error) {
	f.mu.Lock()
	capacity := f.capacity
	f.mu.Unlock()
	if capacity >= 0 {
		return capacity, nil
	}
	return f.FS.Available(dir)
}

// faultyFile is a file being written.
type faultyFile struct {
	checkpoint.File
	faults *Faults
}

func (f *faultyFile) Write(p []byte) (int, error) {
	if err := f.faults.check(Write); err != nil {
		return 0, err
	}
	fits := f.faults.take(len(p))
	n, err := f.File.Write(p[:fits])
	if err == nil && fits < len(p) {
		err = &fs.PathError{Op: "write", Path: f.Name(), Err: syscall.ENOSPC}
	}
	return n, err
}

func (f *faultyFile) Sync() error { return f.faults.do(Sync, f.File.Sync) }

// Close closes the file even when it reports a fault, so that tests leak nothing and a crash frees the file's lock.
func (f *faultyFile) Close() error {
	fault := f.faults.check(Close)
	err := f.File.Close()
	if fault != nil {
		return fault
	}
	return err
}
