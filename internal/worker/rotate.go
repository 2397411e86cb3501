package worker

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/avgpipe/avgpipe/internal/worker/control"
)

// rotateEvery is how often a worker looks at the length of its log.
const rotateEvery = time.Second

// rotateLog keeps the log of the job within its bound until ctx ends.
func (t *trainer) rotateLog(ctx context.Context) {
	ticker := time.NewTicker(rotateEvery)
	defer ticker.Stop()
	for {
		if err := rotate(t.assignment.Dir, t.assignment.LogBytes, t.assignment.LogFiles, []int{1, 2}); err != nil {
			t.log.Warn("rotate the log", zap.Error(err))
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
	}
}

// rotate renames a log that is too long, and makes a new one that takes its place in every descriptor that was open for it. A write to
// a descriptor goes to the one file or to the other, whole: no line is lost, also not those of the Go runtime when it crashes. Descriptors
// of other files are left alone.
func rotate(dir string, limit int64, files int, descriptors []int) error {
	path := control.LogPath(dir)
	var log unix.Stat_t
	err := unix.Stat(path, &log)
	switch {
	case errors.Is(err, unix.ENOENT), limit <= 0, files <= 0:
		return nil
	case err != nil:
		return fmt.Errorf("look at the log: %w", err)
	case log.Size < limit:
		return nil
	}
	var ours []int
	for _, d := range descriptors {
		var s unix.Stat_t
		if unix.Fstat(d, &s) == nil && s.Dev == log.Dev && s.Ino == log.Ino {
			ours = append(ours, d)
		}
	}
	if len(ours) == 0 {
		return nil
	}
	if err := control.RotateLog(dir, files); err != nil {
		return err
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o640)
	if err != nil {
		return fmt.Errorf("open a new log: %w", err)
	}
	for _, d := range ours {
		if dupErr := unix.Dup3(int(f.Fd()), d, 0); dupErr != nil {
			err = errors.Join(err, fmt.Errorf("write to a new log: %w", dupErr))
		}
	}
	return errors.Join(err, f.Close())
}
