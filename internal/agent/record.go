package agent

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"

	"go.uber.org/zap"

	"github.com/avgpipe/avgpipe/internal/access"
	"github.com/avgpipe/avgpipe/internal/checkpoint"
	"github.com/avgpipe/avgpipe/internal/cluster"
	"github.com/avgpipe/avgpipe/internal/obstacle"
	"github.com/avgpipe/avgpipe/internal/worker/control"
)

// A job's directory holds a copy of what the replicated state says of the job, so that the state can be made again when it is lost
// (Recover). It is written whenever a job is submitted, placed or ended, after the state has it, and before a round is committed: its
// shards are durable by then.
const (
	jobKind    = "job"
	jobVersion = 1
)

// RecordPath is the copy in the directory of a job.
func RecordPath(dir string) string { return filepath.Join(dir, "job.record") }

// ReadRecord reads a job's copy. An absent one wraps fs.ErrNotExist.
func ReadRecord(dir string) (*cluster.Job, error) {
	j := &cluster.Job{}
	if err := checkpoint.ReadRecord(RecordPath(dir), jobKind, jobVersion, j); err != nil {
		return nil, err
	}
	return j, nil
}

// Record implements Agent.
func (l *Local) Record(_ context.Context, j *cluster.Job, started bool) error {
	dir := l.dir(j.ID)
	if err := makeDir(dir, started); err != nil {
		return fmt.Errorf("make the directory of job %s: %w", j.ID, err)
	}
	old, err := ownRecord(dir, j)
	var damaged *checkpoint.RecordError
	switch {
	case errors.As(err, &damaged):
		l.config.Log.Warn("a damaged copy of a job's record is written anew", zap.String("job", j.ID), zap.Error(err))
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return err
	}
	if old != nil {
		was, wasErr := json.Marshal(old)
		is, isErr := json.Marshal(j)
		if errors.Join(wasErr, isErr) == nil && bytes.Equal(was, is) {
			return nil
		}
	}
	return checkpoint.WriteRecord(RecordPath(dir), jobKind, jobVersion, j, 0o640)
}

// makeDir makes a job's directory where it is missing. But where jobs/ holds nothing although this state directory has jobs, and those have had
// workers, a mount is late: what would be written now vanished below it. A node that joined anew, under the name of one that was removed, has had none,
// and one whose last job was removed has none: jobs/ is read first, because the mark goes before the last directory does.
func makeDir(dir string, started bool) error {
	all := filepath.Dir(dir)
	entries, listErr := os.ReadDir(all)
	had := hadPath(all)
	_, first := os.Stat(had)
	if _, err := os.Stat(dir); err != nil && started && !errors.Is(first, fs.ErrNotExist) {
		if listErr == nil && len(entries) == 0 {
			listErr = &fs.PathError{Op: "find the jobs in", Path: all, Err: syscall.ENODATA}
		}
		if listErr != nil {
			return listErr
		}
	}
	if err := os.MkdirAll(dir, 0o750); err != nil || first == nil {
		return err
	}
	return checkpoint.WriteFile(had, nil, 0o640)
}

// hadPath is a file of the state directory that is there while jobs/ should hold something: from the first directory of a job until the last is deleted.
func hadPath(jobs string) string { return filepath.Join(filepath.Dir(jobs), "had-jobs") }

// ownRecord reads the copy in a job's directory and refuses that of another job.
func ownRecord(dir string, j *cluster.Job) (*cluster.Job, error) {
	old, err := ReadRecord(dir)
	if err != nil {
		return nil, err
	}
	if old.ID != j.ID || !old.Submitted.Equal(j.Submitted) {
		return nil, fmt.Errorf("job %s: the directory %s is of another job, %q, submitted at %s: nothing in it is touched; move it away",
			j.ID, dir, old.Name, old.Submitted.Format("2006-01-02 15:04:05"))
	}
	return old, nil
}

// MaxJobID is the highest number of a job: a job's directory has room for it in a socket's path.
const MaxJobID = 999_999_999

// JobIDs lists the numbers of the directories below jobs/, ascending. Other names are nobody's job.
func JobIDs(state string) ([]uint64, error) {
	entries, err := os.ReadDir(filepath.Join(state, "jobs"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("list the directories of jobs: %w", err)
	}
	var ids []uint64
	for _, e := range entries {
		if n, err := ParseJob(e.Name()); err == nil {
			ids = append(ids, n)
		}
	}
	slices.Sort(ids)
	return ids, nil
}

// ParseJob returns the number of a job whose name it is.
func ParseJob(name string) (uint64, error) {
	n, err := strconv.ParseUint(name, 10, 64)
	if err != nil || n > MaxJobID || strconv.FormatUint(n, 10) != name {
		return 0, fmt.Errorf("%.40q is no job: expected a number up to %d", name, MaxJobID)
	}
	return n, nil
}

// KeepStatus implements Agent.
func (l *Local) KeepStatus(_ context.Context, job string, s *control.Status) error {
	text, err := json.Marshal(s)
	if err != nil {
		return err
	}
	return checkpoint.WriteFile(statusPath(l.dir(job)), text, 0o640)
}

// KeptStatus implements Agent. One that cannot be read is none: it is for show only.
func (l *Local) KeptStatus(_ context.Context, job string) *control.Status {
	var s control.Status
	text, err := (*access.Opener)(nil).ReadFile(statusPath(l.dir(job)), maxStatusBytes)
	if err != nil || json.Unmarshal(text, &s) != nil {
		return nil
	}
	return &s
}

// maxStatusBytes bounds a kept status: of 64 stages in 64 pipelines it has some hundred KB.
const maxStatusBytes = 16 << 20

// statusPath is where the last status of a job's last worker is kept.
func statusPath(dir string) string { return filepath.Join(dir, "status.json") }

// Passed implements Agent. A file system that hangs answers later; until then nobody asks it again, so that at most one thread hangs
// with it. A copy that is missing is fetched again before the job starts.
func (l *Local) Passed(ctx context.Context, o obstacle.Obstacle) error {
	if o.Kind == obstacle.Missing && filepath.Dir(o.Path) == DataDir(l.config.StateDir) {
		return nil
	}
	l.mu.Lock()
	answer := l.probes[o]
	if answer == nil {
		answer = make(chan error, 1)
		l.probes[o] = answer
		go func() { answer <- o.Passed() }() // it cannot be ended while the system call hangs
	}
	l.mu.Unlock()
	select {
	case err := <-answer:
		l.mu.Lock()
		delete(l.probes, o)
		l.mu.Unlock()
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
