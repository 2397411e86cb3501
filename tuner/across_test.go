package tuner

import (
	"math"
	"testing"

	"github.com/avgpipe/avgpipe/schedule"
)

// TestAPeriodHasTheDrainsOfTheRounds: M(F+B) and an S-th of (K-1)(F+B) where a plan runs on across S batches, links and updates being free; and what
// averaging takes in a batch, which is told as if it averaged after each.
func TestAPeriodHasTheDrainsOfTheRounds(t *testing.T) {
	const micros = 6
	for _, name := range []string{"pipedream", "pipedream-2bw"} {
		for _, stages := range []int{1, 4} {
			for _, across := range []int{1, 2, 16} {
				plan, _, err := schedule.Generate(name, schedule.Request{Devices: stages, MicroBatches: micros, RoundBatches: across})
				if err != nil {
					t.Fatal(err)
				}
				costs := schedule.Uniform(stages, 1, 2, 0)
				costs.Average = make([]float64, stages)
				costs.Average[0] = 0.5
				got, err := Period(plan, costs, schedule.Load{MicroBatches: micros, AverageEvery: 1})
				if err != nil {
					t.Fatal(err)
				}
				if want := 3*(micros+float64(stages-1)/float64(across)) + 0.5; math.Abs(got-want) > 1e-9 {
					t.Errorf("%s, K=%d, S=%d: a batch takes %v; want %v", name, stages, across, got, want)
				}
				if costs.Average[0] != 0.5 {
					t.Error("the costs were changed")
				}
			}
		}
	}
}

// TestASearchKnowsHowLongRoundsAre: with longer ones a schedule that steps inside of batches is predicted to be faster, and its optimizer takes as long a
// batch; others are not.
func TestASearchKnowsHowLongRoundsAre(t *testing.T) {
	for name, faster := range map[string]bool{"pipedream": true, "pipedream-2bw": true, "1f1b": false} {
		s := spaceOf(profileOf(8, 4))
		s.Pipelines, s.MicroBatches, s.Schedules = []int{1}, []int{4}, []string{name}
		var found [2]Candidate
		for i, every := range []int{1, 16} {
			s.AverageEvery = every
			out, err := Search(s)
			if err != nil {
				t.Fatal(err)
			}
			found[i] = out.Ranked[0]
		}
		short, long := found[0].Predicted, found[1].Predicted
		if got := long.BatchSeconds < 0.8*short.BatchSeconds; got != faster {
			t.Errorf("%s: a batch is predicted to take %v s, and %v s in rounds of 16", name, short.BatchSeconds, long.BatchSeconds)
		}
		for k := range short.Stages {
			if a, b := short.Stages[k].OptimizerSeconds, long.Stages[k].OptimizerSeconds; a != b {
				t.Errorf("%s: the optimizer of stage %d takes %v s of a batch, and %v s in rounds of 16", name, k, a, b)
			}
		}
		plan, _, err := Plan(&found[1])
		if err != nil || (plan.Batches(4) == 16) != faster {
			t.Errorf("%s: a plan of %d batches, %v", name, plan.Batches(4), err)
		}
	}
}
