package checkpoint

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// FS is what durable files need of a file system. OS is the real one; package checkpointtest wraps one with faults.
// Methods may be called concurrently. Errors name the operation and the path, as package os does.
type FS interface {
	// MkdirAll makes the directory and its parents.
	MkdirAll(dir string, perm fs.FileMode) error
	// CreateTemp creates a file in dir for writing, named TempPrefix and something unique, and locks it for as long as it
	// is open.
	CreateTemp(dir string, perm fs.FileMode) (File, error)
	// Open opens a file for reading.
	Open(name string) (File, error)
	// Rename moves a file, replacing what is there, atomically.
	Rename(from, to string) error
	// Remove deletes a file or an empty directory.
	Remove(name string) error
	// RemoveStale deletes a file of CreateTemp unless a live process still has it open. It reports whether it did.
	RemoveStale(name string) (bool, error)
	// ReadDir lists the names in dir, sorted.
	ReadDir(dir string) ([]string, error)
	// SyncDir makes the names in dir durable.
	SyncDir(dir string) error
	// Available is the bytes that this process may still write to dir's file system.
	Available(dir string) (int64, error)
}

// File is an open file.
type File interface {
	io.Reader
	io.ReaderAt
	io.Writer
	io.WriterAt
	io.Seeker
	io.Closer
	Name() string
	Sync() error
	Stat() (fs.FileInfo, error)
}

// TempPrefix starts the name of every temporary file.
const TempPrefix = ".tmp-"

// isTemp reports whether CreateTemp may have given a file its name.
func isTemp(name string) bool {
	number, ok := strings.CutPrefix(name, TempPrefix)
	return ok && number != "" && strings.Trim(number, "0123456789") == ""
}

// OS is the operating system's file system.
var OS FS = osFS{}

type osFS struct{}

func (osFS) MkdirAll(dir string, perm fs.FileMode) error { return os.MkdirAll(dir, perm) }

func (osFS) CreateTemp(dir string, perm fs.FileMode) (File, error) {
	for {
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

func (osFS) Open(name string) (File, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err // not f: a nil *os.File in a File is not nil
	}
	return f, nil
}

func (osFS) Rename(from, to string) error { return os.Rename(from, to) }

func (osFS) Remove(name string) error { return os.Remove(name) }

func (osFS) RemoveStale(name string) (removed bool, err error) {
	if !isTemp(filepath.Base(name)) {
		return false, fmt.Errorf("remove stale %s: not a temporary file: its name is not %s and a number", name, TempPrefix)
	}
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

func (osFS) ReadDir(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	names := make([]string, len(entries))
	for i, e := range entries {
		names[i] = e.Name()
	}
	return names, nil
}

func (osFS) SyncDir(dir string) error {
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

func (osFS) Available(dir string) (int64, error) {
	var s unix.Statfs_t
	if err := unix.Statfs(dir, &s); err != nil {
		return 0, fmt.Errorf("statfs %s: %w", dir, err)
	}
	return int64(s.Bavail) * int64(s.Bsize), nil
}
