//go:build cuda && cgo && linux && amd64

package main

import (
	"context"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/avgpipe/avgpipe/internal/api"
	"github.com/avgpipe/avgpipe/stage/device/cuda/cudatest"
	"github.com/avgpipe/avgpipe/stage/foreign/foreigntest"
)

// gpuJob trains a very small GPT-2: the driver of these tests runs kernels on the host, a thousand times slower than a GPU.
const gpuJob = `version: 1
name: small
model: {family: gpt2, config: {n_layer: 2, n_head: 2, n_embd: 16, n_positions: 8, vocab_size: 256}}
data: {files: [corpus.txt], holdout: 0.01}
optimizer: {name: adamw, lr: 1e-2}
train: {steps: 40, batch: 4, eval_samples: 8}
stages: 2
pipelines: 2
micro_batches: 2
center: {commit_every: 5}
devices: {kind: gpu}
seed: 3
`

// gpuSite is a place with a node of two GPUs, in a driver that has none. The file lose makes the driver lose one.
func gpuSite(t *testing.T) (s *site, lose string) {
	t.Helper()
	library := cudatest.Library(t)
	s = newSite(t)
	lose = filepath.Join(s.dir, "lose")
	t.Setenv("FAKE_CUDA_DEVICES", "2")
	t.Setenv("FAKE_CUDA_LOSE", lose)
	s.write("avgpiped.yaml", fmt.Sprintf("state_dir: %s\nsocket: %s\ncuda_driver: %s\ncuda_libraries: %s\n",
		filepath.Join(s.dir, "state"), s.socket(), library.Path(), library.Directory()))
	s.start()
	return s, lose
}

// submitWith submits the small job with changes.
func (s *site) submitWith(set ...string) string {
	s.t.Helper()
	return s.submitted(api.SubmitRequest{File: "small.yaml", Source: gpuJob, Base: s.dir, Set: set})
}

