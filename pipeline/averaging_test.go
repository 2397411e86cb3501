package pipeline

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/avgpipe/avgpipe/schedule"
	"github.com/avgpipe/avgpipe/stage"
	"github.com/avgpipe/avgpipe/stage/flat"
)

func TestAveragingComputesTheRulesToTheBitInWhateverOrderPipelinesArrive(t *testing.T) {
	for _, by := range averagings {
		for _, tau := range []int{1, 3} {
			if tau != tauOf(by, tau) {
				continue
			}
			t.Run(fmt.Sprintf("%s_tau%d", by, tau), func(t *testing.T) {
				t.Parallel()
				r := &run{
					schedule: "afp", stages: 3, pipelines: 3, micros: 4, rounds: 6, clip: 0.05, tied: 2, by: by, tau: tau,
					jitter: 100 * time.Microsecond,
				}
				r.train(t)
				r.compare(t, r.sequential(t))
			})
		}
	}
}

func TestWithoutClippingTheGradientsAreUsedAsTheyAre(t *testing.T) {
	r := &run{schedule: "1f1b", stages: 3, pipelines: 2, micros: 4, rounds: 5}
	r.train(t)
	r.compare(t, r.sequential(t))
}

func TestSplitBackwardComputesTheSameBits(t *testing.T) {
	split, err := schedule.Parse("F0 F1 F2 I0 F3 I1 W0 I2 W1 I3 W2 W3\nF0 I0 F1 W0 I1 F2 W1 I2 F3 W2 I3 W3")
	if err != nil {
		t.Fatal(err)
	}
	r := &run{schedule: "1f1b", stages: 2, pipelines: 2, micros: 4, rounds: 5, clip: 0.05, jitter: 50 * time.Microsecond}
	r.change = func(c *Config) { c.Plan = split }
	r.prepare = func(f *fake, _ int) { f.slots = 0 }
	r.train(t)
	r.compare(t, r.sequential(t))
}

// TestASlowPipelineHoldsUpOthersOnlyAsTheRuleSays gives every pipeline a device time of its own (the fakes sleep on a shared
// executor, so the slow one's source is slow instead) and looks how far the fast one gets.
func TestASlowPipelineHoldsUpOthersOnlyAsTheRuleSays(t *testing.T) {
	for by, did := range map[string]uint64{
		"predicted": 4, "old": 4, "elastic": 4, "easgd-async": 4, "new": 3, "localsgd": 3, "diloco": 3, "streaming-diloco 2": 4, "allreduce": 2, "pipesgd": 3, "pipesgd after 3": 2,
	} {
		t.Run(by, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { slowPipeline(t, by, did) })
		})
	}
}

// slowSource takes an hour for each batch from its third on.
type slowSource struct {
	data
	ctx context.Context
}

func (s slowSource) Fill(step uint64, micro int, input, labels []byte) error {
	if step >= 2 && micro == 0 {
		select {
		case <-time.After(time.Hour):
		case <-s.ctx.Done():
			return context.Cause(s.ctx)
		}
	}
	return s.data.Fill(step, micro, input, labels)
}

func slowPipeline(t *testing.T, by string, want uint64) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	r := &run{schedule: "afp", stages: 2, pipelines: 2, micros: 3, rounds: 50, by: by}
	r.change = func(c *Config) {
		c.Stages[0].Source = func(p int) Source {
			if p == 1 {
				return slowSource{data{p}, ctx}
			}
			return data{p}
		}
	}
	g, err := New(r.config(t))
	if err != nil {
		t.Fatal(err)
	}
	g.park = newChannelParker // fake time does not see a thread that sleeps in the kernel
	done := make(chan error, 1)
	go func() { done <- g.Run(ctx) }()
	time.Sleep(time.Minute) // the slow pipeline has done two batches and waits for its third
	fast := uint64(0)
	r.mu.Lock()
	for key := range r.losses {
		if key[0] == 0 {
			fast = max(fast, key[1]+1)
		}
	}
	r.mu.Unlock()
	// It has trained one batch more, and with a center of old one beyond that: the one it hands over and waits with. Where gradients are
	// exchanged it waits with that of a batch that is not done yet.
	if fast != want {
		t.Errorf("the fast pipeline did %d batches while the slow one did 2, want %d", fast, want)
	}
	cancel()
	<-done
}

func TestEvaluationMeasuresTheCenterOfItsRound(t *testing.T) {
	for _, pipelines := range []int{1, 2} {
		for _, stages := range []int{1, 3} {
			t.Run(fmt.Sprintf("N%d_K%d", pipelines, stages), func(t *testing.T) {
				t.Parallel()
				r := &run{
					schedule: "afp", stages: stages, pipelines: pipelines, micros: 3, rounds: 7, clip: 0.05,
					jitter: 50 * time.Microsecond,
				}
				r.change = func(c *Config) {
					c.Evaluation = &EvaluationConfig{MicroBatches: 5, Due: func(round uint64) bool { return round%3 == 0 || round == 7 }}
				}
				r.train(t)
				r.compare(t, r.sequential(t)) // evaluation must not change training
				for _, round := range []uint64{0, 3, 6, 7} {
					s := (&run{schedule: "afp", stages: stages, pipelines: pipelines, micros: 3, rounds: round, clip: 0.05}).sequential(t)
					want := evaluateCenters(t, s, 5, round)
					if got, ok := r.evals[round]; !ok || !reflect.DeepEqual(got, want) {
						t.Errorf("evaluation of round %d: %+v, want %+v", round, got, want)
					}
				}
				if len(r.evals) != 4 {
					t.Errorf("%d evaluations, want 4", len(r.evals))
				}
			})
		}
	}
}

