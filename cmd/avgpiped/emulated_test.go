package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/avgpipe/avgpipe/internal/api"
)

// The example of emulated devices runs as it is, but for fewer and shorter batches: the daemon, the worker, the executor and the
// links are the real ones.
func TestADaemonTrainsOnEightEmulatedDevices(t *testing.T) {
	t.Parallel()
	source, err := os.ReadFile("../../examples/emulated.yaml")
	if err != nil {
		t.Fatal(err)
	}
	base, err := filepath.Abs("../../examples")
	if err != nil {
		t.Fatal(err)
	}
	s := newSite(t)
	s.start()
	submit := func(set ...string) (api.SubmitResponse, error) {
		return s.client.Submit(t.Context(), api.SubmitRequest{File: "emulated.yaml", Source: string(source), Base: base, Set: set})
	}
	const steps, micros, forward, backward = 4, 8, 2 * time.Millisecond, 4 * time.Millisecond
	begin := time.Now()
	answer, err := submit("train.steps=8", "center.commit_every=4", "train.batch=8", "micro_batches=8", "pipelines=2", "recompute=block",
		"devices.emulated.forward=2ms", "devices.emulated.backward=4ms", "devices.emulated.link.latency=1ms")
	if err != nil {
		t.Fatal(err)
	}
	status := s.ended(answer.ID)
	if status.State != api.Done || status.Step != steps {
		t.Fatalf("the job is %s at step %d: %s", status.State, status.Step, status.Reason)
	}
	if took, least := time.Since(begin), 2*steps*micros*(2*forward+backward); took < least {
		t.Errorf("two pipelines of %d micro-batches took %v, the time that their devices spend is %v at least", steps*micros, took, least)
	}
	if status.EvalLoss == nil || *status.EvalLoss != 0 || len(status.StageStatus) != 8 || !strings.Contains(status.Device, "emulated (") {
		t.Errorf("evaluation loss %v, %d stages on %q", show(status.EvalLoss), len(status.StageStatus), status.Device)
	}
}

// The example of emulated devices that compute, of fewer and shorter batches, has the losses and the weights that it has on the processor,
// to the bit: whatever the times are, with a worker that dies and goes on from a committed round, and tuned.
func TestADaemonTrainsOnEmulatedDevicesThatCompute(t *testing.T) {
	t.Parallel()
	source, err := os.ReadFile("../../examples/emulated-compute.yaml")
	if err != nil {
		t.Fatal(err)
	}
	base, err := filepath.Abs("../../examples")
	if err != nil {
		t.Fatal(err)
	}
	s := newSite(t)
	s.start()
	submit := func(set ...string) string {
		t.Helper()
		set = append([]string{"train.steps=80", "center.commit_every=5"}, set...)
		answer, err := s.client.Submit(t.Context(), api.SubmitRequest{File: "emulated-compute.yaml", Source: string(source), Base: base, Set: set})
		if err != nil {
			t.Fatal(err)
		}
		return answer.ID
	}
	trained := func(id string) api.JobStatus {
		t.Helper()
		status := s.ended(id)
		if status.State != api.Done || status.EvalLoss == nil || status.InitialLoss == nil || !(*status.EvalLoss < *status.InitialLoss) {
			t.Fatalf("the job is %s, its evaluation loss went from %v to %v: %s", status.State, show(status.InitialLoss), show(status.EvalLoss), status.Reason)
		}
		return status
	}
	fast := []string{"devices.emulated.forward=1ms", "devices.emulated.backward=2ms", "devices.emulated.link.latency=1ms"}
	id := submit(fast...)
	s.committed(id, 5)
	if err := syscall.Kill(s.worker(), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	got, weights := trained(id), s.model(id)
	if len(got.StageStatus) != 4 || got.StageStatus[3].Lag == nil || !strings.Contains(got.Device, "computes on cpu") {
		t.Errorf("stages are %+v on %q", got.StageStatus, got.Device)
	}
	id = submit("devices={kind: cpu}")
	want := trained(id)
	if *got.EvalLoss != *want.EvalLoss || *got.Loss != *want.Loss || got.Step != want.Step {
		t.Errorf("losses are %v and %v after %d steps, want those of the processor, %v and %v after %d",
			*got.Loss, *got.EvalLoss, got.Step, *want.Loss, *want.EvalLoss, want.Step)
	}
	if !bytes.Equal(weights, s.model(id)) {
		t.Error("the weights are not those of the processor")
	}
	if status := trained(submit(append(fast, "pipelines=auto", "schedule=auto")...)); status.PredictedBatchS == nil {
		t.Errorf("a job of open counts was not tuned: %+v", status)
	}
}
