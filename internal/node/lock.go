package node

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// lockState makes the state directory this daemon's own until the returned file is closed. The kernel frees the lock when the
// process dies, however it does.
func lockState(dir string) (io.Closer, error) {
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return nil, fmt.Errorf("make the state directory: %w", err)
	}
	path := filepath.Join(dir, "lock")
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o640)
	if err != nil {
		return nil, fmt.Errorf("lock the state directory: %w", err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		holder, readErr := io.ReadAll(io.LimitReader(f, 32))
		err = fmt.Errorf("lock the state directory %s: %w", dir, err)
		if errors.Is(err, unix.EWOULDBLOCK) && readErr == nil {
			err = fmt.Errorf("the state directory %s is in use by another daemon, process %s: stop that one, or name another directory",
				dir, strings.TrimSpace(string(holder)))
		}
		return nil, errors.Join(err, f.Close())
	}
	text := fmt.Sprintf("%d\n", os.Getpid())
	if err := errors.Join(f.Truncate(0), writeAt(f, text)); err != nil {
		return nil, errors.Join(fmt.Errorf("lock the state directory: %w", err), f.Close())
	}
	return lock{f}, nil
}

// lock is a locked file.
type lock struct{ *os.File }

// Close frees the lock at once: a process that is being started may have the descriptor for a moment more.
func (l lock) Close() error {
	return errors.Join(unix.Flock(int(l.Fd()), unix.LOCK_UN), l.File.Close())
}

func writeAt(f *os.File, text string) error {
	_, err := f.WriteAt([]byte(text), 0)
	return err
}
