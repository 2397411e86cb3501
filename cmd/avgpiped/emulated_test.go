package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/avgpipe/avgpipe/internal/api"
)

// The example of emulated devices runs as it is, but for fewer and shorter batches: the daemon, the worker, the executor and the
// links are the real ones.
func TestADaemonTrainsOnEightEmulatedDevices(t *testing.T) {
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
