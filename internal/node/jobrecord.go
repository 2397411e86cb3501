package node

import (
	"bytes"
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

	"github.com/avgpipe/avgpipe/internal/checkpoint"
	"github.com/avgpipe/avgpipe/internal/cluster"
)

// A job's directory holds a copy of what the replicated state says of the job, so that the state can be made again when it is lost
// (Recover). It is written whenever a job is submitted, placed or ended, after the state has it, and before a round is committed: its
// shards are durable by then.
const (
	jobKind    = "job"
	jobVersion = 1
)

func jobRecordPath(dir string) string { return filepath.Join(dir, "job.record") }

// readJobRecord reads a job's copy. An absent one wraps fs.ErrNotExist.
func readJobRecord(dir string) (*cluster.Job, error) {
	j := &cluster.Job{}
	if err := checkpoint.ReadRecord(checkpoint.OS, jobRecordPath(dir), jobKind, jobVersion, j); err != nil {
		return nil, err
	}
	return j, nil
}

// keepRecord brings a job's copy up to date. next is a round about to be committed, of which keep are kept; nil: none is. A
// directory of another job is refused: it comes from a state that is gone, or from another node.
func (n *node) keepRecord(id string, next *cluster.Manifest, keep int) error {
	j, err := n.raft.State().Job(id)
	if err != nil {
		return err
	}
	dir := jobDir(n.config.StateDir, id)
	if err := n.makeDir(dir); err != nil {
		return fmt.Errorf("make the directory of job %s: %w", id, err)
	}
	old, err := ownRecord(dir, j)
	var damaged *checkpoint.RecordError
	switch {
	case errors.As(err, &damaged):
		n.log.Warn("a damaged copy of a job's record is written anew", zap.String("job", id), zap.Error(err))
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return err
	}
	now := *j
	if next != nil {
		now.Committed = append(slices.Clone(j.Committed), next)
		now.Committed = now.Committed[max(0, len(now.Committed)-keep):]
	}
	if old != nil {
		if now.Source == "" {
			now.Source = old.Source
		}
		was, wasErr := json.Marshal(old)
		is, isErr := json.Marshal(&now)
		if wasErr == nil && isErr == nil && bytes.Equal(was, is) {
			return nil
		}
	}
	return checkpoint.WriteRecord(checkpoint.OS, jobRecordPath(dir), jobKind, jobVersion, &now, 0o640)
}

// makeDir makes a job's directory where it is missing. But where jobs/ holds nothing and a job is known that had a worker, a mount is
// late: what would be written now vanished below it.
func (n *node) makeDir(dir string) error {
	if _, err := os.Stat(dir); err == nil {
		return nil
	}
	hadWorker := func(j *cluster.Job) bool { return j.Generation > 0 }
	if slices.ContainsFunc(n.raft.State().Jobs(), hadWorker) {
		all := filepath.Dir(dir)
		entries, err := os.ReadDir(all)
		if err == nil && len(entries) == 0 {
			err = &fs.PathError{Op: "find the jobs in", Path: all, Err: syscall.ENODATA}
		}
		if err != nil {
			return err
		}
	}
	return os.MkdirAll(dir, 0o750)
}

// ownRecord reads the copy in a job's directory and refuses that of another job.
func ownRecord(dir string, j *cluster.Job) (*cluster.Job, error) {
	old, err := readJobRecord(dir)
	if err != nil {
		return nil, err
	}
	if old.ID != j.ID || !old.Submitted.Equal(j.Submitted) {
		return nil, fmt.Errorf("job %s: the directory %s is of another job, %q, submitted at %s: nothing in it is touched; move it away",
			j.ID, dir, old.Name, old.Submitted.Format("2006-01-02 15:04:05"))
	}
	return old, nil
}

// keepRecords brings the copies of all jobs up to date, at the start. One that cannot be written is no reason to stay down.
func (n *node) keepRecords() {
	for _, j := range n.raft.State().Jobs() {
		if _, err := os.Stat(jobDir(n.config.StateDir, j.ID)); errors.Is(err, fs.ErrNotExist) {
			continue // it may be on a mount that is late
		}
		if err := n.keepRecord(j.ID, nil, 0); err != nil {
			n.log.Error("keep a copy of a job's record", zap.String("job", j.ID), zap.Error(err))
		}
	}
}

// highestID is the highest number that a directory of a job has, whether the state knows the job or not; 0 without any.
func highestID(state string) (uint64, error) {
	ids, err := jobIDs(state)
	if err != nil || len(ids) == 0 {
		return 0, err
	}
	return slices.Max(ids), nil
}

// jobIDs lists the numbers of the directories below jobs/, ascending. Other names are nobody's job.
func jobIDs(state string) ([]uint64, error) {
	names, err := checkpoint.OS.ReadDir(filepath.Join(state, "jobs"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("list the directories of jobs: %w", err)
	}
	var ids []uint64
	for _, name := range names {
		if n, err := strconv.ParseUint(name, 10, 64); err == nil && n <= maxJobID && strconv.FormatUint(n, 10) == name {
			ids = append(ids, n)
		}
	}
	slices.Sort(ids)
	return ids, nil
}
