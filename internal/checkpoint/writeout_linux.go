package checkpoint

import (
	"errors"
	"os"
	"slices"

	"golang.org/x/sys/unix"
)

// startWriteOut gives bytes of a file to the disk, and does not wait for it.
func startWriteOut(file *os.File, from, to int64) error {
	return syncFileRange(file, from, to, unix.SYNC_FILE_RANGE_WRITE)
}

// awaitWriteOut waits until the disk has taken bytes of a file. They are not durable before the file is synced.
func awaitWriteOut(file *os.File, from, to int64) error {
	return syncFileRange(file, from, to, unix.SYNC_FILE_RANGE_WAIT_BEFORE|unix.SYNC_FILE_RANGE_WRITE|unix.SYNC_FILE_RANGE_WAIT_AFTER)
}

// noWriteOut are the errors of file systems and containers that do not have sync_file_range(2).
var noWriteOut = []error{unix.ENOSYS, unix.EPERM, unix.EINVAL, unix.ESPIPE, unix.EOPNOTSUPP}

func syncFileRange(file *os.File, from, to int64, flags int) error {
	err := error(unix.EINTR)
	for errors.Is(err, unix.EINTR) {
		err = unix.SyncFileRange(int(file.Fd()), from, to-from, flags)
	}
	switch {
	case err == nil:
		return nil
	case slices.ContainsFunc(noWriteOut, func(e error) bool { return errors.Is(err, e) }):
		return errors.ErrUnsupported
	}
	return &os.PathError{Op: "write out", Path: file.Name(), Err: err}
}
