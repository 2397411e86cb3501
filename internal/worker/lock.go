package worker

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/avgpipe/avgpipe/internal/worker/control"
)

// errBusy says that another worker trains in the job's directory.
var errBusy = errors.New("worker: another worker trains in the job's directory")

// lockDir makes a job's directory this worker's own until the file is closed. The kernel frees the lock when the process dies.
func lockDir(dir string) (*os.File, error) {
	path := control.LockPath(dir)
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("worker: lock the job's directory: %w", err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		if errors.Is(err, unix.EWOULDBLOCK) {
			err = fmt.Errorf("%w: it holds %s; it must end first", errBusy, path)
		}
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}
