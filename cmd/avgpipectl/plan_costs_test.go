package main

import (
	"errors"
	"os"
	"testing"

	"github.com/avgpipe/avgpipe/job"
)

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
			if err := costs.costs.Validate(costs.stages); err != nil {
				t.Errorf("understood, and not valid: %v", err)
			}
			return
		}
		if problems, ok := errors.AsType[job.Problems](err); ok && len(problems) == 0 {
			t.Error("refused without a reason")
		}
	})
}
