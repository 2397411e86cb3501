package tuner

import (
	"fmt"
	"math"
	"strings"
	"testing"
)

// With a batch as large as the critical one, two pipelines need 3/2 of the samples of one, and four 5/2.
func TestASampleCountsLessWithMorePipelines(t *testing.T) {
	for _, c := range []struct {
		critical  float64
		pipelines int
		want      float64
	}{{8, 1, 1}, {8, 2, 2. / 3}, {8, 4, 2. / 5}, {1e9, 16, 1}, {0, 16, 1}, {1e-9, 4, 0.25}} {
		if got := sampleWorth(c.critical, 8, c.pipelines); math.Abs(got-c.want) > 1e-6 {
			t.Errorf("critical batch %v, %d pipelines: %v, want %v", c.critical, c.pipelines, got, c.want)
		}
	}
}

// Where samples are what training lacks, further pipelines are not worth their speed; where the critical batch is far away, speed alone decides; and where nobody knows it, further pipelines must
// gain more than that.
func TestPipelinesAreChosenByTheTimeToATarget(t *testing.T) {
	chosen := func(critical float64) (Candidate, *Outcome) {
		s := spaceOf(profileOf(8, 4))
		s.CriticalBatch = critical
		out, err := Search(s)
		if err != nil {
			t.Fatal(err)
		}
		return out.Ranked[0], out
	}
	far, all := chosen(1e9)
	if far.Pipelines < 2 || !strings.Contains(far.Reason, "least time to a target") {
		t.Fatalf("far from the critical batch: %d pipelines, %q", far.Pipelines, far.Reason)
	}
	for _, c := range all.Ranked {
		if gain := 1 + Tie*float64(2+max(0, c.Pipelines-far.Pipelines)); c.Predicted.SamplesPerSecond > far.Predicted.SamplesPerSecond*gain {
			t.Errorf("far from the critical batch: %s M=%d N=%d is faster than what won", c.Schedule, c.MicroBatches, c.Pipelines)
		}
	}
	unknown, all := chosen(0)
	if unknown.Pipelines < 2 || unknown.Pipelines >= far.Pipelines || unknown.SampleWorth != 0 {
		t.Errorf("nobody knows the critical batch: %d pipelines, a sample counts %v; want fewer than %d", unknown.Pipelines, unknown.SampleWorth, far.Pipelines)
	}
	said := false
	for _, c := range all.Ranked {
		said = said || strings.Contains(c.Reason, "of which each must gain 5%")
	}
	if !said {
		t.Error("no candidate that is faster says what its pipelines would have to gain")
	}
	few, out := chosen(0.01)
	if few.Pipelines != 1 || few.SampleWorth != 1 {
		t.Errorf("beyond the critical batch: %d pipelines, a sample counts %v", few.Pipelines, few.SampleWorth)
	}
	for _, c := range out.Ranked[1:] {
		if want := fmt.Sprintf("a sample counts %.0f%% with %d pipelines", 100*c.SampleWorth, c.Pipelines); c.Pipelines > 1 && !strings.Contains(c.Reason, want) {
			t.Errorf("N=%d: %q, want %q in it", c.Pipelines, c.Reason, want)
		}
		if slower := c.Predicted.SamplesPerSecond * c.SampleWorth; slower > few.Predicted.SamplesPerSecond*(1+2*Tie) {
			t.Errorf("%s N=%d nears a target by %v samples of a single pipeline a second, the chosen one by %v", c.Schedule, c.Pipelines, slower, few.Predicted.SamplesPerSecond)
		}
	}
}

// A measured winner is that of the time to a target as well.
func TestTheMeasuredBestWeighsSamples(t *testing.T) {
	s := spaceOf(profileOf(8, 4))
	s.CriticalBatch = float64(s.Batch)
	out, err := Search(s)
	if err != nil {
		t.Fatal(err)
	}
	of := func(pipelines int, rate float64) Candidate {
		for _, c := range out.Ranked {
			if c.Pipelines == pipelines {
				c.Measured = &Measurement{Prediction: Prediction{SamplesPerSecond: rate}}
				return c
			}
		}
		t.Fatalf("no candidate has %d pipelines", pipelines)
		return Candidate{}
	}
	if r := out.Decide([]Candidate{of(1, 100), of(2, 140)}); r.Chosen.Pipelines != 1 {
		t.Errorf("two pipelines at 1.4 times the speed, whose samples count 2/3, were chosen: %s", r.Chosen.Reason)
	}
	if r := out.Decide([]Candidate{of(1, 100), of(2, 160)}); r.Chosen.Pipelines != 2 || len(r.Notes) > 0 {
		t.Errorf("two pipelines at 1.6 times the speed were not chosen: %s; notes %q", r.Chosen.Reason, r.Notes)
	}
}

func TestATuningSaysWhatItDoesNotWeigh(t *testing.T) {
	for _, c := range []struct {
		pipelines []int
		critical  float64
		want      string
	}{{nil, 0, "pipelines were chosen by samples a second"}, {[]int{2}, 8, "train.critical_batch weighs nothing"}, {[]int{2}, 0, ""}, {nil, 1e9, ""}} {
		s := spaceOf(profileOf(8, 4))
		s.Pipelines, s.CriticalBatch = c.pipelines, c.critical
		out, err := Search(s)
		if err != nil {
			t.Fatal(err)
		}
		notes := strings.Join(out.Decide(nil).Notes, "; ")
		if (c.want == "") != (notes == "") || !strings.Contains(notes, c.want) {
			t.Errorf("pipelines %v, critical batch %v: %q, want %q", c.pipelines, c.critical, notes, c.want)
		}
	}
}
