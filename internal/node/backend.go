package node

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"runtime"
	"strings"

	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"

	"github.com/avgpipe/avgpipe/internal/admission"
	"github.com/avgpipe/avgpipe/internal/agent"
	"github.com/avgpipe/avgpipe/internal/api"
	"github.com/avgpipe/avgpipe/internal/cluster"
	"github.com/avgpipe/avgpipe/internal/cluster/raftlog"
	"github.com/avgpipe/avgpipe/internal/coordinator"
	"github.com/avgpipe/avgpipe/internal/export"
	"github.com/avgpipe/avgpipe/internal/nearest"
	"github.com/avgpipe/avgpipe/internal/server"
	"github.com/avgpipe/avgpipe/internal/shard"
	"github.com/avgpipe/avgpipe/internal/spec"
	"github.com/avgpipe/avgpipe/internal/worker/control"
	"github.com/avgpipe/avgpipe/stage/model"
)

var _ server.Backend = (*node)(nil)

// admitJob checks a job file that somebody sends, to submit it or to tune it.
func (n *node) admitJob(ctx context.Context, verb string, r api.SubmitRequest, peer server.Peer) (*spec.Spec, error) {
	if n.stopping() {
		return nil, api.Errorf(http.StatusServiceUnavailable, "%s %s: the daemon is stopping", verb, r.File)
	}
	return n.inspect.Admit(ctx, admission.Request{Submit: r, User: peer.User, Host: admission.Host{
		Cores: len(n.config.Cores), MemoryBytes: n.memory(), Hosts: n.hosts(), GPUs: n.gpus.GPUs(), NoGPU: n.noGPU(),
		Reserved: reserved(n.config.StateDir), Pending: n.pendingOutputs(),
	}})
}

// reserved are the directories of a state directory.
func reserved(state string) (all []string) {
	for _, name := range []string{"raft", "jobs", "plans", "tunings", "data"} {
		all = append(all, filepath.Join(state, name))
	}
	return all
}

// pendingOutputs are the directories that models are still to be written to, and the jobs of these.
func (n *node) pendingOutputs() map[string]string {
	pending := map[string]string{}
	for _, j := range n.raft.State().Jobs() {
		if j.State.Ended() && !n.exports.due(j) {
			continue // if it was written, the directory tells
		}
		if s, err := n.coordinator().Spec(j); err == nil && s.Job.Output.Dir != "" {
			pending[s.Job.Output.Dir] = j.ID
		}
	}
	return pending
}

// listAtOnce is how many jobs of a list are described at once: of those that have ended other nodes may be asked.
const listAtOnce = 16

func (n *node) Jobs(ctx context.Context) ([]api.JobStatus, error) {
	ctx, cancel := context.WithTimeout(ctx, keptWait)
	defer cancel()
	jobs := n.raft.State().Jobs()
	all := make([]api.JobStatus, len(jobs))
	var describing errgroup.Group
	describing.SetLimit(listAtOnce)
	for i, j := range jobs {
		describing.Go(func() error {
			all[i] = n.describe(ctx, j)
			return nil
		})
	}
	return all, describing.Wait()
}

func (n *node) Job(ctx context.Context, ref string) (api.JobStatus, error) {
	j, err := n.find(ref)
	if err != nil {
		return api.JobStatus{}, err
	}
	return n.describe(ctx, j), nil
}

// find returns the job with an id, or the only one with a name.
func (n *node) find(ref string) (*cluster.Job, error) {
	state := n.raft.State()
	if j, err := state.Job(ref); err == nil {
		return j, nil
	}
	var found []*cluster.Job
	var ids, names, called []string
	for _, j := range state.Jobs() {
		names, called = append(names, fmt.Sprintf("%s (%s)", j.ID, j.Name)), append(called, j.Name)
		if j.Name == ref {
			found = append(found, j)
			ids = append(ids, j.ID)
		}
	}
	switch {
	case len(found) == 1:
		return found[0], nil
	case len(found) > 1:
		return nil, api.Errorf(http.StatusConflict, "%d jobs are named %q; say which one by its id: %s", len(found), ref, strings.Join(ids, ", "))
	case len(names) == 0:
		return nil, api.Errorf(http.StatusNotFound, "no job %q; there are none", ref)
	}
	hint := ""
	if near := nearest.Word(ref, called); near != "" {
		hint = fmt.Sprintf(" did you mean %s?", near)
	}
	return nil, api.Errorf(http.StatusNotFound, "no job %q;%s the last jobs are %s", ref, hint, strings.Join(names[max(0, len(names)-10):], ", "))
}

