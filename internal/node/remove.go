package node

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"go.uber.org/zap"

	"github.com/avgpipe/avgpipe/internal/api"
	"github.com/avgpipe/avgpipe/internal/checkpoint"
	"github.com/avgpipe/avgpipe/internal/cluster"
	"github.com/avgpipe/avgpipe/internal/server"
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

// removed reports whether a directory says that its job was removed.
func removed(dir string) bool {
	var r removal
	return checkpoint.ReadRecord(checkpoint.OS, removedPath(dir), removedKind, removedVersion, &r) == nil
}

// Remove implements server.Backend.
func (n *node) Remove(ctx context.Context, ref string, by server.Peer) (api.JobStatus, error) {
	j, err := n.find(ref)
	if err != nil {
		return api.JobStatus{}, err
	}
	last, err := n.Job(ctx, j.ID)
	if err != nil {
		return last, err
	}
	if !j.State.Ended() {
		return last, api.Errorf(http.StatusConflict, "remove job %s (%s): it is %s: cancel it first (avgpipectl cancel %s), or let --force do so",
			j.ID, j.Name, j.State, j.ID)
	}
	n.wantRemoval(j.ID, by.String()+" asked for it")
	for {
		state, changed := n.raft.Changed()
		if !slices.ContainsFunc(state.Jobs(), func(now *cluster.Job) bool { return now.ID == j.ID }) {
			return last, nil
		}
		select {
		case <-changed:
		case <-n.ending.Done():
			return last, api.Errorf(http.StatusServiceUnavailable, "remove job %s: the daemon is stopping", j.ID)
		case <-ctx.Done():
			return last, fmt.Errorf("remove job %s: %w: %s", j.ID, ctx.Err(), n.noteOf(j.ID))
		}
	}
}

// wantRemoval has the coordinator remove an ended job.
func (n *node) wantRemoval(id, reason string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if o := n.job(id); o.remove == "" {
		o.remove = reason
	}
}

// noteOf is what the coordinator is at with a job.
func (n *node) noteOf(id string) string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.job(id).note
}

// remove makes the state forget an ended job, and deletes its directory.
func (a *act) remove(ctx context.Context) (func(*observed), error) {
	dir := jobDir(a.node.config.StateDir, a.job.ID)
	_, err := ownRecord(dir, a.job)
	own := err == nil
	if own {
		err = checkpoint.WriteRecord(checkpoint.OS, removedPath(dir), removedKind, removedVersion, removal{a.decision.reason}, 0o640)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("remove job %s: %w", a.job.ID, err)
	}
	if err := a.propose(ctx, &cluster.RemoveJob{Job: a.job.ID}); err != nil {
		return nil, err
	}
	a.node.log.Info("job removed", zap.String("job", a.job.ID), zap.String("name", a.job.Name), zap.String("reason", a.decision.reason))
	if own {
		err = deleteJob(dir)
	}
	if err != nil && own { // the next start deletes it
		return nil, fmt.Errorf("job %s is removed, but its directory is not: %w", a.job.ID, err)
	}
	return nil, nil
}

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
	if err := os.Remove(removedPath(dir)); err != nil {
		return err
	}
	return os.Remove(dir)
}

// finishRemovals deletes the directories of jobs whose removal a crash interrupted. A job that the state still knows was not
// removed: the mark in its directory goes.
func (n *node) finishRemovals() {
	ids, err := jobIDs(n.config.StateDir)
	if err != nil {
		n.log.Warn("look for removed jobs", zap.Error(err))
		return
	}
	for _, number := range ids {
		id := strconv.FormatUint(number, 10)
		dir := jobDir(n.config.StateDir, id)
		if !removed(dir) {
			continue
		}
		if _, err = n.raft.State().Job(id); err == nil {
			err = os.Remove(removedPath(dir))
		} else if err = deleteJob(dir); err == nil {
			n.log.Info("deleted the directory of a removed job", zap.String("job", id))
		}
		if err != nil {
			n.log.Warn("finish the removal of a job", zap.String("job", id), zap.Error(err))
		}
	}
}
