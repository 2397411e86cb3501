package tuner

import (
	"math"
	"strings"
	"testing"
)

// What a stage is told to take it takes, with any layers and samples: two stages a device are twice the work.
func TestFixedCostsDependOnTheStageAlone(t *testing.T) {
	p := profileOf(9, 2)
	p.Devices[1].Slowdown = 3
	p.Fixed = []FixedCosts{{Forward: 10e-3, Backward: 20e-3, Update: 1e-3}, {Forward: 15e-3, Backward: 20e-3}}
	s := spaceOf(p)
	s.Recompute = []string{"full"}
	for _, test := range []struct {
		schedule string
		micros   int
		forward  []float64
	}{
		{"1f1b", 4, []float64{10e-3, 15e-3}},
		{"1f1b", 16, []float64{10e-3, 15e-3}},
		{"interleaved", 4, []float64{10e-3, 15e-3, 15e-3, 15e-3}},
	} {
		l, err := s.predict(s.Targets[0], 1, test.micros, test.schedule)
		if err != nil || l.Verdict != "" {
			t.Fatalf("%s: %s %s, %v", test.schedule, l.Verdict, l.Reason, err)
		}
		c, least := l.Costs, 0.0
		for s, forward := range test.forward {
			if !alike(c.Forward[s], forward) || !alike(c.Backward[s], 20e-3+forward) || !alike(c.BackwardInput[s], 10e-3+forward) || !alike(c.BackwardWeight[s], 10e-3) {
				t.Errorf("%s of %d micro-batches, stage %d takes %v, %v (%v, %v)", test.schedule, test.micros, s,
					c.Forward[s], c.Backward[s], c.BackwardInput[s], c.BackwardWeight[s])
			}
			if l.homes[s] == 1 {
				least += float64(test.micros) * (20e-3 + 2*forward)
			}
		}
		if !alike(c.Update[0], 1e-3) || alike(c.Update[1], 1e-3) {
			t.Errorf("%s: optimizer steps take %v", test.schedule, c.Update)
		}
		if l.Predicted.BatchSeconds < least*(1-1e-9) {
			t.Errorf("%s: a batch takes %v s, device 1 alone %v", test.schedule, l.Predicted.BatchSeconds, least)
		}
	}
}

func alike(a, b float64) bool { return math.Abs(a-b) < 1e-12 }

func TestFixedCostsAreChecked(t *testing.T) {
	p := profileOf(4, 2)
	p.Fixed = []FixedCosts{{Forward: 1, Backward: 2}, {Forward: 1, Backward: -2}}
	if err := p.Validate(); err == nil || !strings.Contains(err.Error(), "stage 1") {
		t.Errorf("error is %v", err)
	}
}
