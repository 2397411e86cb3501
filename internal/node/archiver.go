package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net/http"
	"os"
	"path"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/avgpipe/avgpipe/internal/agent"
	"github.com/avgpipe/avgpipe/internal/api"
	"github.com/avgpipe/avgpipe/internal/archive"
	"github.com/avgpipe/avgpipe/internal/checkpoint"
	"github.com/avgpipe/avgpipe/internal/cluster"
	"github.com/avgpipe/avgpipe/internal/export"
	"github.com/avgpipe/avgpipe/internal/objectstore"
	"github.com/avgpipe/avgpipe/internal/obstacle"
	"github.com/avgpipe/avgpipe/internal/shard"
	"github.com/avgpipe/avgpipe/internal/spec"
	"github.com/avgpipe/avgpipe/internal/worker/control"
)

// archiver copies committed rounds of jobs with center.store to buckets. A job's training never waits for it: it saves the newest round, and
// rounds that are committed meanwhile are left out but for the last.
type archiver struct {
	node *node
	open func(bucket string) (objectstore.Bucket, error) // nil: the daemon has no credentials

	mu   sync.Mutex
	jobs map[string]*archived
}

// archived is how far a job's rounds are saved.
type archived struct {
	status api.StoreStatus
	active bool // a goroutine saves
}

func newArchiver(n *node, c *objectstore.Config) *archiver {
	a := &archiver{node: n, jobs: map[string]*archived{}}
	if c != nil {
		a.open = func(bucket string) (objectstore.Bucket, error) { return objectstore.Open(*c, bucket) }
	}
	return a
}

