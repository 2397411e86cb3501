package tuner

import (
	"math"
	"testing"
)

// predicted is the time of a batch of the only candidate of a space.
func predicted(t *testing.T, s Space) float64 {
	t.Helper()
	out, err := Search(s)
	if err != nil {
		t.Fatal(err)
	}
	if len(out.Ranked) != 1 {
		t.Fatalf("%d candidates, want 1", len(out.Ranked))
	}
	return out.Ranked[0].Predicted.BatchSeconds
}

// The sum of squares goes down all links and the norm back up before the first stage steps.
func TestPredictionCountsTheExchangeOfTheNorm(t *testing.T) {
	const latency = 0.01
	for _, stages := range []int{1, 2, 4} {
		p := profileOf(8, stages)
		for i := range p.Links {
			p.Links[i].LatencySeconds = latency
		}
		s := spaceOf(p)
		s.Pipelines, s.MicroBatches, s.Schedules = []int{1}, []int{4}, []string{"1f1b"}
		plain := predicted(t, s)
		s.ExchangeNorm = true
		if got, want := predicted(t, s)-plain, 2*latency*float64(stages-1); math.Abs(got-want) > 1e-9 {
			t.Errorf("%d stages: the norm is predicted to take %v s, want %v", stages, got, want)
		}
	}
}

// Pipelines that wait for each other in each round leave devices idle where they would not; those that do so every fourth batch
// lose a quarter of that.
func TestPredictionCountsThatPipelinesWaitForEachOther(t *testing.T) {
	s := spaceOf(profileOf(8, 4))
	s.Pipelines, s.MicroBatches, s.Schedules = []int{2}, []int{4}, []string{"1f1b"}
	for i := range s.Targets[0].Profile.Layers {
		s.Targets[0].Profile.Layers[i].Average = 0 // or it would differ with the batches between
	}
	free := predicted(t, s)
	s.AwaitRound = true
	each := predicted(t, s)
	s.AverageEvery = 4
	fourth := predicted(t, s)
	if each < 1.02*free {
		t.Errorf("a batch is predicted to take %v s, and %v s where pipelines wait", free, each)
	}
	if want := free + (each-free)/4; math.Abs(fourth-want) > 1e-9 {
		t.Errorf("a batch is predicted to take %v s where pipelines wait after four batches, want %v", fourth, want)
	}
	s.Pipelines = []int{1}
	alone := predicted(t, s)
	s.AwaitRound = false
	if got := predicted(t, s); got != alone {
		t.Errorf("one pipeline waits for nobody, and is predicted to take %v s for %v", alone, got)
	}
}

// TestStagesOfOneGPUShareItsTime: two rows on a GPU are no faster than one device, and on two GPUs two rows each than two.
func TestStagesOfOneGPUShareItsTime(t *testing.T) {
	for _, pipelines := range []int{1, 2, 3} {
		batch := func(shares ...int) float64 {
			p := profileOf(8, len(shares))
			for d, n := range shares {
				p.Devices[d].Shares = n
			}
			s := spaceOf(p)
			s.Pipelines, s.MicroBatches, s.Schedules = []int{pipelines}, []int{4}, []string{"gpipe"}
			return predicted(t, s)
		}
		whole, apart, shared := batch(0), batch(0, 0), batch(0, 1)
		if shared < whole*(1-1e-9) || apart > 0.9*shared {
			t.Errorf("%d pipelines: %v s on a device, %v s by two stages on it, %v s by two on one each", pipelines, whole, shared, apart)
		}
		if four, two := batch(0, 1, 0, 1), batch(0, 0); four < two*(1-1e-9) {
			t.Errorf("%d pipelines: %v s on two devices, %v s by two stages on each", pipelines, two, four)
		}
	}
}