func (n *node) Cancel(ctx context.Context, ref string, by server.Peer) (api.JobStatus, error) {
	j, err := n.find(ref)
	if err != nil {
		return api.JobStatus{}, err
	}
	_, err = n.raft.Apply(ctx, &cluster.RequestCancel{Job: j.ID, Reason: "cancelling, as " + by.String() + " asked", By: by.String()})
	switch {
	case errors.Is(err, cluster.ErrEnded):
		return api.JobStatus{}, api.Errorf(http.StatusConflict, "cancel job %s: it is %s already", j.ID, j.State)
	case err != nil:
		return api.JobStatus{}, proposalError("cancel job "+j.ID, err)
	}
	n.coordinator().Say(j.ID, "somebody asked to cancel the job", zap.String("user", by.String()))
	return n.Job(ctx, j.ID)
}

// proposalError is why nobody knows whether a change was made, which may be asked for again, or why it was not.
func proposalError(what string, err error) error {
	for _, passing := range []error{raftlog.ErrNotLeader, raftlog.ErrLost, raftlog.ErrClosed, raftlog.ErrRestoring} {
		if errors.Is(err, passing) {
			return api.Errorf(http.StatusServiceUnavailable, "%s: %v; ask again", what, err)
		}
	}
	return fmt.Errorf("%s: %w", what, err)
}

func (n *node) Model(ctx context.Context, ref string, w io.Writer) error {
	j, err := n.find(ref)
	if err != nil {
		return err
	}
	kept := n.coordinator().Pin(j.ID)
	if len(kept) == 0 {
		return api.Errorf(http.StatusConflict, "job %s has no committed round yet, so there is no model; it is %s", j.ID, j.State)
	}
	defer n.coordinator().Unpin(kept)
	built, err := n.buildModel(j)
	if err != nil {
		return err
	}
	rounds := make([]*cluster.Manifest, len(kept))
	for i, m := range kept {
		rounds[i] = m.Model()
	}
	m, faults, err := n.bringNewest(ctx, j, rounds)
	if err != nil {
		return fmt.Errorf("export job %s: %w", j.ID, err)
	}
	if m == nil {
		return api.Errorf(http.StatusConflict, "export job %s: no committed round can be read: %s; put the files back, or submit the job again",
			j.ID, coordinator.Texts(faults))
	}
	notice := ""
	if len(faults) > 0 {
		notice = fmt.Sprintf("this is round %d: newer ones cannot be read: %s", m.Round, coordinator.Texts(faults))
		n.coordinator().Say(j.ID, "exporting an older round", zap.Uint64("round", m.Round), zap.Errors("faults", faults))
	}
	dir := control.ModelDir(agent.JobDir(n.config.StateDir, j.ID))
	store := shard.StoreAt(control.ShardDir(agent.JobDir(n.config.StateDir, j.ID)))
	if err := export.Pack(ctx, w, built, store, coordinator.Digests(m.Shards), dir, notice); err != nil {
		return fmt.Errorf("job %s round %d: %w", j.ID, m.Round, err)
	}
	return nil
}

// buildModel makes the model that a job trains.
func (n *node) buildModel(j *cluster.Job) (*model.Model, error) {
	s, err := n.coordinator().Spec(j)
	if err != nil {
		return nil, err
	}
	m, err := s.BuildModel()
	if err != nil {
		return nil, fmt.Errorf("export job %s: %w", j.ID, err)
	}
	return m, nil
}

func (n *node) Version() api.VersionInfo {
	return api.VersionInfo{Version: n.config.Version, Go: runtime.Version(), Node: n.id}
}
