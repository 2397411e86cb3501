package modeldir

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/avgpipe/avgpipe/internal/checkpoint"
)

// stagingPrefix begins the names of staging directories. Each lies in the directory that is exported to, so that its files
// can be renamed into it, and holds a lock for as long as its writer lives.
const (
	stagingPrefix = ".avgpipe-export-"
	lockFile      = ".lock"
)

func isStaging(name string) bool { return strings.HasPrefix(name, stagingPrefix) }

// staging is a directory that the files of an export are collected in.
type staging struct {
	dir  string
	lock *os.File
}

func newStaging(dir string) (*staging, error) {
	at, err := os.MkdirTemp(dir, stagingPrefix)
	if err != nil {
		return nil, err
	}
	lock, err := lockAt(at, os.O_CREATE)
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(at))
	}
	return &staging{at, lock}, nil
}

var errHeld = errors.New("locked by another process")

func lockAt(dir string, flags int) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(dir, lockFile), os.O_RDWR|unix.O_NOFOLLOW|flags, 0o600)
	if err != nil {
		return nil, err
	}
	err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		err = errHeld
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("lock %s: %w", f.Name(), err), f.Close())
	}
	return f, nil
}

func (s *staging) remove() error { return errors.Join(os.RemoveAll(s.dir), s.lock.Close()) }

func (s *staging) describe() ([]file, error) {
	entries, err := os.ReadDir(s.dir)
	if err != nil {
		return nil, err
	}
	var files []file
	for _, e := range entries {
		if e.Name() == lockFile {
			continue
		}
		if !plain(e.Name()) || !e.Type().IsRegular() {
			return nil, fmt.Errorf("export: %s is none of a model's files", e.Name())
		}
		f, err := describe(filepath.Join(s.dir, e.Name()))
		if err != nil {
			return nil, err
		}
		files = append(files, f)
	}
	return files, nil
}

// manifest replaces the manifest of the directory that is exported to, at once and for good.
func (s *staging) manifest(dir string, m manifest) error {
	text, err := m.encode()
	if err != nil {
		return err
	}
	path := filepath.Join(s.dir, ManifestFile)
	if err := checkpoint.WriteFile(path, text, 0o644); err != nil {
		return err
	}
	if err := os.Rename(path, filepath.Join(dir, ManifestFile)); err != nil {
		return err
	}
	return checkpoint.MakeDurable(dir)
}

func held(dir string) bool {
	f, err := lockAt(dir, 0)
	if err != nil {
		return errors.Is(err, errHeld)
	}
	return f.Close() != nil
}

func removeStale(dir string, names []string) error {
	for _, name := range names {
		if err := os.RemoveAll(filepath.Join(dir, name)); err != nil {
			return fmt.Errorf("remove what an export left that was killed: %w", err)
		}
	}
	return nil
}
