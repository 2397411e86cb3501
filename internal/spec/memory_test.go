package spec

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/avgpipe/avgpipe/internal/access"
	"github.com/avgpipe/avgpipe/internal/api"
	workers "github.com/avgpipe/avgpipe/internal/worker"
	"github.com/avgpipe/avgpipe/job"
	"github.com/avgpipe/avgpipe/schedule"
	"github.com/avgpipe/avgpipe/stage/model"
)

// emulatedJob is a job of four stages on emulated devices, with changes.
func emulatedJob(t *testing.T, set ...string) (*job.Job, error) {
	t.Helper()
	s, err := emulatedSpec(t, set...)
	if err != nil {
		return nil, err
	}
	return &s.Job, nil
}

// emulatedSpec is the same job with what admission decided.
func emulatedSpec(t *testing.T, set ...string) (*Spec, error) {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "text"), []byte(strings.Repeat("some text\n", 500)), 0o600); err != nil {
		t.Fatal(err)
	}
	const source = `version: 1
name: emulated
model: {family: gpt2, config: {n_layer: 6, n_head: 2, n_embd: 32, n_positions: 32, vocab_size: 256}}
data: {files: [text]}
optimizer: {lr: 1e-3}
train: {steps: 8, batch: 16}
stages: 4
pipelines: 2
micro_batches: 4
schedule: gpipe
devices: {kind: emulated, emulated: {forward: 0.1ms}}
`
	return Admit(t.Context(), Inspection{
		Request: api.SubmitRequest{File: "job.yaml", Source: source, Base: dir, Set: set}, User: access.User{UID: uint32(os.Getuid())},
		Host: Host{Cores: 2},
	}, nil)
}

// What admission finds is what the worker's devices are asked for: with exactly so much a job runs, with a byte less it does
// not, and is refused beforehand.
func TestMemoryIsWhatTheStagesTake(t *testing.T) {
	for _, set := range [][]string{
		nil,
		{"pipelines=1", "schedule=afp"},
		{"recompute=full", "optimizer.name=sgd", "averaging.pull=new"},
		{"schedule=zb-h1", "recompute=block", "precision=bf16"},
		{"schedule=interleaved", "averaging.pull=elastic"},
	} {
		t.Run(strings.Join(set, " "), func(t *testing.T) {
			j, err := emulatedJob(t, set...)
			if err != nil {
				t.Fatal(err)
			}
			p, plan := priced(t, j)
			bytes, err := p.stages(plan)
			if err != nil {
				t.Fatal(err)
			}
			need := make([]float64, len(plan))
			for k, d := range plan.Placement() {
				need[d] += float64(bytes[k])
			}
			j.Devices.Emulated.Memory = need
			if err := tryOut(t, j, plan); err != nil {
				t.Errorf("with as much as is needed: %v", err)
			}
			j.Devices.Emulated.Memory = slices.Clone(need)
			j.Devices.Emulated.Memory[1]--
			if err := tryOut(t, j, plan); err == nil || !strings.Contains(err.Error(), "available on the emulated device") {
				t.Errorf("with a byte less on device 1: %v", err)
			}
			short, err := p.short(plan)
			if err != nil || len(short) != 1 || short[0].need-short[0].bytes != 1 || short[0].stages[0] != 1 {
				t.Errorf("with a byte less on device 1, %v (%v) is short", short, err)
			}
		})
	}
}

// priced is what prices a job's stages, and its plan.
func priced(t *testing.T, j *job.Job) (*pricer, schedule.Plan) {
	t.Helper()
	m, err := model.Build(j.Model.Family, j.Model.Config)
	if err != nil {
		t.Fatal(err)
	}
	s := Spec{Job: *j}
	plan, _, err := s.Plan()
	if err != nil {
		t.Fatal(err)
	}
	p, err := newPricer(m, j, plan.Stages(), nil)
	if err != nil {
		t.Fatal(err)
	}
	return p, plan
}

// tryOut trains a batch.
func tryOut(t *testing.T, j *job.Job, plan schedule.Plan) error {
	t.Helper()
	trials, err := workers.OpenTrials(t.Context(), j, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := trials.Close(); err != nil {
			t.Error(err)
		}
	}()
	_, err = trials.Run(t.Context(), workers.TrialConfig{Job: *j, Plan: plan, WarmUp: 1, Batches: 1})
	return err
}

func TestStagesThatDoNotFitAreRefusedWithWhatWouldFit(t *testing.T) {
	j, err := emulatedJob(t)
	if err != nil {
		t.Fatal(err)
	}
	p, plan := priced(t, j)
	bytes, err := p.stages(plan)
	if err != nil {
		t.Fatal(err)
	}
	most := slices.Max(bytes)
	worst := slices.Index(bytes, most)
	_, err = emulatedJob(t, fmt.Sprintf("devices.emulated.memory=%d", most-100))
	for _, part := range []string{
		fmt.Sprintf("stage %d needs %d bytes, and the memory of its device is %d: 100 bytes short", worst, most, most-100),
		"recompute: ", "micro_batches: 8", "stages: ", "would fit",
	} {
		if err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("error %v does not say %q", err, part)
		}
	}
	if _, err := emulatedJob(t, fmt.Sprintf("devices.emulated.memory=%d", most)); err != nil {
		t.Errorf("what fits exactly is refused: %v", err)
	}
	if _, err := emulatedJob(t, "devices.emulated.memory=1000"); err == nil || !strings.Contains(err.Error(), "use a smaller model") {
		t.Errorf("what never fits: %v", err)
	}
	if _, err := emulatedJob(t, "devices.emulated.flops=[1, 2, 3]"); err == nil || !strings.Contains(err.Error(), "entries for 3 devices, and there are 4") {
		t.Errorf("flops of three devices for four: %v", err)
	}
}