func evaluateCenters(t *testing.T, s *sequential, micros int, round uint64) Evaluation {
	t.Helper()
	e := Evaluation{Round: round}
	for m := range micros {
		input, labels := make([]byte, 4*width), make([]byte, 4*width)
		if err := (data{99}).Fill(round, m, input, labels); err != nil {
			t.Fatal(err)
		}
		for k, f := range s.fakes[0] {
			out := make([]byte, 4*width)
			score, err := f.Evaluate(s.centers[k], input, labels, out)
			if err != nil {
				t.Fatal(err)
			}
			e.Score.Add(score)
			input = out
		}
	}
	return e
}

// TestEvaluationAtEveryRoundIsOfThatRoundAndNeverDeadlocks makes evaluation much slower than training.
func TestEvaluationAtEveryRoundIsOfThatRoundAndNeverDeadlocks(t *testing.T) {
	const micros = 30
	for _, by := range averagings {
		for _, pipelines := range []int{1, 2} {
			t.Run(fmt.Sprintf("%s_N%d", by, pipelines), func(t *testing.T) {
				t.Parallel()
				r := &run{
					schedule: "afp", stages: 3, pipelines: pipelines, micros: 2, rounds: 8, clip: 0.05, by: by,
					jitter: 20 * time.Microsecond,
				}
				r.change = func(c *Config) {
					c.Evaluation = &EvaluationConfig{MicroBatches: micros, Due: func(uint64) bool { return true }}
				}
				r.train(t)
				r.compare(t, r.sequential(t))
				for round := range uint64(9) {
					r.rounds = round
					if got, want := r.evals[round], evaluateCenters(t, r.sequential(t), micros, round); !reflect.DeepEqual(got, want) {
						t.Errorf("round %d: %+v, want %+v", round, got, want)
					}
				}
			})
		}
	}
}

// TestAResumedRunComputesTheBitsOfOneThatNeverStopped snapshots a round in the middle, restores it into a new group and
// compares all weights, states and centers at the end.
func TestAResumedRunComputesTheBitsOfOneThatNeverStopped(t *testing.T) {
	for _, by := range averagings {
		for _, tau := range []int{1, 3} {
			for _, pipelines := range []int{1, 3} {
				if tau != tauOf(by, tau) {
					continue
				}
				t.Run(fmt.Sprintf("%s_tau%d_N%d", by, tau, pipelines), func(t *testing.T) {
					t.Parallel()
					resumed(t, &run{
						schedule: "afp", stages: 3, pipelines: pipelines, micros: 4, rounds: 9, clip: 0.05, tied: 2,
						by: by, tau: tau, jitter: 50 * time.Microsecond,
					})
				})
			}
		}
	}
}

func resumed(t *testing.T, r *run) {
	const at = 4
	var g *Group
	accepted := false
	r.change = func(c *Config) {
		c.Events.OnStarted = func() { _, accepted = g.Commit(at, false) }
	}
	g, err := New(r.config(t))
	if err != nil {
		t.Fatal(err)
	}
	if err := g.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.collect(g)
	if !accepted {
		t.Fatal("a snapshot was refused before training had begun")
	}
	whole := r.sequential(t)
	r.compare(t, whole)
	if len(r.snaps[at]) != r.stages {
		t.Fatalf("%d stages delivered round %d, want %d", len(r.snaps[at]), at, r.stages)
	}

	again := &run{
		schedule: r.schedule, stages: r.stages, pipelines: r.pipelines, micros: r.micros, rounds: r.rounds, clip: r.clip,
		tied: r.tied, by: r.by, tau: r.tau, across: r.across, jitter: r.jitter,
	}
	again.change = func(c *Config) {
		c.StartRound = at
		for k := range c.Stages {
			c.Stages[k].Restore = r.snaps[at][c.Stages[k].Index]
		}
	}
	again.prepare = func(f *fake, _ int) { f.params.Zero(); f.momentum[0] = 5 } // what is not restored shows
	again.train(t)
	again.compare(t, whole)
	for at, f := range again.fakes {
		if want := r.fakes[at].steps; !slices.Equal(f.steps, want) {
			t.Errorf("pipeline %d, stage %d: the last steps are %d of the run, by element, and without an interruption %d", at[0], at[1], f.steps, want)
		}
	}
}

