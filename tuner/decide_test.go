package tuner

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

func TestWhatIsRunDiffersInBothCounts(t *testing.T) {
	out, err := Search(spaceOf(profileOf(8, 4)))
	if err != nil {
		t.Fatal(err)
	}
	best := out.Best(3)
	if len(best) != 3 || !same(best[0], out.Ranked[0]) || best[1].Pipelines == best[0].Pipelines || best[2].MicroBatches == best[0].MicroBatches {
		t.Errorf("to be run: %+v", best)
	}
	all := out.Best(len(out.Ranked) + 1)
	for _, c := range out.Ranked {
		if !slices.ContainsFunc(all, func(other Candidate) bool { return same(c, other) }) {
			t.Errorf("%s N=%d M=%d is missing", c.Schedule, c.Pipelines, c.MicroBatches)
		}
	}
	if len(all) != len(out.Ranked) {
		t.Errorf("%d candidates of %d", len(all), len(out.Ranked))
	}
}

// Decide takes what was measured over what was predicted.
func TestTheMeasuredBestWins(t *testing.T) {
	out, err := Search(spaceOf(profileOf(8, 4)))
	if err != nil {
		t.Fatal(err)
	}
	ran := out.Best(3)
	for i, rate := range []float64{100, 130, 90} {
		ran[i].Measured = &Measurement{Prediction: Prediction{SamplesPerSecond: rate}}
	}
	r := out.Decide(ran)
	if !same(r.Chosen, ran[1]) || r.Chosen.Verdict != Won {
		t.Errorf("chosen: %+v", r.Chosen)
	}
	if first := r.RunnersUp[0]; !same(first, ran[0]) || first.Verdict != Slower || first.Reason != "30.0% slower, measured" {
		t.Errorf("first runner-up: %s %s", first.Verdict, first.Reason)
	}
	for _, c := range r.RunnersUp {
		if c.Verdict == Won || c.Verdict == "" || c.Reason == "" {
			t.Errorf("runner-up %+v", c)
		}
	}
}

// What was not run is compared with what was chosen, not with what was predicted to be best.
func TestReasonsCompareWithTheChosenOne(t *testing.T) {
	out, err := Search(spaceOf(profileOf(8, 4)))
	if err != nil {
		t.Fatal(err)
	}
	slow := len(out.Ranked) / 2
	ran := []Candidate{out.Ranked[slow]}
	ran[0].Measured = &Measurement{Prediction: Prediction{SamplesPerSecond: 100}}
	r := out.Decide(ran)
	seen := map[Verdict]int{}
	for _, c := range r.RunnersUp {
		if c.Predicted.SamplesPerSecond == 0 || c.Verdict == NoMemory || c.Verdict == Fails {
			continue
		}
		seen[c.Verdict]++
		lead := r.Chosen.Predicted.SamplesPerSecond/c.Predicted.SamplesPerSecond - 1
		switch c.Verdict { //nolint:exhaustive // the others are of candidates that do not fit
		case Slower:
			if want := fmt.Sprintf("%.1f%% slower, predicted", 100*lead); lead < Tie || c.Reason != want {
				t.Errorf("%s N=%d: %q, want %q", c.Schedule, c.Pipelines, c.Reason, want)
			}
		case NotRun:
			if lead > 0 || !strings.HasSuffix(c.Reason, "not among those that were run") {
				t.Errorf("%s N=%d is %v faster: %q", c.Schedule, c.Pipelines, -lead, c.Reason)
			}
		case Equal:
			if more := c.Pipelines > r.Chosen.Pipelines; more != strings.Contains(c.Reason, "pipeline") {
				t.Errorf("%s N=%d beside N=%d: %q", c.Schedule, c.Pipelines, r.Chosen.Pipelines, c.Reason)
			}
		}
	}
	if seen[NotRun] == 0 {
		t.Errorf("verdicts are %v, want some that are predicted to be faster", seen)
	}
}

func TestARunThatFailsIsNotChosen(t *testing.T) {
	out, err := Search(spaceOf(profileOf(8, 4)))
	if err != nil {
		t.Fatal(err)
	}
	ran := out.Best(3)
	for i := range ran {
		ran[i].Verdict, ran[i].Reason = Fails, "it fell over"
	}
	r := out.Decide(ran)
	for _, c := range ran {
		if same(c, r.Chosen) {
			t.Errorf("chosen: %+v", r.Chosen)
		}
	}
	if r.Chosen.Verdict != Won {
		t.Errorf("chosen: %s", r.Chosen.Verdict)
	}
}

// TestReasonsOfEqualsSayWhatTheyHold more or less than the chosen one, as the column of their memory does.
func TestReasonsOfEqualsSayWhatTheyHold(t *testing.T) {
	holding := func(bytes int64) Candidate {
		return Candidate{Pipelines: 1, Predicted: Prediction{SamplesPerSecond: 100, Stages: []StageTerms{{Memory: Memory{Weights: bytes}}}}}
	}
	all := []Candidate{holding(500), holding(700), holding(200), holding(500)}
	explain(all, func(c *Candidate) float64 { return c.Predicted.SamplesPerSecond }, Tie, "predicted")
	for i, want := range []string{"the highest throughput", "and holds 200 bytes more", "and holds 300 bytes less", "and holds as much"} {
		if !strings.Contains(all[i].Reason, want) {
			t.Errorf("%d bytes: %q; want %q in it", all[i].Predicted.Bytes(), all[i].Reason, want)
		}
	}
}
