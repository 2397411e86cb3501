package main

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/avgpipe/avgpipe/internal/api"
	"github.com/avgpipe/avgpipe/tuner"
)

// openJob is tinyJob with the number of pipelines and micro-batches, and the schedule, left to the daemon.
var openJob = strings.NewReplacer("pipelines: 2\n", "", "micro_batches: 2\n", "schedule: auto\n", "steps: 160", "steps: 20").Replace(tinyJob)

func TestOpenJobIsMeasuredOnceAndTrains(t *testing.T) {
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
	if report.Cached || report.Chosen.Measured == nil || report.Chosen.Stages != 2 || len(report.RunnersUp) == 0 || len(steps) < 3 {
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
	if status.State != api.Done || status.Step != 20 || status.PredictedBatchS == nil {
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

func TestJobThatNoMemoryHoldsIsExplained(t *testing.T) {
	s := newSite(t)
	s.start()
	answer, err := s.client.Submit(t.Context(), api.SubmitRequest{
		File: "job.yaml", Base: s.dir, Source: strings.Replace(openJob, "devices: {kind: ref, cpu: {count: 2, threads: 1}}",
			"devices: {kind: emulated, emulated: {count: 2, memory: 10000, flops: 1e9}}", 1),
	})
	if err != nil {
		t.Fatal(err)
	}
	var status api.JobStatus
	s.until("the end of the job", func(ctx context.Context) bool {
		status, err = s.client.Job(ctx, answer.ID)
		return err == nil && status.State.Ended()
	})
	if status.State != api.Failed || !strings.Contains(status.Reason, "stage") || !strings.Contains(status.Reason, "bytes") {
		t.Errorf("the job is %s: %s; want a failure that names the stage and the bytes", status.State, status.Reason)
	}
}
