package stage_test

import (
	"math"
	"testing"

	"github.com/avgpipe/avgpipe/stage"
	"github.com/avgpipe/avgpipe/stage/flat"
	"github.com/avgpipe/avgpipe/stage/stagetest"
)

// averagedStage is a stage with asgd that averages from step t0 on.
func averagedStage(t *testing.T, t0 uint64) *stage.Computed {
	return single(t, func(c *stage.Config) { c.Optimizer = stage.Optimizer{Name: "asgd", T0: t0} })
}

// step trains s on one micro-batch.
func step(t *testing.T, s *stage.Computed, h stage.Hyper, delta flat.Vector) {
	t.Helper()
	b := batch(2, 6, h.Step)
	m := stage.Micro{Step: h.Step, Weight: 1}
	s.ZeroGradients()
	if err := s.Forward(m, stage.OnHost(stagetest.Int32Bytes(b.IDs)), stagetest.Int32Bytes(b.Targets), stage.Boundary{}); err != nil {
		t.Fatal(err)
	}
	if err := s.Backward(m, stage.Whole, stage.Boundary{}, stage.Boundary{}); err != nil {
		t.Fatal(err)
	}
	h.GradScale = 1
	if err := s.Step(h, delta); err != nil {
		t.Fatal(err)
	}
	s.ZeroGradients()
}

// near fails when two vectors differ by more than the rounding of a few sums of values of order 1.
func near(t *testing.T, what string, found []float32, want []float64) {
	t.Helper()
	for i, w := range want {
		if math.Abs(float64(found[i])-w) > 2e-6 {
			t.Fatalf("%s: element %d is %v, want %v", what, i, found[i], w)
		}
	}
}

// mean is the mean of vectors.
func mean(vectors [][]float32) []float64 {
	sum := make([]float64, len(vectors[0]))
	for _, v := range vectors {
		for i, x := range v {
			sum[i] += float64(x) / float64(len(vectors))
		}
	}
	return sum
}

// TestAverageIsOfTheIteratesOfSGD (Polyak and Juditsky 1992, equation 3): averaging does not change the iterates.
func TestAverageIsOfTheIteratesOfSGD(t *testing.T) {
	const steps, t0 = 7, 2
	plain := single(t, func(c *stage.Config) { c.Optimizer = stage.Optimizer{Name: "sgd"} })
	averaged := averagedStage(t, t0)
	delta, err := averaged.NewVector()
	if err != nil {
		t.Fatal(err)
	}
	start := read(averaged.Parameters())
	var iterates [][]float32
	for k := range uint64(steps) {
		h := stage.Hyper{Step: k, LearningRate: 0.3}
		step(t, plain, h, nil)
		step(t, averaged, h, delta)
		iterates = append(iterates, read(plain.Parameters()))
		if k <= t0 {
			near(t, "before averaging", read(averaged.Parameters()), mean(iterates[k:]))
		}
	}
	average := read(averaged.Parameters())
	near(t, "average", average, mean(iterates[t0+1:]))
	moved := read(delta)
	for i := range moved {
		moved[i] += start[i]
	}
	near(t, "what the center is told", moved, mean(iterates[t0+1:]))
}

// TestEvaluationIsOfTheAverage compares the loss of the stage's own parameters with that of a copy of them.
func TestEvaluationIsOfTheAverage(t *testing.T) {
	s := averagedStage(t, 0)
	for k := range uint64(5) {
		step(t, s, stage.Hyper{Step: k, LearningRate: 0.5}, nil)
	}
	copied, err := s.NewVector()
	if err != nil {
		t.Fatal(err)
	}
	copied.Copy(s.Parameters())
	b := batch(2, 6, 9)
	ids, targets := stagetest.Int32Bytes(b.IDs), stagetest.Int32Bytes(b.Targets)
	own, err := s.Evaluate(nil, ids, targets, nil)
	if err != nil {
		t.Fatal(err)
	}
	other, err := s.Evaluate(copied, ids, targets, nil)
	if err != nil {
		t.Fatal(err)
	}
	copied.Copy(s.State()[1]) // the iterate of the last batch
	iterate, err := s.Evaluate(copied, ids, targets, nil)
	if err != nil {
		t.Fatal(err)
	}
	if own.Loss != other.Loss || own.Loss == iterate.Loss {
		t.Errorf("loss %v, of the average %v, of the iterate %v", own.Loss, other.Loss, iterate.Loss)
	}
}

// TestAPullMovesTheIterateAlong: what an averaging method does to the parameters between two batches happens to the point at
// which the next gradient is taken.
func TestAPullMovesTheIterateAlong(t *testing.T) {
	s := averagedStage(t, 0)
	for k := range uint64(5) {
		step(t, s, stage.Hyper{Step: k, LearningRate: 0.5}, nil)
	}
	center, err := s.NewVector()
	if err != nil {
		t.Fatal(err)
	}
	before, ahead := read(s.Parameters()), read(s.State()[0])
	s.Parameters().Lerp(0.25, center) // toward 0
	step(t, s, stage.Hyper{Step: 5, LearningRate: 0}, nil)
	want := make([]float64, len(before))
	distance := 0.0
	for i := range want {
		want[i] = 0.75*float64(before[i]) + float64(ahead[i])
		distance += math.Abs(float64(ahead[i]))
	}
	if distance == 0 {
		t.Fatal("the iterate is not ahead of the average: the test shows nothing")
	}
	near(t, "iterate", read(s.State()[1]), want)
}

// TestAnAverageBeginsAnewWithItsState: a run that resumes without its optimizer's state, after t0, goes on averaging, from
// the average that it resumed with.
func TestAnAverageBeginsAnewWithItsState(t *testing.T) {
	s := averagedStage(t, 3)
	step(t, s, stage.Hyper{Step: 0, Before: 100, LearningRate: 0.5}, nil)
	first := read(s.Parameters())
	step(t, s, stage.Hyper{Step: 1, Before: 100, LearningRate: 0.5}, nil)
	ahead := false
	for i, x := range read(s.State()[0]) {
		if x != 0 {
			ahead = true
		}
		if found, want := read(s.Parameters())[i], first[i]+x; math.Abs(float64(found-want)) > 2e-6 {
			t.Fatalf("element %d of the average of two iterates is %v, want %v", i, found, want)
		}
	}
	if !ahead {
		t.Error("the average is still the iterate")
	}
}
