//go:build cuda && cgo && linux && amd64

package profile

import (
	"testing"

	"github.com/avgpipe/avgpipe/internal/footprint"
	"github.com/avgpipe/avgpipe/internal/gpu"
	"github.com/avgpipe/avgpipe/job"
	"github.com/avgpipe/avgpipe/stage/device/cuda"
	"github.com/avgpipe/avgpipe/stage/device/cuda/cudatest"
	"github.com/avgpipe/avgpipe/tuner"
)

// gpuConfig tunes a job of two stages on one GPU, of a driver that runs kernels on the host.
func gpuConfig(t *testing.T, change func(*job.Job)) Config {
	t.Helper()
	library := cudatest.Library(t)
	r := request(t, func(j *job.Job) {
		j.Devices.Kind, j.Devices.GPU = job.KindGPU, job.GPU{Count: 1, Memory: footprint.ContextBytes + 1e9}
		j.Devices.CPU.Threads, j.Stages, j.Schedule = 1, 2, "1f1b"
		j.Model.Config["n_positions"] = 8
		change(j)
	})
	r.GPUs = []gpu.GPU{{Name: "fake", UUID: "GPU-00000000-0000-0000-0000-000000000001", MemoryBytes: cudatest.Memory}}
	return Config{Request: r, Batches: 2, Watch: -1, Graphics: cuda.Config{Library: library.Path(), Libraries: []string{library.Directory()}}}
}

// TestAJobOnAGPUIsTuned: where its stages share the GPU, and its pipelines have a queue each.
func TestAJobOnAGPUIsTuned(t *testing.T) {
	report, err := Tune(t.Context(), gpuConfig(t, func(*job.Job) {}))
	if err != nil {
		t.Fatal(err)
	}
	c := report.Chosen
	if c.Measured == nil || c.Measured.BatchSeconds <= 0 || c.Devices != 2 || len(report.Notes) > 0 {
		t.Fatalf("chosen: %+v, notes %q", c, report.Notes)
	}
	for _, l := range report.Profile.Layers {
		if l.ForwardSeconds <= 0 || l.BackwardInputSeconds <= 0 || l.BackwardWeightSeconds <= 0 {
			t.Errorf("layer %+v takes no time", l)
		}
	}
}

// TestWhatStagesOfOneGPUTakeIsPredicted: to the byte, boundaries in its memory included.
func TestWhatStagesOfOneGPUTakeIsPredicted(t *testing.T) {
	for _, name := range []string{"1f1b", "gpipe", "zb-h1"} {
		for _, pipelines := range []int{1, 2} {
			s, c := gpuCandidate(t, gpuConfig(t, func(j *job.Job) { j.Schedule, j.Pipelines, j.MicroBatches = name, job.Count(pipelines), 4 }))
			ran, err := s.RunOnce(t.Context(), c)
			if err != nil {
				t.Fatal(err)
			}
			if one, other := ran.Measured.Stages[0].Busy, ran.Measured.Stages[1].Busy; one != other || !(one > 0 && one <= 1) {
				t.Errorf("%s, %d pipelines: one GPU worked %v and %v of the time", name, pipelines, one, other)
			}
			for k, stage := range c.Predicted.Stages {
				if found := ran.Measured.Stages[k].Memory.Allocated; stage.Memory.OnDevice() != found {
					t.Errorf("%s, %d pipelines, stage %d: %d bytes are predicted, %d allocated: %+v", name, pipelines, k, stage.Memory.OnDevice(), found, stage.Memory)
				}
			}
		}
	}
}

// gpuCandidate is the candidate that a price model takes, of a session that the test closes.
func gpuCandidate(t *testing.T, config Config) (*Session, tuner.Candidate) {
	t.Helper()
	s, err := Open(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	space, err := s.Space()
	if err != nil {
		t.Fatal(err)
	}
	s.Guess(&space)
	out, err := tuner.Search(space)
	if err != nil {
		t.Fatal(err)
	}
	return s, out.Best(1)[0]
}
