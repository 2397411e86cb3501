package spec_test

import (
	"math"
	"strings"
	"testing"

	"github.com/avgpipe/avgpipe/internal/spec"
)

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
		"emulated, computing": {
			10e6,
			[]string{"devices={kind: emulated, emulated: {forward: 1ms, compute: true}}"},
			[]string{"this node has 10 MB for jobs", "pipelines: 1", "would fit"},
		},
		"emulated, computing, with memory of its own": {
			10e6,
			[]string{"devices={kind: emulated, emulated: {forward: 1ms, compute: true, memory: 1e12}}"},
			[]string{"this node has 10 MB for jobs", "pipelines: 1", "would fit"},
		},
		"one pipeline fits": {
			10e6, nil,
			[]string{"parameters take ", " in 2 pipelines: weights ", "activations ", "this node has 10 MB for jobs", "pipelines: 1", "would fit"},
		},
	} {
		_, err := resolve(t, refJob, c.memory, c.set...)
		if len(c.want) == 0 && err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if len(c.want) > 0 && (err == nil) {
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

// TestHostNeedsAreTheStages: a host with as much memory as all stages take runs the job, one with a byte less does not.
func TestHostNeedsAreTheStages(t *testing.T) {
	for _, set := range [][]string{
		nil,
		{"devices={kind: emulated, emulated: {forward: 1ms, compute: true}}"},
		{"devices={kind: emulated, emulated: {forward: 1ms, compute: true, memory: 1e12}}"},
	} {
		found, err := resolve(t, refJob, 1e12, set...)
		if err != nil {
			t.Fatal(err)
		}
		sum := int64(0)
		for _, m := range found.Memory {
			sum += m.Total()
		}
		if _, err := resolve(t, refJob, sum, set...); err != nil {
			t.Errorf("%q: with exactly %d bytes: %v", set, sum, err)
		}
		if _, err := resolve(t, refJob, sum-1, set...); err == nil {
			t.Errorf("%q: it is admitted with a byte less", set)
		}
		_, facts := parsed(t, refJob, 1e12, set...)
		s, err := spec.New(found, facts.Model, nil, false)
		if err != nil {
			t.Fatal(err)
		}
		host := int64(0)
		for _, bytes := range s.StageBytes() {
			host += bytes
		}
		if host != sum {
			t.Errorf("%q: its stages take %d bytes of the host, want %d", set, host, sum)
		}
	}
}
