package main

import (
	"strings"
	"syscall"
	"testing"

	"github.com/avgpipe/avgpipe/internal/api"
)

// TestAJobMeasuresItsCriticalBatch in a daemon, from the beginning to the end and over a resume: what the workers measure stands in status and explain, and is kept with what they commit.
func TestAJobMeasuresItsCriticalBatch(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.start()
	slow := strings.Replace(tinyJob, "lr: 3e-3", "lr: 1e-4", 1) // the gradient stays about as long as it is
	answer, err := s.client.Submit(t.Context(), api.SubmitRequest{File: "tiny.yaml", Source: slow, Base: s.dir})
	if err != nil {
		t.Fatal(err)
	}
	id := answer.ID
	first := s.committed(id, 30).CriticalBatch // measured in step 15 by two pipelines
	if first == nil || first.Moves != 8 || first.Text == "" || strings.Contains(first.Text, "not measured") {
		t.Fatalf("after 30 rounds: %+v", first)
	}
	if _, err := s.client.Cancel(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	stopped := s.ended(id)
	if stopped.CriticalBatch == nil || stopped.CriticalBatch.Samples > 0 && stopped.CriticalBatch.Step > stopped.Step {
		t.Errorf("cancelled at step %d: %+v", stopped.Step, stopped.CriticalBatch)
	}
	if _, err := s.client.Resume(t.Context(), id, api.ResumeRequest{}); err != nil {
		t.Fatal(err)
	}
	s.done(id)
	s.signal(syscall.SIGTERM)
	s.start() // which knows what was committed alone
	status, err := s.client.Job(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	explained, err := s.client.Explain(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	b := status.CriticalBatch
	if b == nil || !(b.Samples > 0) || !(b.Error > 0 && b.Error <= 0.5) || b.Step != 160 || b.Moves != 8 ||
		!strings.Contains(b.Text, "measured up to step 160") || !strings.Contains(b.Text, "moves the model by 8 samples a step") {
		t.Errorf("status of the job when it is done: %+v", b)
	}
	if explained.CriticalBatch == nil || b != nil && *explained.CriticalBatch != *b {
		t.Errorf("explain says %+v, status %+v", explained.CriticalBatch, b)
	}
	open := strings.NewReplacer("pipelines: 2", "pipelines: auto\ntuning_share: 0", "batch: 4,", "batch: 4, critical_batch: auto,").Replace(slow)
	for name, want := range map[string]string{"tiny": "as measured by job " + id + " in 160 steps", "another": "no job of this name, model and data has measured it yet"} {
		dry, err := s.client.DryRun(t.Context(), api.SubmitRequest{File: "tiny.yaml", Source: strings.Replace(open, "name: tiny", "name: "+name, 1), Base: s.dir})
		if err != nil {
			t.Fatal(err)
		}
		if notes := strings.Join(dry.Report.Notes, "; "); !strings.Contains(notes, want) {
			t.Errorf("a tuning of %s notes %q, want %q in it", name, notes, want)
		}
	}
}
