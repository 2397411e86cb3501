package agenttest

import (
	"context"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/avgpipe/avgpipe/internal/agent"
	"github.com/avgpipe/avgpipe/internal/cluster"
	"github.com/avgpipe/avgpipe/internal/shard"
	"github.com/avgpipe/avgpipe/internal/spec"
	"github.com/avgpipe/avgpipe/internal/worker/control"
)

func tune(t *testing.T, r Rig, id, name string) (agent.Process, *seen) {
	t.Helper()
	if id != "" {
		r.Job(id)
	}
	p, err := r.Agent.Tune(t.Context(), control.TuneRequest{JobID: id, Spec: spec.Spec{Version: spec.Version, Job: trainJob(name)}, Cores: []int{0}})
	if err != nil {
		t.Fatal(err)
	}
	return p, watch(t.Context(), r.Agent, p)
}

func testTuning(t *testing.T, r Rig) {
	for _, id := range []string{"1", ""} {
		_, s := tune(t, r, id, "open")
		for i := range tuneSteps {
			e := s.until(t, "a step", func(e agent.Event) bool { return e.Tuning != nil })
			if e.Tuning.Progress == nil || e.Tuning.Progress.Done != i {
				t.Errorf("step %d: %+v", i, e.Tuning)
			}
		}
		if e := s.until(t, "the report", func(e agent.Event) bool { return e.Tuning != nil }); e.Tuning.Report == nil {
			t.Errorf("%+v", e.Tuning)
		}
		if x := s.end(t); x.Code != 0 {
			t.Errorf("it ended: %+v", x)
		}
	}
	_, s := tune(t, r, "1", "tunedies-at-1")
	if x := s.end(t); x.Code != 7 || x.Trouble != "fake tuning: crash in step 1" {
		t.Errorf("it ended: %+v", x)
	}
}

func testKilledTuning(t *testing.T, r Rig) {
	p, s := tune(t, r, "1", "tunehangs")
	s.until(t, "a step", func(e agent.Event) bool { return e.Tuning != nil })
	if err := r.Agent.Kill(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	if x := s.end(t); x.How != "signal: killed" {
		t.Errorf("it ended: %+v", x)
	}
}

func testFiles(t *testing.T, r Rig) {
	ctx := t.Context()
	j := &cluster.Job{ID: "1", Name: "one", Source: "text", Submitted: time.Unix(1000, 0).UTC()}
	if own, err := r.Agent.Retire(ctx, j, "x"); err != nil || own {
		t.Errorf("a job without a directory: %v, %v", own, err)
	}
	for range 2 {
		if err := r.Agent.Record(ctx, j, false); err != nil {
			t.Fatal(err)
		}
	}
	other := *j
	other.Submitted = time.Unix(2000, 0).UTC()
	if err := r.Agent.Record(ctx, &other, false); err == nil {
		t.Error("the directory of another job was taken")
	}
	if _, err := r.Agent.Retire(ctx, &other, "x"); err == nil {
		t.Error("the directory of another job was retired")
	}
	if s := r.Agent.KeptStatus(ctx, "1"); s != nil {
		t.Errorf("kept before it was: %+v", s)
	}
	if err := r.Agent.KeepStatus(ctx, "1", &control.Status{JobID: "1", Final: 7}); err != nil {
		t.Error(err)
	}
	if s := r.Agent.KeptStatus(ctx, "1"); s == nil || s.Final != 7 {
		t.Errorf("the kept status is %+v", s)
	}
	if bytes, err := r.Agent.Usage(ctx, "1"); err != nil || bytes <= 0 {
		t.Errorf("it takes %d bytes, %v", bytes, err)
	}
	if bytes, err := r.Agent.Disk(ctx); err != nil || bytes <= 0 {
		t.Errorf("the disk has %d bytes, %v", bytes, err)
	}
	if own, err := r.Agent.Retire(ctx, j, "x"); err != nil || !own {
		t.Errorf("retired: %v, %v", own, err)
	}
	if err := r.Agent.Delete(ctx, "1"); err != nil {
		t.Error(err)
	}
	if s := r.Agent.KeptStatus(ctx, "1"); s != nil {
		t.Errorf("after its deletion: %+v", s)
	}
	if err := r.Agent.Record(ctx, &other, false); err != nil {
		t.Errorf("another job after the deletion: %v", err)
	}
}

func testShards(t *testing.T, r Rig) {
	ctx := t.Context()
	p, s := start(t, r, Assignment("1", "long", 1, 1e6))
	var digests []shard.Digest
	for range 2 {
		now := s.until(t, "it trains", trains)
		if _, err := r.Agent.Commit(ctx, p, control.CommitRequest{Generation: 1, Round: now.Status.NextCommit + 100}); err != nil {
			t.Fatal(err)
		}
		e := s.until(t, "a shard is durable", is(control.Shard))
		digests = append(digests, shard.Digest(e.Worker.Shard.Digest))
		for _, look := range []func(context.Context, shard.Digest) (int64, error){r.Agent.Shards("1").Verify, r.Agent.Shards("1").Size} {
			if bytes, err := look(ctx, digests[len(digests)-1]); err != nil || bytes != e.Worker.Shard.Bytes {
				t.Errorf("%d bytes, %v; the worker said %d", bytes, err, e.Worker.Shard.Bytes)
			}
		}
	}
	removed, err := r.Agent.Shards("1").Collect(ctx, shard.Collection{Keep: digests[1:], Before: math.MaxUint64})
	if err != nil || !slices.Equal(removed, digests[:1]) {
		t.Errorf("removed %v, %v; want %v", removed, err, digests[:1])
	}
	if _, err := r.Agent.Shards("1").Verify(ctx, digests[0]); err == nil {
		t.Error("a shard that was taken out is there")
	}
	if err := r.Agent.Kill(ctx, p); err != nil {
		t.Error(err)
	}
}
