package checkpoint

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// AtomicDir is a directory of files that appears under its name only when all of them are whole. It works on the operating
// system's files. Use one from one goroutine.
type AtomicDir struct {
	temp, path string
	closed     bool
}

// CreateDir starts the directory path. It must not exist yet, or be empty: a directory with files in it is never replaced.
func CreateDir(path string, perm fs.FileMode) (*AtomicDir, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, fmt.Errorf("create directory %s: %w", path, err)
	}
	if err := absentOrEmpty(path); err != nil {
		return nil, err
	}
	parent := filepath.Dir(path)
	if err := os.MkdirAll(parent, perm); err != nil {
		return nil, fmt.Errorf("create directory %s: %w", path, err)
	}
	temp, err := os.MkdirTemp(parent, TempPrefix+"*")
	if err != nil {
		return nil, fmt.Errorf("create directory %s: %w", path, err)
	}
	if err := os.Chmod(temp, perm); err != nil {
		return nil, errors.Join(fmt.Errorf("create directory %s: %w", path, err), os.Remove(temp))
	}
	return &AtomicDir{temp: temp, path: path}, nil
}

// absentOrEmpty reports what is in the way at path.
func absentOrEmpty(path string) error {
	names, err := OS.ReadDir(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return fmt.Errorf("create directory %s: %w", path, err)
	case len(names) > 0:
		return fmt.Errorf("create directory %s: it exists and holds %s: name a new directory, or empty this one: %w",
			path, names[0], fs.ErrExist)
	}
	return nil
}

// Dir is where to put the files until Commit: each with WriteFile, Create or CreateSafetensors, so that it is synced.
func (d *AtomicDir) Dir() string { return d.temp }

// Commit makes the directory durable under its name. After an error the name is as it was, but for a failure to sync the
// parent directory, which comes last.
func (d *AtomicDir) Commit() error {
	if d.closed {
		return fmt.Errorf("commit directory %s: already committed or aborted", d.path)
	}
	if err := OS.SyncDir(d.temp); err != nil {
		return errors.Join(fmt.Errorf("commit directory %s: %w", d.path, err), d.Abort())
	}
	// rename(2) takes the place of an empty directory and refuses any other.
	if err := unix.Rename(d.temp, d.path); err != nil {
		return errors.Join(fmt.Errorf("commit directory %s: %w", d.path, err), d.Abort())
	}
	d.closed = true
	if err := OS.SyncDir(filepath.Dir(d.path)); err != nil {
		return fmt.Errorf("commit directory %s: sync its parent: %w", d.path, err)
	}
	return nil
}

// Abort removes what was written. It does nothing after Commit or Abort, so it may be deferred.
func (d *AtomicDir) Abort() error {
	if d.closed {
		return nil
	}
	d.closed = true
	return os.RemoveAll(d.temp)
}