// TestAJobOnGPUsLearnsAsOnTheCPU, where its worker is killed in between as well.
func TestAJobOnGPUsLearnsAsOnTheCPU(t *testing.T) {
	s, _ := gpuSite(t)
	want := s.trained(s.submitWith("devices.kind=cpu"))
	id := s.submitWith()
	before := s.committed(id, 5)
	if err := syscall.Kill(s.worker(), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	got := s.trained(id)
	if got.Generation <= before.Generation {
		t.Errorf("generation %d after the worker of generation %d was killed", got.Generation, before.Generation)
	}
	if !strings.Contains(got.Device, "cuda (") || len(got.StageStatus) != 2 {
		t.Errorf("%d stages on %s", len(got.StageStatus), got.Device)
	}
	if one, other := got.StageStatus[0], got.StageStatus[1]; one.GPU == "" || one.GPU == other.GPU || one.MemoryBytes == 0 {
		t.Errorf("stages are on GPUs %q and %q, the first with %d bytes", one.GPU, other.GPU, one.MemoryBytes)
	}
	for _, s := range []api.JobStatus{want, got} {
		for _, on := range s.StageStatus {
			if on.PredictedBytes != on.MemoryBytes {
				t.Errorf("stage %d on %s: %d bytes are predicted, %d taken", on.Stage, on.Device, on.PredictedBytes, on.MemoryBytes)
			}
		}
		if s.HostBytes == 0 || s.PredictedHostBytes == 0 {
			t.Errorf("of the host %d bytes are predicted, %d taken", s.PredictedHostBytes, s.HostBytes)
		}
	}
	gain := *want.InitialLoss - *want.EvalLoss
	if off := math.Abs(*got.EvalLoss - *want.EvalLoss); gain < 0.5 || off > 0.01*gain {
		t.Errorf("evaluation loss from %v to %v on GPUs, from %v to %v on the CPU", *got.InitialLoss, *got.EvalLoss, *want.InitialLoss, *want.EvalLoss)
	}
	explained, err := s.client.Explain(t.Context(), id)
	if why := strings.Join(explained.Why, "\n"); err != nil || !strings.Contains(why, "memory, as predicted: GPU 0 ") || !strings.Contains(why, " GPU 1 ") {
		t.Errorf("explained by\n%s\n%v", why, err)
	}
	for k, m := range explained.Memory {
		if m.Counted() != got.StageStatus[k].MemoryBytes || len(explained.Memory) != 2 {
			t.Errorf("stage %d is explained to take %+v", k, m)
		}
	}
}

// modulesOnGPUs trains modules in Python.
const modulesOnGPUs = `version: 1
name: modules
model: {python: modules.py:build, interpreter: %s}
data: {files: [corpus.txt], holdout: 0.01, sequence: 16}
optimizer: {name: adamw, lr: 1e-2}
train: {steps: 200, batch: 4, eval_samples: 8}
stages: 2
pipelines: 2
micro_batches: 2
schedule: 1f1b
center: {commit_every: 5}
seed: 3
`

// TestModulesInPythonTrainOnGPUsOfTheDaemon, which gives one to each interpreter; they are pretended, and so train to the same bits as on cores. A worker that is killed changes nothing.
func TestModulesInPythonTrainOnGPUsOfTheDaemon(t *testing.T) {
	s, _ := gpuSite(t)
	s.write("modules.py", "from torch import nn\n\ndef build():\n    return nn.Sequential(nn.Embedding(256, 16), nn.Linear(16, 32), nn.Dropout(0.1), nn.Linear(32, 256))\n")
	request := api.SubmitRequest{File: "modules.yaml", Source: fmt.Sprintf(modulesOnGPUs, foreigntest.PretendGPU(t)), Base: s.dir}
	want := s.trained(s.submitted(request, "devices={kind: cpu, cpu: {threads: 1}}"))
	id := s.submitted(request, "devices.kind=gpu")
	before := s.committed(id, 5)
	if err := syscall.Kill(s.worker(), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	got := s.trained(id)
	if got.Generation <= before.Generation || *got.EvalLoss != *want.EvalLoss || *got.InitialLoss != *want.InitialLoss {
		t.Errorf("generation %d after %d; losses from %v to %v, on cores from %v to %v", got.Generation, before.Generation, *got.InitialLoss, *got.EvalLoss, *want.InitialLoss, *want.EvalLoss)
	}
	if one, other := got.StageStatus[0], got.StageStatus[1]; one.GPU == "" || one.GPU == other.GPU || !strings.HasSuffix(one.Device, " on "+one.GPU) || !strings.HasSuffix(other.Device, " on "+other.GPU) {
		t.Errorf("stages are on %s (%s) and %s (%s)", one.GPU, one.Device, other.GPU, other.Device)
	}
	for _, on := range got.StageStatus {
		if on.PredictedBytes != on.MemoryBytes {
			t.Errorf("stage %d: %d bytes are predicted, %d taken", on.Stage, on.PredictedBytes, on.MemoryBytes)
		}
	}
	tuned := s.submitted(request, "devices.kind=gpu", "pipelines=auto", "tuning_share=0", "train.steps=10")
	s.trained(tuned)
	if explained, err := s.client.Explain(t.Context(), tuned); err != nil || explained.Report == nil || explained.Report.Chosen.Measured == nil {
		t.Errorf("modules on GPUs are not tuned: %+v, %v", explained.Report, err)
	}
}

// TestALostGPUEndsAWorkerAndNothingElse: the job goes on in the next one, and another job does not notice.
func TestALostGPUEndsAWorkerAndNothingElse(t *testing.T) {
	s, lose := gpuSite(t)
	other := s.submitWith("devices.kind=cpu", "devices.cpu.threads=1", "stages=1", "train.steps=1000000")
	id := s.submitWith("stages=1", "devices.kind=auto")
	before := s.committed(id, 5)
	if !strings.HasPrefix(before.DeviceWhy, "devices.kind auto took gpu: this node has 2 GPUs") {
		t.Errorf("on a GPU, since %q", before.DeviceWhy)
	}
	if err := os.WriteFile(lose, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	s.until("the job goes on", func(ctx context.Context) bool {
		now, err := s.client.Job(ctx, id)
		return err == nil && now.Generation > before.Generation && now.State != api.Starting
	})
	s.trained(id)
	ended := ""
	for line := range strings.Lines(s.log()) {
		if strings.Contains(line, "a worker ended") && strings.Contains(line, "LaunchFailed") {
			ended = line
		}
	}
	if n := strings.Count(ended, "run operations: LaunchFailed"); n != 1 || strings.Contains(ended, "close: ") {
		t.Errorf("the daemon says %d times what was lost, and what its close says:\n%s", n, ended)
	}
	if status, err := s.client.Job(t.Context(), other); err != nil || status.Generation != 1 || status.State == api.Failed {
		t.Errorf("the other job is %s in generation %d: %v", status.State, status.Generation, err)
	}
	if _, err := s.client.Cancel(t.Context(), other); err != nil {
		t.Error(err)
	}
}

// TestAJobOnGPUsIsTuned, in all that it leaves open, on the GPUs that the daemon gives to the tuning; and trains as it was chosen to.
func TestAJobOnGPUsIsTuned(t *testing.T) {
	s, _ := gpuSite(t)
	id := s.submitWith("stages=auto", "pipelines=auto", "micro_batches=auto", "schedule=auto", "tuning_share=0", "train.steps=10", "train.critical_batch=1e12") // without which a note says that speed alone decided
	status := s.trained(id)
	explained, err := s.client.Explain(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	if r := explained.Report; r == nil || r.Chosen.Measured == nil || r.Chosen.Pipelines != status.Pipelines || len(r.Notes) > 0 {
		t.Errorf("trained with %d pipelines after %+v", status.Pipelines, r)
	}
}
