package node

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/avgpipe/avgpipe/internal/agent"
	"github.com/avgpipe/avgpipe/internal/api"
	"github.com/avgpipe/avgpipe/internal/checkpoint"
	"github.com/avgpipe/avgpipe/internal/cluster"
	"github.com/avgpipe/avgpipe/internal/server"
	"github.com/avgpipe/avgpipe/internal/shard"
	"github.com/avgpipe/avgpipe/internal/spec"
)

// Submit implements server.Backend.
func (n *node) Submit(ctx context.Context, r api.SubmitRequest, peer server.Peer) (api.SubmitResponse, error) {
	var none api.SubmitResponse
	if err := checkKey(r); err != nil {
		return none, err
	}
	if r.From != "" {
		return n.importJob(ctx, r, peer)
	}
	command := &cluster.SubmitJob{
		File: r.File, Set: r.Set, Base: r.Base, Owner: peer.UID, Key: r.Key, SourceDigest: shard.Digest(checkpoint.ObjectDigest([]byte(r.Source))),
	}
	if before := n.raft.State().Submitted(peer.UID, r.Key); before != nil { // what was admitted then may be refused now: its own output.dir is taken
		return n.resubmitted(ctx, before, command, r)
	}
	s, err := n.admitJob(ctx, "submit", r, peer)
	if err != nil {
		return none, err
	}
	if err := n.archives.check(s); err != nil {
		return none, err
	}
	inUse, err := agent.JobIDs(n.config.StateDir) // of jobs that Raft knows, and of others
	if err != nil {
		return none, err
	}
	command.Name, command.Submitted, command.After = s.Job.Name, time.Now(), slices.Max(append(inUse, 0))
	if command.Spec, err = spec.Encode(s); err != nil {
		return none, err
	}
	result, err := n.raft.Apply(ctx, command)
	switch {
	case errors.Is(err, cluster.ErrKeyTaken):
		return none, keyTaken(r, err)
	case err != nil:
		return none, proposalError("submit "+r.File, err)
	}
	answer := n.submitted(ctx, result.Job, s, r)
	n.coordinator().Say(result.Job, "submitted", zap.String("name", s.Job.Name), zap.String("file", r.File), zap.Uint32("user", peer.UID),
		zap.Strings("choices", s.Why), zap.Strings("warnings", answer.Warnings))
	return answer, nil
}

// submitted keeps copies of what a new job was made from, and answers its submitter.
func (n *node) submitted(ctx context.Context, id string, s *spec.Spec, r api.SubmitRequest) api.SubmitResponse {
	err := n.coordinator().Record(ctx, id)
	if err == nil {
		_, err = n.coordinator().Keep(ctx, id, []byte(r.Source))
	}
	warnings := append([]string{}, s.Warnings...)
	if err != nil { // the job is queued, so this is no refusal
		warnings = append(warnings, fmt.Sprintf("no copy of the job's record can be kept yet: %v", err))
	}
	return api.SubmitResponse{ID: id, Warnings: warnings, Export: planned(s)}
}

// resubmitted answers a request whose job is there. The first one may have ended before copies were kept.
func (n *node) resubmitted(ctx context.Context, j *cluster.Job, again *cluster.SubmitJob, r api.SubmitRequest) (none api.SubmitResponse, err error) {
	if err := j.Repeats(again); err != nil {
		return none, keyTaken(r, err)
	}
	s, err := n.coordinator().Spec(j)
	if err != nil {
		return none, err
	}
	return n.submitted(ctx, j.ID, s, r), nil
}

// longestKey bounds the key of a submission, bytes.
const longestKey = 128

// checkKey refuses a key that is none.
func checkKey(r api.SubmitRequest) error {
	switch {
	case r.Key == "":
	case r.From != "":
		return api.Errorf(http.StatusBadRequest, "submit --from %s: it has the key %.*q; only a job file is submitted with one: leave it out", r.From, longestKey, r.Key)
	case len(r.Key) > longestKey || strings.ContainsFunc(r.Key, func(c rune) bool { return c <= ' ' || c > '~' }):
		return api.Errorf(http.StatusBadRequest, "submit %s: the key %.*q: 1 to %d printable characters of ASCII, and no space", r.File, longestKey, r.Key, longestKey)
	}
	return nil
}

func keyTaken(r api.SubmitRequest, err error) error {
	return api.Errorf(http.StatusConflict, "submit %s: %v; take another key, or none", r.File, err)
}
