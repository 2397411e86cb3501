package checkpoint

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// Op names an operation on the file system.
type Op string

// The operations that a durable file takes.
const (
	CreateTemp Op = "create"
	Write      Op = "write"
	Sync       Op = "sync"
	Close      Op = "close"
	Rename     Op = "rename"
	Remove     Op = "remove"
	SyncDir    Op = "syncdir"
)

// faults is what InjectFaults was given; nil in programs.
var faults atomic.Pointer[func(op Op, bytes int) error]

// InjectFaults has f called before every operation of this package, with the bytes of a Write; the operation fails with its error and
// does nothing. Nil ends that. It is for tests: see package checkpointtest.
func InjectFaults(f func(op Op, bytes int) error) {
	if f == nil {
		faults.Store(nil)
		return
	}
	faults.Store(&f)
}

// fault is the injected error of an operation.
func fault(op Op, bytes int) error {
	if f := faults.Load(); f != nil {
		return (*f)(op, bytes)
	}
	return nil
}

// do is an operation, unless a fault was injected for it.
func do(op Op, operation func() error) error {
	if err := fault(op, 0); err != nil {
		return err
	}
	return operation()
}

// TempPrefix starts the name of every temporary file.
const TempPrefix = ".tmp-"

// isTemp reports whether createTemp may have given a file its name.
func isTemp(name string) bool {
	number, ok := strings.CutPrefix(name, TempPrefix)
	return ok && number != "" && strings.Trim(number, "0123456789") == ""
}

// createTemp creates a file in dir for writing, named TempPrefix and something unique, and locks it for as long as it is open.
func createTemp(dir string, perm fs.FileMode) (*os.File, error) {
	for {
		if err := fault(CreateTemp, 0); err != nil {
			return nil, err
		}
		f, err := os.CreateTemp(dir, TempPrefix+"*")
		if err != nil {
			return nil, err
		}
		if err = unix.Flock(int(f.Fd()), unix.LOCK_EX); err == nil {
			err = f.Chmod(perm)
		}
		if err != nil {
			return nil, fmt.Errorf("create %s: %w", f.Name(), errors.Join(err, f.Close(), os.Remove(f.Name())))
		}
		// Between creation and lock another process may have taken the file for stale and removed it: then once more.
		if _, err = os.Lstat(f.Name()); err == nil {
			return f, nil
		}
		if closeErr := f.Close(); closeErr != nil || !errors.Is(err, fs.ErrNotExist) {
			return nil, errors.Join(err, closeErr)
		}
	}
}

// removeStale deletes a file of createTemp unless a live process still has it open. It reports whether it did.
func removeStale(name string) (removed bool, err error) {
	f, err := os.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOFOLLOW, 0)
	if err != nil {
		return false, err
	}
	defer func() {
		if closeErr := f.Close(); err == nil {
			err = closeErr
		}
	}()
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return false, err
	}
	err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("lock %s: %w", name, err)
	}
	return true, os.Remove(name)
}

// MakeDurable syncs a directory: the names in it survive a crash.
func MakeDurable(dir string) error {
	if err := fault(SyncDir, 0); err != nil {
		return err
	}
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	err = d.Sync()
	if closeErr := d.Close(); err == nil {
		err = closeErr
	}
	return err
}

// Available is the bytes that this process may still write to dir's file system.
func Available(dir string) (int64, error) {
	var s unix.Statfs_t
	if err := unix.Statfs(dir, &s); err != nil {
		return 0, fmt.Errorf("statfs %s: %w", dir, err)
	}
	return int64(s.Bavail) * int64(s.Bsize), nil
}