func TestSnapshotsOfEveryRoundAreConsistentCuts(t *testing.T) {
	for _, by := range averagings {
		t.Run(by, func(t *testing.T) {
			t.Parallel()
			r := &run{schedule: "1f1b", stages: 2, pipelines: 3, micros: 3, rounds: 6, clip: 0.05, by: by, jitter: 50 * time.Microsecond}
			var g *Group
			r.change = func(c *Config) {
				c.Events.OnStarted = func() {
					for round := uint64(1); round <= 6; round++ {
						if earliest, ok := g.Commit(round, false); !ok {
							t.Errorf("round %d refused, earliest %d", round, earliest)
						}
					}
				}
			}
			g, err := New(r.config(t))
			if err != nil {
				t.Fatal(err)
			}
			if err := g.Run(t.Context()); err != nil {
				t.Fatal(err)
			}
			for round := uint64(1); round <= 6; round++ {
				s := (&run{schedule: "1f1b", stages: 2, pipelines: 3, micros: 3, rounds: round, clip: 0.05, by: by}).sequential(t)
				for k := range 2 {
					compareSnapshot(t, r.snaps[round][k], s, k, round)
				}
			}
		})
	}
}

func compareSnapshot(t *testing.T, got *Snapshot, s *sequential, k int, round uint64) {
	t.Helper()
	if got == nil {
		t.Errorf("round %d, stage %d: no snapshot", round, k)
		return
	}
	if got.Round != round || got.Count != len(s.fakes) || !slices.Equal(got.Center, s.centers[k]) {
		t.Errorf("round %d, stage %d: center %v of %d, want %v of %d", round, k, got.Center, got.Count, s.centers[k], len(s.fakes))
	}
	for j, v := range got.State {
		if j > 0 || !slices.Equal(v, s.kept[k]) {
			t.Errorf("round %d, stage %d: the method keeps %v, want %v", round, k, v, s.kept[k])
		}
	}
	for p, stages := range s.fakes {
		if len(got.Pipelines) <= p || got.Pipelines[p].Pipeline != p || got.Pipelines[p].Step != round || got.Pipelines[p].Updates != s.updates[k] ||
			!slices.Equal(got.Pipelines[p].Parameters, stages[k].params) || !slices.Equal(got.Pipelines[p].State[0], stages[k].momentum) {
			t.Errorf("round %d, stage %d: pipeline %d differs", round, k, p)
			continue
		}
		if x := got.Pipelines[p].Predicted; x != nil && !slices.Equal(x, stages[k].predicted) {
			t.Errorf("round %d, stage %d: pipeline %d predicts %v, want %v", round, k, p, x, stages[k].predicted)
		}
		if m := got.Pipelines[p].Message; m != nil && !slices.Equal(late(s, k, m), late(s, k, s.earlier[p][k])) {
			t.Errorf("round %d, stage %d: pipeline %d sent %v, want %v where it is late", round, k, p, m, s.earlier[p][k])
		}
	}
}

// late are the elements of a vector whose gradients are, which are those that the method keeps any of.
func late(s *sequential, k int, of flat.Host) (all flat.Host) {
	for i, kept := range s.kept[k] {
		if kept != 0 {
			all = append(all, of[i])
		}
	}
	return all
}

// TestACenterOnlySnapshotRestartsThePipelinesFromTheCenter also checks that the optimizer's count starts again with its state.
func TestACenterOnlySnapshotRestartsThePipelinesFromTheCenter(t *testing.T) {
	r := &run{schedule: "afp", stages: 2, pipelines: 2, micros: 2, rounds: 3, clip: 0.05}
	var g *Group
	r.change = func(c *Config) {
		c.CenterOnly = true
		c.Events.OnStarted = func() { g.Commit(2, true) }
	}
	g, err := New(r.config(t))
	if err != nil {
		t.Fatal(err)
	}
	if err := g.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	var hypers []uint64
	again := &run{schedule: "afp", stages: 2, pipelines: 2, micros: 2, rounds: 4, clip: 0.05}
	again.change = func(c *Config) {
		c.StartRound = 2
		c.Events.OnStarted = func() { g.Commit(4, false) }
		for k := range c.Stages {
			c.Stages[k].Restore = r.snaps[2][k]
			if n := len(r.snaps[2][k].Pipelines); n != 0 {
				t.Errorf("a center-only snapshot has %d pipelines", n)
			}
		}
	}
	again.prepare = func(f *fake, p int) {
		f.faults = func(op string, m stage.Micro) error {
			if op == "step" && p == 0 && f.index == 0 {
				hypers = append(hypers, m.Step)
			}
			return nil
		}
	}
	if g, err = New(again.config(t)); err != nil {
		t.Fatal(err)
	}
	if err := g.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	if want := []uint64{0, 1}; !slices.Equal(hypers, want) {
		t.Errorf("the optimizer was told steps %v after its state was reset, want %v", hypers, want)
	}
	p := again.snaps[4][0].Pipelines[0]
	if p.Step != 4 || p.Updates != 2 {
		t.Errorf("the next snapshot says step %d and %d updates, want 4 and 2", p.Step, p.Updates)
	}
}
