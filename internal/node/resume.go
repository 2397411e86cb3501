package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"

	"go.uber.org/zap"

	"github.com/avgpipe/avgpipe/internal/api"
	"github.com/avgpipe/avgpipe/internal/cluster"
	"github.com/avgpipe/avgpipe/internal/server"
	"github.com/avgpipe/avgpipe/internal/spec"
)

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
	if err := n.coordinator().Remove(ctx, j.ID, by.String()+" asked for it"); err != nil {
		return last, api.Errorf(http.StatusServiceUnavailable, "remove job %s: %v", j.ID, err)
	}
	for {
		state, changed := n.raft.Changed()
		if !slices.ContainsFunc(state.Jobs(), func(now *cluster.Job) bool { return now.ID == j.ID }) {
			return last, nil
		}
		select {
		case <-changed:
		case <-n.coordinator().Stopping().Done():
			return last, api.Errorf(http.StatusServiceUnavailable, "remove job %s: the daemon is stopping", j.ID)
		case <-ctx.Done():
			return last, fmt.Errorf("remove job %s: %w: %s", j.ID, ctx.Err(), n.coordinator().Published().Jobs[j.ID].Note)
		}
	}
}

func (n *node) Resume(ctx context.Context, ref string, r api.ResumeRequest, by server.Peer) (api.JobStatus, error) {
	j, err := n.find(ref)
	if err != nil {
		return api.JobStatus{}, err
	}
	refuse := func(format string, args ...any) (api.JobStatus, error) {
		return api.JobStatus{}, api.Errorf(http.StatusConflict, "resume job %s: %s", j.ID, fmt.Sprintf(format, args...))
	}
	if why := notResumable(j, n.coordinator().Published().Jobs[j.ID].Waits); why != "" {
		return refuse("%s", why)
	}
	if from := roundToResume(j, r); from != nil && (j.State.Ended() || r.FromRound > 0) {
		if err := n.readyRound(ctx, j, from, r.DryRun); err != nil {
			return refuse("round %d cannot be used: %v; %s", from.Round, err, n.insteadOf(ctx, from.Round, j))
		}
	}
	recounted, err := n.recount(j, r)
	if err != nil {
		return api.JobStatus{}, err
	}
	reason := "resumed, as " + by.String() + " asked; waits for a place"
	switch {
	case r.FromStart:
		reason = fmt.Sprintf("resumed from the start, as %s asked; waits for a place", by)
	case r.FromRound > 0:
		reason = fmt.Sprintf("resumed from round %d, as %s asked; waits for a place", r.FromRound, by)
	}
	command := &cluster.ResumeJob{Job: j.ID, Generation: j.Generation, Round: r.FromRound, FromStart: r.FromStart, Reason: reason, Was: j.State}
	if recounted != nil {
		command.Reason += "; " + counts(recounted)
		if command.Spec, err = spec.Encode(recounted); err != nil {
			return api.JobStatus{}, err
		}
	}
	if r.DryRun {
		err = command.Check(j)
	} else {
		_, err = n.raft.Apply(ctx, command)
	}
	switch {
	case errors.Is(err, cluster.ErrStaleGeneration):
		return refuse("it has just been started again")
	case errors.Is(err, cluster.ErrChanged):
		return refuse("%v", err)
	case errors.Is(err, cluster.ErrNothingToResume) && len(j.Committed) == 0 && !r.FromStart:
		return refuse("%v; start it over with --from-start", cmp.Or(errors.Unwrap(err), err))
	case errors.Is(err, cluster.ErrNothingToResume):
		return refuse("%v", cmp.Or(errors.Unwrap(err), err))
	case err != nil:
		return api.JobStatus{}, proposalError("resume job "+j.ID, err)
	case r.DryRun:
		return n.whenChecked(ctx, j, recounted)
	}
	if err := n.coordinator().Resumed(ctx, j.ID); err != nil {
		return api.JobStatus{}, fmt.Errorf("resume job %s: %w", j.ID, err)
	}
	n.coordinator().Say(j.ID, "resumed", zap.String("reason", command.Reason))
	return n.Job(ctx, j.ID)
}

// readyRound looks whether the files of a round are there, on whichever node, and gets them back from the job's bucket where they are not; with dry it only
// looks whether the bucket has them.
func (n *node) readyRound(ctx context.Context, j *cluster.Job, from *cluster.Manifest, dry bool) error {
	err := n.coordinator().CheckFiles(ctx, j.ID, from)
	if err == nil {
		return nil
	}
	get := n.archives.restore
	if dry {
		get = n.archives.has
	}
	switch got := get(ctx, j, from); {
	case errors.Is(got, errNoStore):
		return err
	case got != nil:
		return fmt.Errorf("%w; nor from its bucket: %w", err, got)
	case dry:
		return nil
	}
	return n.coordinator().CheckFiles(ctx, j.ID, from)
}

// notResumable says why a job cannot be resumed now; "" when it can. waits: for an obstacle to pass.
func notResumable(j *cluster.Job, waits bool) string {
	switch {
	case j.State.Ended():
		return ""
	case j.Cancelling:
		return "it is being cancelled; resume it when it has ended"
	case !waits:
		return fmt.Sprintf("it is %s; only a job that failed, was cancelled or is waiting can be resumed", j.State)
	}
	return ""
}

// roundToResume is the committed round that a request is about; nil where there is none, or no such one: then the command is rejected.
func roundToResume(j *cluster.Job, r api.ResumeRequest) *cluster.Manifest {
	if r.FromRound == 0 && !r.FromStart {
		return j.LastCommitted()
	}
	for _, m := range j.Committed {
		if m.Round == r.FromRound && !r.FromStart {
			return m
		}
	}
	return nil
}

// insteadOf says how to go on without a round: from another one only if that can be used.
func (n *node) insteadOf(ctx context.Context, round uint64, j *cluster.Job) string {
	others := slices.DeleteFunc(slices.Clone(j.Committed), func(m *cluster.Manifest) bool { return m.Round == round })
	usable, err := n.coordinator().Usable(ctx, j.ID, others)
	switch {
	case err == nil && usable != nil:
		return fmt.Sprintf("restore its files, name another kept round (--from-round %d), or start over with --from-start", usable.Round)
	case len(others) > 0:
		return "no other kept round can be used now: restore its files, or start over with --from-start"
	}
	return "no other round is kept: restore its files, or start over with --from-start"
}
