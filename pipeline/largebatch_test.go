package pipeline

import (
	"math"
	"slices"
	"sync"
	"testing"

	"github.com/avgpipe/avgpipe/elastic"
	"github.com/avgpipe/avgpipe/stage/device"
)

// joined gives one pipeline the micro-batches of several, one after the other.
type joined struct{ each int }

func (s joined) Fill(step uint64, micro int, input, labels []byte) error {
	return tokens{micro / s.each}.Fill(step, micro%s.each, input, labels)
}

// trainCommitting trains a config to its last round, with snapshots of rounds.
func trainCommitting(t *testing.T, c Config, rounds ...uint64) {
	t.Helper()
	var g *Group
	c.Events.OnStarted = func() {
		for _, round := range rounds {
			if _, accepted := g.Commit(round, false); !accepted {
				t.Errorf("round %d was refused", round)
			}
		}
	}
	g, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	if err := g.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// trainedWeights trains a config to its last round, whose center it returns by stage.
func trainedWeights(t *testing.T, c Config) map[int][]float32 {
	t.Helper()
	all := map[int][]float32{}
	var mu sync.Mutex
	c.Events.OnSnapshot = func(s *Snapshot) {
		mu.Lock()
		defer mu.Unlock()
		all[s.Stage] = slices.Clone(s.Center)
	}
	trainCommitting(t, c, c.FinalRound)
	return all
}

// TestAllReduceTakesTheStepsOfOneLargeBatch, as far as sums round alike: a GPT-2 with tied embeddings and clipping, in two pipelines with a batch each or in one
// with both.
func TestAllReduceTakesTheStepsOfOneLargeBatch(t *testing.T) {
	const tolerance = 2e-5
	var log modelLog
	two := modelConfig(t, onHost, plan(t, "1f1b", 2, modelMicros), 2, device.F32, &log)
	method, err := elastic.NewMethod("allreduce", elastic.Config{Pipelines: 2})
	if err != nil {
		t.Fatal(err)
	}
	two.Method = method
	one := modelConfig(t, onHost, plan(t, "1f1b", 2, 2*modelMicros), 1, device.F32, &modelLog{})
	one.MicroBatches = 2 * modelMicros
	for k := range one.Stages {
		one.Stages[k].Source = func(int) Source { return joined{modelMicros} }
	}
	want := trainedWeights(t, one)
	moved, apart := 0.0, 0.0
	start := trainedWeights(t, withoutSteps(t))
	for k, got := range trainedWeights(t, two) {
		for i, v := range got {
			moved = max(moved, math.Abs(float64(want[k][i]-start[k][i])))
			apart = max(apart, math.Abs(float64(v-want[k][i])))
		}
	}
	if apart > tolerance || moved < 1000*tolerance {
		t.Errorf("the weights are %g apart, tolerance %g; training moved them by %g", apart, tolerance, moved)
	}
}

// withoutSteps trains at a rate of nothing: what comes out is what training starts from.
func withoutSteps(t *testing.T) Config {
	t.Helper()
	c := modelConfig(t, onHost, plan(t, "1f1b", 2, modelMicros), 1, device.F32, &modelLog{})
	c.LearningRate = func(uint64) float32 { return 0 }
	c.FinalRound = 1
	return c
}
