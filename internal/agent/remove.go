package agent

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"

	"go.uber.org/zap"

	"github.com/avgpipe/avgpipe/internal/checkpoint"
	"github.com/avgpipe/avgpipe/internal/cluster"
	"github.com/avgpipe/avgpipe/internal/worker/control"
)

// A job's directory goes after the replicated state has forgotten the job. That it may go is written into it before: a directory
// whose job the state does not know is never deleted for that alone.
const (
	removedKind    = "removed"
	removedVersion = 1
)

// removal is why a directory may be deleted once the state does not know its job.
type removal struct {
	Reason string `json:"reason"`
}

func removedPath(dir string) string { return filepath.Join(dir, "removed.record") }

// Removed reports whether a directory says that its job was removed.
func Removed(dir string) bool {
	var r removal
	return checkpoint.ReadRecord(removedPath(dir), removedKind, removedVersion, &r) == nil
}

// Retire implements Agent.
func (l *Local) Retire(_ context.Context, j *cluster.Job, reason string) (own bool, err error) {
	dir := l.dir(j.ID)
	_, err = ownRecord(dir, j)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err == nil {
		err = markRemoved(dir, reason)
	}
	return err == nil, err
}

// markRemoved notes that a job's directory may go. On a full disk its shards make room for the note: whoever removes a job to free a
// disk must not need room for it.
func markRemoved(dir, reason string) error {
	mark := func() error {
		return checkpoint.WriteRecord(removedPath(dir), removedKind, removedVersion, removal{reason}, 0o640)
	}
	err := mark()
	if _, full := errors.AsType[*checkpoint.SpaceError](err); !full {
		return err
	}
	return errors.Join(os.RemoveAll(control.ShardDir(dir)), mark())
}

// Delete implements Agent.
func (l *Local) Delete(_ context.Context, job string) error { return deleteJob(l.dir(job)) }

// deleteJob deletes the directory of a removed job. What says that it may go, goes last.
func deleteJob(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	mark := filepath.Base(removedPath(dir))
	for _, e := range entries {
		if e.Name() != mark {
			if err := os.RemoveAll(filepath.Join(dir, e.Name())); err != nil {
				return err
			}
		}
	}
	if err := forgetLast(dir); err != nil {
		return err
	}
	if err := os.Remove(removedPath(dir)); err != nil {
		return err
	}
	return os.Remove(dir)
}

// forgetLast notes, before the only directory in jobs/ is deleted, that jobs/ is to be empty: that is no mount which is late.
func forgetLast(dir string) error {
	jobs := filepath.Dir(dir)
	entries, err := os.ReadDir(jobs)
	if err != nil || len(entries) > 1 {
		return err
	}
	if err := os.Remove(hadPath(jobs)); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// Tidy finishes what an earlier daemon could not, before any process of a job is started: it removes what killed writes left and
// the directories of removed jobs, and brings the copies of jobs up to date. Nothing of it is a reason to stay down.
func (l *Local) Tidy(ctx context.Context, state *cluster.State) {
	ids, err := JobIDs(l.config.StateDir)
	if err != nil {
		l.config.Log.Warn("look for what is left", zap.Error(err))
		return
	}
	l.removeStale(l.config.StateDir, PlansDir(l.config.StateDir))
	for _, number := range ids {
		id := strconv.FormatUint(number, 10)
		dir := l.dir(id)
		l.removeStale(dir, control.ShardDir(dir), control.ModelDir(dir))
		j, known := state.Job(id)
		if Removed(dir) {
			if known == nil {
				err = os.Remove(removedPath(dir)) // it was not removed
			} else if err = deleteJob(dir); err == nil {
				l.config.Log.Info("deleted the directory of a removed job", zap.String("job", id))
			}
			if err != nil {
				l.config.Log.Warn("finish the removal of a job", zap.String("job", id), zap.Error(err))
			}
		}
		if known == nil {
			if err := l.Record(ctx, j, false); err != nil {
				l.config.Log.Error("keep a copy of a job's record", zap.String("job", id), zap.Error(err))
			}
		}
	}
}

// removeStale removes what killed writes left in directories that are the daemon's own.
func (l *Local) removeStale(dirs ...string) {
	for _, dir := range dirs {
		n, err := checkpoint.RemoveStale(dir)
		if n > 0 {
			l.config.Log.Info("removed what killed writes left", zap.String("directory", dir), zap.Int("files", n))
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			l.config.Log.Warn("remove what killed writes left", zap.String("directory", dir), zap.Error(err))
		}
	}
}
