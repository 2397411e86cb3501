//go:build cuda && cgo && linux && amd64

package profile

import (
	"bytes"
	"errors"
	"fmt"
	"image"
	"image/color"
	"image/png"
	"os"
	"path/filepath"
	"testing"
	"time"

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
	report, err := Tune(t.Context(), gpuConfig(t, func(j *job.Job) { j.Train.CriticalBatch = 1e12 })) // without which a note says that speed alone decided
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
				if found := ran.Measured.Stages[k].Memory.Allocated; stage.Memory.Counted() != found {
					t.Errorf("%s, %d pipelines, stage %d: %d bytes are predicted, %d allocated: %+v", name, pipelines, k, stage.Memory.Counted(), found, stage.Memory)
				}
			}
		}
	}
}

// paintings are images of two classes, 8 by 8 pixels.
func paintings(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for i := range 16 {
		picture := image.NewGray(image.Rect(0, 0, 8, 8))
		picture.SetGray(i%8, i%2, color.Gray{Y: 200})
		path := filepath.Join(dir, []string{"left", "right"}[i%2], fmt.Sprintf("%d.png", i))
		var file bytes.Buffer
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), png.Encode(&file, picture), os.WriteFile(path, file.Bytes(), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// TestWhatADriverGivesOutIsPredicted, of every kind of family: stages to the byte, and with the queues of all rows all but a little.
func TestWhatADriverGivesOutIsPredicted(t *testing.T) {
	const little = 2 << 20 // scratch of operations, and what graphs are given
	driver := cudatest.Library(t)
	for _, c := range []struct {
		family string
		config map[string]any
		data   job.Data
	}{
		{family: "gpt2", config: map[string]any{"n_layer": 2, "n_head": 2, "n_embd": 16, "n_positions": 8, "vocab_size": 256}},
		{family: "awd-lstm", config: map[string]any{"ntoken": 256, "ninp": 8, "nhid": 16, "nlayers": 2, "bptt": 5}},
		{family: "resnet", data: job.Data{Format: "images", Files: []string{paintings(t)}, Holdout: 0.25}, config: map[string]any{
			"image_size": 8, "num_channels": 1, "num_labels": 2, "stem": "cifar", "layer_type": "basic", "embedding_size": 4, "hidden_sizes": []any{4, 8},
			"depths": []any{1, 1}, "norm": "batch",
		}},
	} {
		for _, precision := range []string{"f32", "bf16"} {
			s, candidate := gpuCandidate(t, gpuConfig(t, func(j *job.Job) {
				j.Model, j.Precision, j.Pipelines, j.MicroBatches = job.Model{Family: c.family, Config: c.config}, precision, 2, 2
				if c.data.Files != nil {
					j.Data = c.data
				}
			}))
			most, stop := make(chan int), make(chan struct{})
			go func() { // what is allocated stays until the run ends
				held := 0
				for tick := time.NewTicker(time.Millisecond); ; {
					select {
					case <-tick.C:
						held = max(held, driver.Held())
					case <-stop:
						most <- held
						return
					}
				}
			}()
			ran, err := s.RunOnce(t.Context(), candidate)
			close(stop)
			held := int64(<-most)
			if err != nil {
				t.Fatalf("%s in %s: %v", c.family, precision, err)
			}
			predicted := int64(0)
			for k, stage := range candidate.Predicted.Stages {
				predicted += stage.Memory.OnDevice()
				if found := ran.Measured.Stages[k].Memory.Allocated; stage.Memory.Counted() != found {
					t.Errorf("%s in %s, stage %d: %d bytes are predicted, %d allocated", c.family, precision, k, stage.Memory.Counted(), found)
				}
			}
			t.Logf("%s in %s: %d bytes are predicted, the driver gave out %d", c.family, precision, predicted, held)
			if held < predicted || held > predicted+little {
				t.Errorf("%s in %s: %d bytes are predicted, the driver gave out %d; want at most %d more", c.family, precision, predicted, held, little)
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