// run saves rounds until ctx ends.
func (a *archiver) run(ctx context.Context) {
	var saving sync.WaitGroup
	defer saving.Wait()
	for {
		state, changed := a.node.raft.Changed()
		for _, j := range state.Jobs() {
			if at := a.due(j); at != nil {
				saving.Go(func() { a.saveAll(ctx, j.ID, at) })
			}
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}

// due returns the archive of a job that has a round to be saved, which nobody does yet; else nil.
func (a *archiver) due(j *cluster.Job) *archive.Archive {
	if j.CommittedRound() == 0 || a.open == nil {
		return nil
	}
	at, s, err := a.of(j)
	if err != nil {
		return nil // admission has checked it
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	of := a.jobs[j.ID]
	if of == nil {
		of = &archived{status: api.StoreStatus{URL: at.At.String()}}
		a.jobs[j.ID] = of
	}
	if of.active || of.status.Round >= j.CommittedRound() || s.Job.Center.Store == "" {
		return nil
	}
	of.active = true
	return at
}

// errNoStore says that a job has no place in a bucket.
var errNoStore = errors.New("the job has no center.store")

// of is the archive of a job.
func (a *archiver) of(j *cluster.Job) (*archive.Archive, *spec.Spec, error) {
	s, err := a.node.coordinator().Spec(j)
	if err != nil {
		return nil, nil, err
	}
	if s.Job.Center.Store == "" {
		return nil, s, errNoStore
	}
	at, err := objectstore.ParseLocation(s.Job.Center.Store)
	if err != nil {
		return nil, s, fmt.Errorf("center.store: %w", err)
	}
	at.Prefix = path.Join(at.Prefix, archive.KeyOf(j))
	if a.open == nil {
		return nil, s, errors.New("the daemon has no credentials for buckets (s3_credentials)")
	}
	bucket, err := a.open(at.Bucket)
	return &archive.Archive{Bucket: bucket, At: at}, s, err
}

// saveAll saves the newest round of a job, again after a failure, until there is no newer one.
func (a *archiver) saveAll(ctx context.Context, id string, at *archive.Archive) {
	n := a.node
	said := ""
	for try := 0; ctx.Err() == nil; {
		round, skipped, err := a.save(ctx, id, at)
		if len(skipped) > 0 && err == nil {
			n.coordinator().Say(id, "the bucket is slower than commits; rounds are left out of it", zap.Uint64s("rounds", skipped))
		}
		if a.note(id, round, err) {
			return
		}
		if err == nil { // there is a newer one
			try, said = 0, ""
			continue
		}
		if why := err.Error(); why != said && ctx.Err() == nil {
			said = why
			n.log.Warn("a round is not in the bucket", zap.String("job", id), zap.Uint64("round", round), zap.Error(err))
			n.agent.Log(id, zap.WarnLevel, "the round is not in the bucket; training goes on, and it is tried again", zap.Uint64("round", round), zap.Error(err))
		}
		select {
		case <-time.After(obstacle.Pause(try)):
		case <-ctx.Done():
		}
		try++
	}
}

// note takes what became of a round, and reports whether there is nothing left to save: then the job may be due again. It looks at the state
// under the lock, as due does, so that no round is missed.
func (a *archiver) note(id string, round uint64, err error) (done bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	of := a.jobs[id]
	if err != nil {
		of.status.Problem = err.Error()
		return false
	}
	of.status.Round, of.status.Problem = max(of.status.Round, round), ""
	j, gone := a.node.raft.State().Job(id)
	switch {
	case gone != nil:
		delete(a.jobs, id)
		return true
	case round > 0 && j.CommittedRound() > of.status.Round:
		return false
	}
	of.active = false
	return true
}

// save saves the newest round of a job, whose files stay meanwhile. A job that is gone has none.
func (a *archiver) save(ctx context.Context, id string, at *archive.Archive) (round uint64, skipped []uint64, err error) {
	n := a.node
	kept := n.coordinator().Pin(id)
	if len(kept) == 0 {
		return 0, nil, nil
	}
	defer n.coordinator().Unpin(kept)
	m := kept[len(kept)-1]
	j, err := n.raft.State().Job(id)
	if err != nil {
		return 0, nil, nil // it was removed
	}
	s, err := n.coordinator().Spec(j)
	if err != nil {
		return m.Round, nil, err
	}
	one := *j
	one.Committed, one.Placement, one.Report, one.ReportDigest = []*cluster.Manifest{m}, nil, nil, ""
	r := &archive.Round{Job: one, Written: time.Now().UTC()}
	if r.Objects, err = a.objects(j, m); err != nil {
		return m.Round, nil, err
	}
	for _, s := range m.Files() { // those of other nodes
		if bytes, missing := n.agent.Shards(id).Size(ctx, s.Digest); missing == nil && bytes == s.Bytes {
			continue
		}
		if err := n.agent.Shards(id).Fetch(ctx, s.Digest, s.Bytes, s.Nodes); err != nil {
			return m.Round, nil, err
		}
	}
	err = at.Save(ctx, r, func(_ context.Context, d shard.Digest) (io.ReadCloser, error) { return openLocal(a.paths(id, d)) }, s.Job.Center.Keep)
	a.mu.Lock()
	before := a.jobs[id].status.Round
	a.mu.Unlock()
	for _, other := range kept[:len(kept)-1] {
		if before > 0 && other.Round > before {
			skipped = append(skipped, other.Round)
		}
	}
	return m.Round, skipped, err
}

// paths are where a file of a job may lie on this node: as a shard, as what goes with the model, as an object.
func (a *archiver) paths(id string, d shard.Digest) []string {
	dir := agent.JobDir(a.node.config.StateDir, id)
	return []string{
		shard.StoreAt(control.ShardDir(dir)).Path(d), checkpoint.ObjectPath(control.ModelDir(dir), string(d)), checkpoint.ObjectPath(dir, string(d)),
	}
}

// openLocal opens the first file that is there.
func openLocal(paths []string) (*os.File, error) {
	for _, path := range paths {
		f, err := os.Open(path)
		if !errors.Is(err, fs.ErrNotExist) {
			return f, err
		}
	}
	return nil, fmt.Errorf("%s: %w", paths[0], fs.ErrNotExist)
}

// objects are the small files that a round needs beside its shards.
func (a *archiver) objects(j *cluster.Job, m *cluster.Manifest) (all []archive.File, err error) {
	digests := []shard.Digest{j.SourceDigest}
	companions, err := a.companions(j.ID, m)
	if err != nil {
		return nil, err
	}
	for _, d := range append(digests, companions...) {
		if d == "" {
			continue
		}
		f, err := openLocal(a.paths(j.ID, d))
		if errors.Is(err, fs.ErrNotExist) && d == j.SourceDigest {
			continue // nothing needs it
		}
		if err != nil {
			return nil, err
		}
		info, err := f.Stat()
		if err = errors.Join(err, f.Close()); err != nil {
			return nil, err
		}
		all = append(all, archive.File{Digest: d, Bytes: info.Size()})
	}
	return all, nil
}

// companions are the digests of what goes with the model of a round.
func (a *archiver) companions(id string, m *cluster.Manifest) (all []shard.Digest, err error) {
	header, err := shard.StoreAt(control.ShardDir(agent.JobDir(a.node.config.StateDir, id))).Header(m.Shards[0].Digest)
	if err != nil {
		return nil, err
	}
	var meta export.ShardMeta
	if err := json.Unmarshal(header.Meta, &meta); err != nil {
		return nil, nil //nolint:nilerr // of another writer
	}
	for _, name := range slices.Sorted(maps.Keys(meta.Companions)) {
		all = append(all, shard.Digest(meta.Companions[name]))
	}
	return all, nil
}

// describe says how far a job's rounds are saved; nil of a job that has no place for them.
func (a *archiver) describe(j *cluster.Job, s *spec.Spec) *api.StoreStatus {
	if s.Job.Center.Store == "" {
		return nil
	}
	if a.open == nil {
		return &api.StoreStatus{URL: s.Job.Center.Store, Problem: "the daemon has no credentials for buckets (s3_credentials)"}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if of := a.jobs[j.ID]; of != nil {
		status := of.status
		return &status
	}
	return &api.StoreStatus{URL: s.Job.Center.Store}
}

// check refuses a job whose center.store this daemon cannot use.
func (a *archiver) check(s *spec.Spec) error {
	if s.Job.Center.Store == "" {
		return nil
	}
	if _, err := objectstore.ParseLocation(s.Job.Center.Store); err != nil {
		return api.Errorf(http.StatusUnprocessableEntity, "center.store: %v", err)
	}
	if a.open == nil {
		return api.Errorf(http.StatusUnprocessableEntity, "center.store is %s, and the daemon has no credentials for buckets; set s3_credentials in its "+
			"configuration, or leave the key out", s.Job.Center.Store)
	}
	return nil
}
