package node

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"slices"
	"strconv"
	"time"

	"go.uber.org/zap"

	"github.com/avgpipe/avgpipe/internal/access"
	"github.com/avgpipe/avgpipe/internal/agent"
	"github.com/avgpipe/avgpipe/internal/api"
	"github.com/avgpipe/avgpipe/internal/archive"
	"github.com/avgpipe/avgpipe/internal/cluster"
	"github.com/avgpipe/avgpipe/internal/objectstore"
	"github.com/avgpipe/avgpipe/internal/server"
	"github.com/avgpipe/avgpipe/internal/spec"
)

// importJob begins a job with the newest round that another one has saved in a bucket. Everything is read and verified before it is queued; after
// an error there is no such job.
func (n *node) importJob(ctx context.Context, r api.SubmitRequest, peer server.Peer) (none api.SubmitResponse, err error) {
	refuse := func(status int, format string, args ...any) (api.SubmitResponse, error) {
		return none, api.Errorf(status, "submit --from %s: %s", r.From, fmt.Sprintf(format, args...))
	}
	at, err := objectstore.ParseLocation(r.From)
	switch {
	case err != nil:
		return refuse(http.StatusBadRequest, "%v", err)
	case r.Source != "" || len(r.Set) > 0:
		return refuse(http.StatusBadRequest, "it goes on as it was; a job file and --set cannot change it")
	case n.archives.open == nil:
		return refuse(http.StatusUnprocessableEntity, "the daemon has no credentials for buckets (s3_credentials)")
	}
	bucket, err := n.archives.open(at.Bucket)
	if err != nil {
		return none, err
	}
	from := &archive.Archive{Bucket: bucket, At: at}
	round, err := from.Read(ctx, 0)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return refuse(http.StatusNotFound, "%v; name what status says of the job's store", err)
	case err != nil:
		return refuse(http.StatusServiceUnavailable, "%v", err)
	case round.Job.Owner != peer.UID && peer.UID != 0:
		return refuse(http.StatusForbidden, "the job belongs to user %d", round.Job.Owner)
	}
	j, s, err := n.imported(round, peer)
	if err != nil {
		return refuse(http.StatusUnprocessableEntity, "%v", err)
	}
	if err := n.begin(ctx, j); err != nil {
		return none, err
	}
	if err := n.takeFiles(ctx, j, from, round); err != nil {
		removed := n.coordinator().Remove(context.WithoutCancel(ctx), j.ID, "its files could not be read from "+r.From)
		return refuse(http.StatusServiceUnavailable, "%v", errors.Join(err, removed))
	}
	n.coordinator().Say(j.ID, "submitted from a bucket", zap.String("store", r.From), zap.Uint64("round", j.CommittedRound()), zap.Uint32("user", peer.UID))
	return api.SubmitResponse{ID: j.ID, Warnings: append([]string{}, s.Warnings...), Export: planned(s)}, nil
}

// imported is the job that goes on from a round of another cluster, or of this one, ended until its files are here.
func (n *node) imported(r *archive.Round, peer server.Peer) (*cluster.Job, *spec.Spec, error) {
	s, err := spec.Decode(r.Manifest().Job, r.Job.Spec, nil)
	if err != nil {
		return nil, nil, err
	}
	user := access.User{}
	if s.User != nil {
		user = *s.User
	}
	if user.UID == peer.UID || s.User == nil { // root keeps whose it is
		user = peer.User
	}
	s.User = &user
	encoded, err := spec.Encode(s)
	if err != nil {
		return nil, nil, err
	}
	j, m, now := r.Job, *r.Manifest(), time.Now().UTC()
	m.Shards = slices.Clone(m.Shards)
	for i := range m.Shards {
		m.Shards[i].Nodes = []string{n.id}
	}
	j.Committed, j.Spec, j.Report, j.ReportDigest = []*cluster.Manifest{&m}, encoded, nil, ""
	j.State, j.Reason, j.Ended, j.Cancelling, j.CancelledBy = cluster.Cancelled, "its files are read from a bucket", &now, false, ""
	j.Placement, j.Pending, j.Submitted, j.Generation = nil, 0, now, 0 // it was never placed here
	return &j, s, nil
}

// begin gives a job its number.
func (n *node) begin(ctx context.Context, j *cluster.Job) error {
	inUse, err := agent.JobIDs(n.config.StateDir)
	if err != nil {
		return err
	}
	for next := max(n.raft.State().NextJob, slices.Max(append(inUse, 0))+1); ; next++ {
		j.ID = strconv.FormatUint(next, 10)
		_, err := n.raft.Apply(ctx, &cluster.RestoreJob{Saved: *j})
		if err == nil {
			return n.coordinator().Record(ctx, j.ID)
		}
		if _, known := n.raft.State().Job(j.ID); known != nil { // somebody else has not taken the number
			return fmt.Errorf("submit from a bucket: %w", err)
		}
	}
}

// takeFiles reads the files of a round, and has the job go on.
func (n *node) takeFiles(ctx context.Context, j *cluster.Job, from *archive.Archive, r *archive.Round) error {
	if err := n.archives.fetch(ctx, j.ID, from, r); err != nil {
		return err
	}
	_, err := n.raft.Apply(ctx, &cluster.ResumeJob{
		Job: j.ID, Generation: j.Generation, Reason: fmt.Sprintf("goes on from round %d of %s; waits for a place", j.CommittedRound(), from.At),
	})
	if err != nil {
		return err
	}
	return n.coordinator().Resumed(ctx, j.ID)
}
