package checkpoint

import (
	"errors"
	"os"
)

// writeOutWindow is how many bytes of a file are given to the disk at a time.
const writeOutWindow = 1 << 20

// writeOut gives a file to the disk while it grows, so that its own sync has little left to do. The sync of another file, as of Raft's log, waits for what the
// disk was given before: for two windows of this file at most, and not for all of it.
type writeOut struct {
	begun   int64 // up to here, the disk was given the file
	written int64 // up to here, it has written it
	off     bool  // this file system has no such thing
}

// wrote is told how long the file has become. What it returns is an error of writing: the sync at the end would not report it again.
func (w *writeOut) wrote(file *os.File, length int64) error {
	if w.off || length-w.begun < writeOutWindow {
		return nil
	}
	whole := length - length%int64(os.Getpagesize()) // a page that is being written cannot be appended to
	err := startWriteOut(file, w.begun, whole)
	if err == nil && w.begun > w.written {
		err = awaitWriteOut(file, w.written, w.begun)
	}
	w.written, w.begun = w.begun, whole
	if errors.Is(err, errors.ErrUnsupported) {
		w.off = true
		return nil
	}
	return err
}
