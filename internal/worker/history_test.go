package worker

import (
	"math"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/avgpipe/avgpipe/internal/history"
	"github.com/avgpipe/avgpipe/internal/trace"
	"github.com/avgpipe/avgpipe/internal/worker/control"
	"github.com/avgpipe/avgpipe/job"
	"github.com/avgpipe/avgpipe/pipeline"
)

// recorded reads a job's history as it holds, by kind.
func recorded(t *testing.T, a control.Assignment) map[history.Kind][]history.Record {
	t.Helper()
	records, damaged, err := history.Read(control.HistoryPath(a.Dir))
	if err != nil || damaged > 0 {
		t.Fatalf("read the history: %d damaged, %v", damaged, err)
	}
	by := map[history.Kind][]history.Record{}
	for _, r := range history.Live(records) {
		by[r.Kind] = append(by[r.Kind], r)
	}
	return by
}

func rounds(records []history.Record) []uint64 {
	var all []uint64
	for _, r := range records {
		all = append(all, r.Round)
	}
	return all
}

// A worker that resumes from round 4 after one that died past it goes on there: every step is recorded once, with the values of
// a run that nothing disturbed.
func TestHistoryGoesOnFromTheRoundThatIsResumed(t *testing.T) {
	a := setup(t, 2, 2, func(j *job.Job) { j.Train.EvalEvery = 2; j.Optimizer.Warmup = 4 })
	half := train(t, a, func(tr *trainer) {
		if answer := tr.Commit(control.CommitRequest{Generation: 1, Round: 4, Stop: true}); !answer.Accepted {
			t.Fatalf("the commit of round 4 was refused: %+v", answer)
		}
	})
	whole := a
	whole.Generation, whole.Restore = 2, restoreOf(half)
	train(t, whole, nil)
	want := recorded(t, whole)
	// The worker of generation 3 finds what that of generation 2 did after round 4, and a torn write.
	f, err := os.OpenFile(control.HistoryPath(a.Dir), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteString("torn"); err != nil {
		t.Fatal(err)
	}
	f.Close()
	again := a
	again.Generation, again.Restore = 3, restoreOf(half)
	train(t, again, nil)
	got := recorded(t, again)

	if starts := got[history.Start]; !slices.Equal(rounds(starts), []uint64{0, 4, 4}) || starts[2].Generation != 3 {
		t.Errorf("starts are %+v; want those of three generations, from rounds 0, 4, 4", starts)
	}
	if r := rounds(got[history.Evaluation]); !slices.Equal(r, []uint64{0, 2, 4, 6, 8}) {
		t.Errorf("evaluated rounds are %v", r)
	}
	if r := rounds(got[history.Commit]); !slices.Equal(r, []uint64{4, 8}) {
		t.Errorf("committed rounds are %v", r)
	}
	steps := got[history.Step]
	if len(steps) != 8 {
		t.Fatalf("%d steps are recorded, want 8", len(steps))
	}
	for s, r := range steps {
		if r.First != uint64(s) || r.Last != uint64(s) || (r.Generation == 3) != (s >= 4) {
			t.Errorf("step %d is %+v", s, r)
		}
		loss, norm, rate := r.Values[history.Loss], r.Values[history.GradientNorm], r.Values[history.LearningRate]
		if before := want[history.Step][s].Values[history.Loss]; loss != before {
			t.Errorf("step %d has loss %v, %v in the run before", s, loss, before)
		}
		if !(loss.Min <= loss.Mean && loss.Mean <= loss.Max && loss.Min < loss.Max) || !(norm.Mean > 0) {
			t.Errorf("step %d: loss %+v, norm %+v: two pipelines differ, and their mean lies between", s, loss, norm)
		}
		if peak := 3e-3 * math.Min(float64(s+1)/4, 1); math.Abs(rate.Mean-peak) > 1e-9 {
			t.Errorf("step %d has rate %v, want %v", s, rate.Mean, peak)
		}
	}
}

// A job may be done as soon as its worker has finished: the history says all by then.
func TestTheHistoryIsWholeOnceTrainingHasFinished(t *testing.T) {
	a := setup(t, 2, 2, func(j *job.Job) { j.Train.EvalEvery = 2 })
	train(t, a, func(tr *trainer) {
		last := control.Event{}
		for last.Kind != control.Finished {
			events, err := tr.events.After(t.Context(), last.Seq)
			if err != nil {
				t.Fatal(err)
			}
			last = events[len(events)-1]
		}
		got := recorded(t, a)
		if n, r := len(got[history.Step]), rounds(got[history.Evaluation]); n != 8 || !slices.Equal(r, []uint64{0, 2, 4, 6, 8}) {
			t.Errorf("%d steps and evaluations of rounds %v are recorded", n, r)
		}
	})
}

// A history that cannot be written is a warning in the log, and nothing else changes.
func TestTrainingDoesNotDependOnItsHistory(t *testing.T) {
	a := setup(t, 1, 1, nil)
	if err := os.WriteFile(control.HistoryPath(a.Dir), []byte("not a history"), 0o600); err != nil {
		t.Fatal(err)
	}
	if o := train(t, a, nil); o.status.Progress.Step != 8 {
		t.Errorf("it trained to step %d, %v", o.status.Progress.Step, o.err)
	}
	if text, err := os.ReadFile(control.HistoryPath(a.Dir)); err != nil || string(text) != "not a history" {
		t.Errorf("the file is now %q, %v", text, err)
	}
}

// The first steps of pipelines come within microseconds of each other, after a time that nobody knows: they have no rate.
func TestTheRateBeginsOnceEachPipelineHasDoneAStep(t *testing.T) {
	p, began := &progress{steps: make([]uint64, 2), rate: trace.NewRate(window), begun: map[int]bool{}, targets: 1000}, time.Now()
	for i, want := range []float64{0, 0, 1000, 2000} { // two pipelines in turn, a second after the other two
		at := began.Add(time.Duration(i/2)*time.Second + time.Duration(i%2)*time.Nanosecond)
		got := p.step(pipeline.StepReport{Pipeline: i % 2, Step: uint64(i / 2)}, at)
		if math.Abs(got-want) > 1 {
			t.Errorf("after report %d: %v tokens/s, want %v", i, got, want)
		}
	}
}
