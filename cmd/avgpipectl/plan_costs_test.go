package main

import (
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/avgpipe/avgpipe/internal/strictyaml"
)

// TestCostsAreRefusedAtTheirOwnLine, with what is nearest.
func TestCostsAreRefusedAtTheirOwnLine(t *testing.T) {
	const costs = "stages: 2\nmicro_batches: 4\nforward: 1\nbackward: 2\nlatency: 1\nmessage_bytes: 8\nbandwidth: 1\n"
	for line, want := range map[string]string{
		"update: 1e300":        "costs.yaml:8:9: costs: update of stage 0 is 1e+300; want 0, or a time from 1e-200 to 1e+200: choose another unit",
		"utilisation: 80%":     "costs.yaml:8:14: utilisation wants a number above 0 and of at most 1, or a list with one of them for each device; found text \"80%\"",
		"unit: mss":            "nearest: ms",
		"state_bytes: 1.5":     "costs.yaml:8:14: state_bytes wants a whole number from 0 to 9e+15, or a list with one of them for each stage; found 1.5",
		"activation_bytes: -1": "costs.yaml:8:19: activation_bytes wants a whole number from 0 to 9e+15",
	} {
		_, err := parseCosts("costs.yaml", []byte(costs+line+"\n"))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", line, err, want)
		}
	}
	if _, err := parseCosts("costs.yaml", nil); err == nil || !strings.Contains(err.Error(), "costs.yaml:1:1: the file is empty; ") {
		t.Errorf("of nothing: %v", err)
	}
}

// FuzzCosts: whatever a costs file says, it is understood or refused with a line.
func FuzzCosts(f *testing.F) {
	example, err := os.ReadFile("../../examples/plan/costs.yaml")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(string(example))
	for _, text := range []string{
		"", "stages:", "stages: 2\nmicro_batches: 4\nforward: {a: 1}\nbackward: &x 2\nupdate: *x\n", "forward: [[1], 2]\n? a\n: b\n",
		"stages: 1\nmicro_batches: 1\nforward: 1\nbackward: 1\nlatency: 5\n---\nforward: 2\n", "<<: 1\n1: 2\n", "\t- !!str\n", "schedules: [,]\n", "unit:\nschedules: [~]\n",
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		costs, err := parseCosts("costs.yaml", []byte(text))
		if err == nil {
			if err := costs.Validate(costs.Stages); err != nil {
				t.Errorf("understood, and not valid: %v", err)
			}
			return
		}
		if problems, ok := errors.AsType[strictyaml.Problems](err); ok && len(problems) == 0 {
			t.Error("refused without a reason")
		}
	})
}
