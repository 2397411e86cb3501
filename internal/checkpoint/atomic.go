package checkpoint

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
)

// AtomicFile is a file being written that appears under its name only when it is whole. Use one from one goroutine.
type AtomicFile struct {
	file   *os.File
	dir    string
	needed int64 // bytes the whole file will have; 0: unknown
	offset int64 // bytes written so far
	out    writeOut
	closed bool
}

// Create starts a file in dir. needed is the bytes that will be written, for the message when they do not fit; 0 when unknown.
func Create(dir string, perm fs.FileMode, needed int64) (*AtomicFile, error) {
	file, err := createTemp(dir, perm)
	if err != nil {
		return nil, explain(dir, needed, fmt.Errorf("create a file in %s: %w", dir, err))
	}
	return &AtomicFile{file: file, dir: dir, needed: needed}, nil
}

// Write appends. A full disk is a *SpaceError.
func (a *AtomicFile) Write(p []byte) (int, error) {
	if err := fault(Write, len(p)); err != nil {
		return 0, a.explain(err)
	}
	n, err := a.file.Write(p)
	a.offset += int64(n)
	if err == nil {
		err = a.out.wrote(a.file, a.offset)
	}
	if err != nil {
		return n, a.explain(err)
	}
	return n, nil
}

// WriteAt overwrites bytes that were written already.
func (a *AtomicFile) WriteAt(p []byte, offset int64) (int, error) {
	if offset < 0 || offset+int64(len(p)) > a.offset {
		return 0, fmt.Errorf("write %s: bytes %d to %d of %d written", a.file.Name(), offset, offset+int64(len(p)), a.offset)
	}
	n, err := a.file.WriteAt(p, offset)
	if err != nil {
		return n, a.explain(err)
	}
	return n, nil
}

// Commit makes the file durable under dir/name, replacing what is there. After an error nothing was replaced and the
// temporary file is gone, with one exception: when the very last step fails, syncing the directory, the new file is in place and
// whole but may not survive a crash.
func (a *AtomicFile) Commit(name string) error {
	if a.closed {
		return fmt.Errorf("commit %s: already committed or aborted", filepath.Join(a.dir, name))
	}
	path := filepath.Join(a.dir, name)
	if err := do(Sync, a.file.Sync); err != nil {
		return errors.Join(a.explain(fmt.Errorf("sync before naming it %s: %w", path, err)), a.Abort())
	}
	a.closed = true
	if err := errors.Join(fault(Close, 0), a.file.Close()); err != nil {
		return errors.Join(fmt.Errorf("commit %s: %w", path, err), a.remove())
	}
	if err := do(Rename, func() error { return os.Rename(a.file.Name(), path) }); err != nil {
		return errors.Join(fmt.Errorf("commit %s: %w", path, err), a.remove())
	}
	if err := MakeDurable(a.dir); err != nil {
		return fmt.Errorf("commit %s: sync its directory: %w", path, err)
	}
	return nil
}

// Abort removes the temporary file. It does nothing after Commit or Abort, so it may be deferred.
func (a *AtomicFile) Abort() error {
	if a.closed {
		return nil
	}
	a.closed = true
	return errors.Join(a.file.Close(), a.remove())
}

func (a *AtomicFile) remove() error {
	return do(Remove, func() error { return os.Remove(a.file.Name()) })
}

// explain turns a failed write into a *SpaceError when the disk is full.
func (a *AtomicFile) explain(err error) error {
	return explain(a.dir, max(a.needed, a.offset), err)
}

func explain(dir string, needed int64, err error) error {
	if !errors.Is(err, syscall.ENOSPC) && !errors.Is(err, syscall.EDQUOT) {
		return err
	}
	available, statErr := Available(dir)
	if statErr != nil {
		available = -1
	}
	return &SpaceError{Dir: dir, Needed: needed, Available: available, Err: err}
}

// SpaceError reports a disk or a quota that is full.
type SpaceError struct {
	Dir       string
	Needed    int64 // bytes of the whole file, as far as known
	Available int64 // bytes, when it failed, beside what had been written; -1: unknown
	Err       error
}

func (e *SpaceError) Error() string {
	available := "an unknown number"
	if e.Available >= 0 {
		available = strconv.FormatInt(e.Available, 10)
	}
	return fmt.Sprintf("%s is full: the file needs %d bytes, %s available beside what was already written; "+
		"free some space or use another disk: %v", e.Dir, e.Needed, available, e.Err)
}

// Unwrap gives the system's error.
func (e *SpaceError) Unwrap() error { return e.Err }

// WriteFile makes data durable as the file path, atomically.
func WriteFile(path string, data []byte, perm fs.FileMode) error {
	f, err := Create(filepath.Dir(path), perm, int64(len(data)))
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	if _, err := f.Write(data); err != nil {
		return errors.Join(fmt.Errorf("write %s: %w", path, err), f.Abort())
	}
	return f.Commit(filepath.Base(path))
}

// RemoveStale removes the temporary files in dir that a crash left behind, and none that is being written.
func RemoveStale(dir string) (removed int, err error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return 0, err
	}
	for _, e := range entries {
		if !isTemp(e.Name()) {
			continue
		}
		gone, err := removeStale(filepath.Join(dir, e.Name()))
		if err != nil && !errors.Is(err, fs.ErrNotExist) { // another process may have been faster
			return removed, err
		}
		if gone {
			removed++
		}
	}
	return removed, nil
}
