package node_test

import (
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/avgpipe/avgpipe/internal/api"
	"github.com/avgpipe/avgpipe/internal/node"
	"github.com/avgpipe/avgpipe/internal/node/nodetest"
	"github.com/avgpipe/avgpipe/internal/objectstore/objectstoretest"
)

// buckets is a server with an empty bucket, which fails while it is told to. store is what a job file says of it.
func buckets(t *testing.T) (configure func(*node.Config), store string, fails *atomic.Bool) {
	t.Helper()
	fails = new(atomic.Bool)
	name := objectstoretest.Name()
	at := objectstoretest.Serve(t, name, func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
			if fails.Load() {
				w.WriteHeader(http.StatusInternalServerError)
				return
			}
			next.ServeHTTP(w, q)
		})
	})
	return func(c *node.Config) { c.Buckets = &at }, "center: {commit_every: 10, store: s3://" + name + "/team", fails
}

func TestRoundsAreSavedInABucketAndComeBack(t *testing.T) {
	t.Parallel()
	configure, store, fails := buckets(t)
	d := nodetest.Start(t, nodetest.StateDir(t), configure)
	fails.Store(true)
	id := d.Submit(t, strings.Replace(nodetest.Job(t, d.Dir, "crash-at-600", 1000), "center: {commit_every: 10", store, 1))
	d.Until(t, id, "says that its bucket fails", func(s api.JobStatus) bool { return s.Store != nil && s.Store.Problem != "" })
	d.Until(t, id, "trains on", func(s api.JobStatus) bool { return s.CommittedRound >= 30 })
	fails.Store(false)
	failed := d.Until(t, id, "ends", ended)
	saved := d.Until(t, id, "is saved", func(s api.JobStatus) bool { return s.Store.Round == failed.CommittedRound })
	if saved.Store.Problem != "" || saved.Store.URL == "" {
		t.Errorf("the store is %+v", saved.Store)
	}
	shards := filepath.Join(d.Dir, "jobs", id, "shards")
	if err := errors.Join(os.RemoveAll(shards), os.Mkdir(shards, 0o750)); err != nil {
		t.Fatal(err)
	}
	fails.Store(true)
	if _, err := d.Client.Resume(t.Context(), id, api.ResumeRequest{}); err == nil || !strings.Contains(err.Error(), "nor from its bucket") {
		t.Errorf("resumed without its files, and without its bucket: %v", err)
	}
	fails.Store(false)
	if _, err := d.Client.Resume(t.Context(), id, api.ResumeRequest{}); err != nil {
		t.Fatal(err)
	}
	d.Until(t, id, "trains from the round", func(s api.JobStatus) bool {
		return s.Generation > failed.Generation && s.Round >= failed.CommittedRound
	})
}

func TestAJobWithAStoreNeedsCredentials(t *testing.T) {
	t.Parallel()
	d := nodetest.Start(t, nodetest.StateDir(t))
	source := strings.Replace(nodetest.Job(t, d.Dir, "good", 20), "center: {commit_every: 10", "center: {commit_every: 10, store: s3://models/team", 1)
	_, err := d.Client.Submit(t.Context(), api.SubmitRequest{File: "job.yaml", Source: source, Base: d.Dir})
	if err == nil || !strings.Contains(err.Error(), "s3_credentials") {
		t.Errorf("admitted: %v", err)
	}
}

func TestAnotherClusterGoesOnFromABucket(t *testing.T) {
	t.Parallel()
	configure, store, fails := buckets(t)
	d := nodetest.Start(t, nodetest.StateDir(t), configure)
	id := d.Submit(t, strings.Replace(nodetest.Job(t, d.Dir, "crash-at-600", 1000), "center: {commit_every: 10", store, 1))
	failed := d.Until(t, id, "ends", ended)
	saved := d.Until(t, id, "is saved", func(s api.JobStatus) bool { return s.Store.Round == failed.CommittedRound })
	other := nodetest.Start(t, nodetest.StateDir(t), configure)
	fails.Store(true)
	if _, err := other.Client.Submit(t.Context(), api.SubmitRequest{From: saved.Store.URL}); err == nil {
		t.Error("a job comes from a bucket that does not answer")
	}
	fails.Store(false)
	if _, err := other.Client.Submit(t.Context(), api.SubmitRequest{From: saved.Store.URL + "-no"}); err == nil || !strings.Contains(err.Error(), "holds no round") {
		t.Errorf("from a place without a round: %v", err)
	}
	answer, err := other.Client.Submit(t.Context(), api.SubmitRequest{From: saved.Store.URL})
	if err != nil {
		t.Fatal(err)
	}
	other.Until(t, answer.ID, "goes on", func(s api.JobStatus) bool {
		return s.Round > failed.CommittedRound || ended(s) && s.Generation > 0
	})
	if a, err := other.Client.Audit(t.Context(), answer.ID); err != nil || !a.Exact || a.Round < failed.CommittedRound {
		t.Errorf("the samples behind it are %+v (%v)", a, err)
	}
}
