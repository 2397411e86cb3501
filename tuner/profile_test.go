package tuner

import (
	"math"
	"strings"
	"testing"
)

// Passes of pipelines that share devices take as many times as long as was measured at their size; of one alone they do not.
func TestContentionFollowsTheSizeOfMicroBatches(t *testing.T) {
	p := profileOf(4, 2)
	p.Contention = Curve{Samples: []int{2, 8}, Values: []float64{1.5, 0.9}}
	p.OptimizerContention = 2
	s := spaceOf(p)
	s.Pipelines, s.Schedules = []int{1, 2, 3}, []string{"gpipe"}
	out, err := Search(s)
	if err != nil {
		t.Fatal(err)
	}
	want := map[int]float64{1: 1.5, 2: 1.5, 4: 1.3, 8: 0.9, 16: 0.9} // by samples: beyond what was measured as at the end of it
	alone := map[int]StageTerms{}
	for _, c := range out.Ranked {
		if c.Pipelines == 1 {
			alone[c.MicroBatches] = c.Predicted.Stages[0]
		}
	}
	seen := 0
	for _, c := range out.Ranked {
		if c.Pipelines == 1 {
			continue
		}
		seen++
		one, several := alone[c.MicroBatches], c.Predicted.Stages[0]
		if got := several.ComputeSeconds / one.ComputeSeconds; math.Abs(got-want[16/c.MicroBatches]) > 1e-9 {
			t.Errorf("N=%d M=%d: passes take %v times as long, want %v", c.Pipelines, c.MicroBatches, got, want[16/c.MicroBatches])
		}
		if got := several.OptimizerSeconds / one.OptimizerSeconds; math.Abs(got-2) > 1e-9 {
			t.Errorf("N=%d M=%d: optimizer steps take %v times as long, want 2", c.Pipelines, c.MicroBatches, got)
		}
	}
	if seen != 10 {
		t.Errorf("%d candidates of several pipelines, want 10", seen)
	}
	for _, bad := range []Curve{{Samples: []int{1}, Values: []float64{math.NaN()}}, {Samples: []int{2, 1}, Values: []float64{1, 1}}} {
		p.Contention = bad
		if err := p.Validate(); err == nil || !strings.Contains(err.Error(), "contention") {
			t.Errorf("contention %v: error is %v", bad, err)
		}
	}
}

// Two pipelines of one micro-batch fill two devices: in a simulation without jitter they would take turns for ever.
func TestPipelinesArePredictedToFallOutOfStep(t *testing.T) {
	s := spaceOf(profileOf(4, 2))
	s.Pipelines, s.MicroBatches, s.Schedules = []int{2}, []int{1}, []string{"gpipe"}
	out, err := Search(s)
	if err != nil {
		t.Fatal(err)
	}
	if busy := out.Ranked[0].Predicted.Stages[0].Busy; busy < 0.95 {
		t.Errorf("the first device is predicted to be busy for %v of the time", busy)
	}
}
