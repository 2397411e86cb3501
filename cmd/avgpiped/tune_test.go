package main

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/avgpipe/avgpipe/internal/api"
	"github.com/avgpipe/avgpipe/internal/node/nodetest"
	"github.com/avgpipe/avgpipe/tuner"
)

// openJob is tinyJob with the number of pipelines and micro-batches, and the schedule, left to the daemon.
var openJob = strings.NewReplacer("pipelines: 2\n", "", "micro_batches: 2\n", "schedule: auto\n", "steps: 320", "steps: 20").Replace(tinyJob) +
	"tuning_share: 0\n"

func TestOpenJobIsMeasuredOnceAndTrains(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.start()
	request := api.SubmitRequest{File: "job.yaml", Source: openJob, Base: s.dir}
	var steps []string
	report, err := s.client.Tune(t.Context(), request, func(u api.TuneUpdate) error {
		if u.Progress != nil {
			steps = append(steps, u.Progress.Text)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if report.Cached || report.Chosen.Measured == nil || report.Chosen.Devices != 2 || len(report.RunnersUp) == 0 || len(steps) < 3 {
		t.Errorf("after %q: %+v", steps, report)
	}

	answer, err := s.client.Submit(t.Context(), request)
	if err != nil {
		t.Fatal(err)
	}
	var status api.JobStatus
	s.until("the end of the job", func(ctx context.Context) bool {
		status, err = s.client.Job(ctx, answer.ID)
		return err == nil && status.State.Ended()
	})
	if status.State != api.Done || status.Step != (20+uint64(status.Pipelines)-1)/uint64(status.Pipelines) || status.PredictedBatchS == nil {
		t.Errorf("the job is %s at step %d: %s", status.State, status.Step, status.Reason)
	}
	e, err := s.client.Explain(t.Context(), answer.ID)
	if err != nil {
		t.Fatal(err)
	}
	if e.Report == nil || !e.Report.Cached || e.Report.Digest != report.Digest {
		t.Errorf("the submitted job was measured again: %+v", e.Report)
	}
	// The plan that ran is the one that was chosen.
	plan, _, err := tuner.Plan(&report.Chosen)
	if err != nil || !slices.Equal(plan.Lines(), e.Plan) || e.Pipelines != report.Chosen.Pipelines {
		t.Errorf("chosen: %d pipelines of\n%v\nexplained: %d of\n%v, %v", report.Chosen.Pipelines, plan.Lines(), e.Pipelines, e.Plan, err)
	}
}

func TestOpenJobThatNoMemoryHoldsIsRefused(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.start()
	_, err := s.client.Submit(t.Context(), api.SubmitRequest{
		File: "job.yaml", Base: s.dir, Source: strings.Replace(openJob, "devices: {kind: ref, cpu: {count: 2, threads: 1}}",
			"devices: {kind: emulated, emulated: {count: 2, memory: 10000, flops: 1e9}}", 1),
	})
	for _, part := range []string{"job.yaml:", "^", "no plan fits the memory", "stage ", " bytes short"} {
		if err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("error %v does not say %q", err, part)
		}
	}
}

// shortJob trains on two emulated devices; its memory is to be said.
const shortJob = `version: 1
name: short
model: {family: gpt2, config: {n_layer: 4, n_head: 2, n_embd: 32, n_positions: 32, vocab_size: 256}}
data: {files: [corpus.txt], holdout: 0.1}
optimizer: {lr: 1e-3}
train: {steps: 4, batch: 32, eval_samples: 8}
stages: 2
pipelines: 1
micro_batches: 16
schedule: gpipe
tuning_share: 0
center: {commit_every: 4}
devices: {kind: emulated, emulated: {forward: 1ms}}
`

// needs is what the fullest stage of the job takes of its device, as a tuning counts it.
func (s *site) needs(set ...string) int64 {
	s.t.Helper()
	report, err := s.client.Tune(s.t.Context(), api.SubmitRequest{File: "job.yaml", Source: shortJob, Base: s.dir, Set: set},
		func(api.TuneUpdate) error { return nil })
	if err != nil {
		s.t.Fatal(err)
	}
	most := int64(0)
	for _, stage := range report.Chosen.Predicted.Stages {
		most = max(most, stage.Memory.OnDevice())
	}
	return most
}

// trains submits the job, waits for its end and returns how it ran and why.
func (s *site) trains(set ...string) (api.JobStatus, string) {
	s.t.Helper()
	answer, err := s.client.Submit(s.t.Context(), api.SubmitRequest{File: "job.yaml", Source: shortJob, Base: s.dir, Set: set})
	if err != nil {
		s.t.Fatalf("%v: %v", set, err)
	}
	status := s.ended(answer.ID)
	if status.State != api.Done {
		s.t.Fatalf("%v: the job is %s: %s", set, status.State, status.Reason)
	}
	e, err := s.client.Explain(s.t.Context(), answer.ID)
	if err != nil {
		s.t.Fatal(err)
	}
	return status, strings.Join(e.Why, "\n")
}

// A job that its devices hold only when something is computed again trains when it says recompute: auto, however that is decided.
func TestWhatFitsOnlyWithRecomputationTrains(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.start()
	none, block := s.needs(), s.needs("recompute=block")
	if none <= block {
		t.Fatalf("nothing again takes %d bytes, blocks %d", none, block)
	}
	memory := fmt.Sprintf("devices.emulated.memory=%d", block)
	for _, tuning := range []string{"tuning=profile", "tuning=rules"} {
		status, why := s.trains(memory, "recompute=auto", tuning)
		if !slices.Contains(status.Recompute, "block") || !strings.Contains(why, "the least that the memory of the devices allows") {
			t.Errorf("%s: recompute %v, because\n%s", tuning, status.Recompute, why)
		}
		if status, why = s.trains("recompute=auto", "devices.emulated.memory=1e9", tuning); fmt.Sprint(status.Recompute) != "[none]" {
			t.Errorf("%s, where all fits: recompute %v, because\n%s", tuning, status.Recompute, why)
		}
	}
	_, err := s.client.Submit(t.Context(), api.SubmitRequest{File: "job.yaml", Source: shortJob, Base: s.dir, Set: []string{memory}})
	if err == nil || !strings.Contains(err.Error(), "bytes short; recompute: block") {
		t.Errorf("without recomputation: %v", err)
	}
}

// Of counts that are open, those that fit are chosen; nothing that does not fit starts.
func TestOpenCountsFitTheMemory(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.start()
	open := []string{"pipelines=auto", "micro_batches=auto", "schedule=auto"}
	one, two := s.needs(), s.needs("pipelines=2")
	memory := fmt.Sprintf("devices.emulated.memory=%d", min((one+two)/2, two-1))
	if status, why := s.trains(append(open, memory)...); status.Pipelines < 1 {
		t.Errorf("%d pipelines, because\n%s", status.Pipelines, why)
	}
	if status, why := s.trains("pipelines=auto", memory); status.Pipelines != 1 {
		t.Errorf("%d pipelines where one fits, because\n%s", status.Pipelines, why)
	}
	_, err := s.client.Submit(t.Context(), api.SubmitRequest{
		File: "job.yaml", Source: shortJob, Base: s.dir, Set: []string{"pipelines=auto", "tuning=rules", memory},
	})
	for _, part := range []string{"stage ", " bytes short; ", "pipelines: 1 or ", " would fit"} {
		if err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("two pipelines by rule: error %v does not say %q", err, part)
		}
	}
	_, err = s.client.Submit(t.Context(), api.SubmitRequest{
		File: "job.yaml", Source: shortJob, Base: s.dir, Set: append(open, "devices.emulated.memory=10000"),
	})
	for _, part := range []string{": no plan fits the memory", "stage ", "bytes"} {
		if err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("no counts that fit: error %v does not say %q", err, part)
		}
	}
}

// A tuning does not wait for its step to end once its daemon is gone, however long that takes.
func TestTuningEndsWithItsDaemon(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.start()
	answer, err := s.client.Submit(t.Context(), api.SubmitRequest{
		File: "job.yaml", Base: s.dir, Source: shortJob, Set: []string{"pipelines=auto", "devices.emulated.forward=1h"},
	})
	if err != nil {
		t.Fatal(err)
	}
	s.until("a step of the tuning", func(ctx context.Context) bool {
		status, err := s.client.Job(ctx, answer.ID)
		return err == nil && status.Tuning != nil && status.Tuning.Total > 0
	})
	jobs := filepath.Join(s.dir, "state", "jobs")
	if running := nodetest.Running(t, jobs); len(running) != 1 {
		t.Fatalf("tune processes are %v, want one", running)
	}
	s.signal(syscall.SIGKILL)
	s.until("the end of the tuning", func(context.Context) bool { return len(nodetest.Running(t, jobs)) == 0 })
}
