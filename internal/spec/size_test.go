package spec

import (
	"errors"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/avgpipe/avgpipe/internal/access"
	"github.com/avgpipe/avgpipe/internal/api"
)

// admitOn has a job file admitted on a host with so much memory.
func admitOn(t *testing.T, memory int64, set ...string) (*Spec, error) {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "text"), []byte(strings.Repeat("some text\n", 500)), 0o600); err != nil {
		t.Fatal(err)
	}
	const source = `version: 1
name: large
model: {family: gpt2, config: {n_layer: 2, n_head: 2, n_embd: 32, n_positions: 32, vocab_size: 256}}
data: {files: [text]}
optimizer: {lr: 1e-3}
train: {steps: 8, batch: 16}
stages: 2
pipelines: 2
micro_batches: 4
schedule: gpipe
devices: {kind: ref}
`
	return Admit(t.Context(), Inspection{
		Request: api.SubmitRequest{File: "job.yaml", Source: source, Base: dir, Set: set}, User: access.User{UID: uint32(os.Getuid())},
		Host: Host{Cores: 2, MemoryBytes: memory},
	}, nil)
}

// TestModelsThatNoHostHoldsAreRefused at submission, with the numbers, whatever they are, and with what would fit.
func TestModelsThatNoHostHoldsAreRefused(t *testing.T) {
	for name, c := range map[string]struct {
		memory int64
		set    []string
		want   []string // nothing: it is admitted
	}{
		"a model of no size": {8e9, nil, nil},
		"memory unknown":     {0, nil, nil},
		"n_embd: 100000": {
			8e9,
			[]string{"model.config.n_embd=100000"},
			[]string{"240 B parameters", "2 vectors of adamw take 3.84 TB", "this node has 8 GB for jobs"},
		},
		"counts to be measured": {8e9, []string{"model.config.n_embd=100000", "pipelines=auto", "schedule=auto"}, []string{"240 B parameters"}},
		"all at its most": {math.MaxInt64, []string{
			"model.config.n_embd=262144", "model.config.n_layer=16384", "model.config.vocab_size=16777216",
			"model.config.n_positions=1048576", "train.batch=1048576",
		}, []string{"floating-point operations a step"}},
		"emulated": {1, []string{"devices={kind: emulated, emulated: {forward: 1ms}}"}, nil},
		"one pipeline fits": {
			14e6, nil,
			[]string{"parameters take ", " in 2 pipelines: weights ", "activations ", "this node has 14 MB for jobs", "pipelines: 1", "would fit"},
		},
	} {
		_, err := admitOn(t, c.memory, c.set...)
		if len(c.want) == 0 && err != nil {
			t.Errorf("%s: %v", name, err)
		}
		var refused *api.Error
		if len(c.want) > 0 && (!errors.As(err, &refused) || refused.Status != 422) {
			t.Errorf("%s: %v, want a refusal", name, err)
			continue
		}
		for _, part := range c.want {
			if !strings.Contains(err.Error(), part) {
				t.Errorf("%s: %v does not say %q", name, err, part)
			}
		}
	}
}

// TestHostNeedsAreTheStages: the parts are those that the stages of emulated devices are priced by.
func TestHostNeedsAreTheStages(t *testing.T) {
	s, err := admitOn(t, 0)
	if err != nil {
		t.Fatal(err)
	}
	p, plan := priced(t, &s.Job)
	stages, err := p.memories(plan)
	if err != nil {
		t.Fatal(err)
	}
	sum := int64(0)
	for _, m := range stages {
		sum += m.Total()
	}
	if need, err := p.hostNeeds(plan); err != nil || need.Total() != sum {
		t.Errorf("%d bytes (%v), the stages take %d", need, err, sum)
	}
	if _, err := admitOn(t, sum); err != nil {
		t.Errorf("with exactly %d bytes: %v", sum, err)
	}
	if _, err := admitOn(t, sum-1); err == nil {
		t.Error("it is admitted with a byte less")
	}
}
