package main

import (
	"context"
	"path/filepath"
	"strings"
	"testing"

	"github.com/avgpipe/avgpipe/internal/api"
	"github.com/avgpipe/avgpipe/internal/profile"
	"github.com/avgpipe/avgpipe/tuner"
)

// linkedJob is tinyJob on two emulated devices, of which a link with a latency joins the neighbours, with its micro-batches left open.
func linkedJob(latency string) string {
	return strings.NewReplacer(
		"pipelines: 2\nmicro_batches: 2\n", "pipelines: 1\nschedule: 1f1b\n", "steps: 320", "steps: 1000000", "commit_every: 10", "commit_every: 1000000",
		"{kind: ref, cpu: {count: 2, threads: 1}}", "{kind: emulated, emulated: {count: 2, flops: 1e9, link: {latency: "+latency+"}}}",
	).Replace(tinyJob)
}

// keep puts a report into the plan cache of a site, in the place of that of another job, which is there.
func (s *site) keep(r tuner.Report, digest string) {
	s.t.Helper()
	dir := filepath.Join(s.dir, "state", "plans")
	if old, err := profile.ReadCache(dir, digest); err != nil || old == nil {
		s.t.Fatalf("the tuning of the job was not kept: %v, %v", old, err)
	}
	r.Digest = digest
	if err := profile.WriteCache(dir, &r); err != nil {
		s.t.Fatal(err)
	}
}

// A network that has become slow since a job was tuned is named by status. A job on slow links trains by what was found with fast ones:
// the tuning, the cache, the worker, its links and the daemon are the real ones.
func TestALinkThatBecameSlowIsNamed(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.start()
	tune := func(source string) *tuner.Report {
		report, err := s.client.Tune(t.Context(), api.SubmitRequest{File: "job.yaml", Source: source, Base: s.dir}, func(api.TuneUpdate) error { return nil })
		if err != nil {
			t.Fatal(err)
		}
		return report
	}
	slow := linkedJob("30ms")
	before := tune(linkedJob("1ms"))
	s.keep(*before, tune(slow).Digest)
	answer, err := s.client.Submit(t.Context(), api.SubmitRequest{File: "job.yaml", Source: slow, Base: s.dir})
	if err != nil {
		t.Fatal(err)
	}
	var status api.JobStatus
	s.until("the job drifts", func(ctx context.Context) bool {
		status, err = s.client.Job(ctx, answer.ID)
		if err == nil && status.State.Ended() {
			t.Fatalf("the job is %s: %s", status.State, status.Reason)
		}
		return err == nil && status.Drift != nil
	})
	d := status.Drift
	if d.Term != api.TermTransfer || d.Stage != 0 || d.TermObserved < 0.03 || d.TermPredicted > 0.015 || !strings.Contains(d.Text, "transfer between stages 0 and 1") {
		t.Errorf("drift: %+v\nlinks: %+v\nstages: %+v", d, status.LinkStatus, status.StageStatus)
	}
	e, err := s.client.Explain(t.Context(), answer.ID)
	if err != nil {
		t.Fatal(err)
	}
	if e.Observed == nil || len(e.Observed.Links) != 1 || e.Observed.Links[0].MessageSeconds < 0.03 || e.Observed.Links[0].Bytes != before.Chosen.Predicted.Links[0].Bytes {
		t.Errorf("observed %+v, predicted %+v", e.Observed, before.Chosen.Predicted)
	}
	t.Log(d.Text)
}
