package profile

import (
	"context"
	"testing"
	"time"

	"github.com/avgpipe/avgpipe/internal/trace"
	"github.com/avgpipe/avgpipe/internal/worker"
	"github.com/avgpipe/avgpipe/job"
	"github.com/avgpipe/avgpipe/schedule"
	"github.com/avgpipe/avgpipe/stage"
	"github.com/avgpipe/avgpipe/tuner"
)

// slowed makes the passes of some runs of two pipelines take three times as long, as a busy host does.
type slowed struct {
	bench
	runs     int // of two pipelines yet
	disturbs func(run int) bool
}

func (s *slowed) Run(ctx context.Context, c worker.TrialConfig) (worker.TrialResult, error) {
	r, err := s.bench.Run(ctx, c)
	if err != nil || c.Job.Pipelines != 2 {
		return r, err
	}
	if s.runs++; s.disturbs(s.runs) {
		for i := range r.Spans {
			r.Spans[i].Start = r.Spans[i].End - 3*(r.Spans[i].End-r.Spans[i].Start)
		}
	}
	return r, nil
}

// profileBeside profiles a job of one size on emulated devices, whose passes take what they are told to.
func profileBeside(t *testing.T, disturbs func(run int) bool) (*tuner.Profile, int) {
	t.Helper()
	r := request(t, emulate(0))
	r.Spec.Job.Pipelines, r.Spec.Job.MicroBatches = job.Auto, 2
	r.Spec.Job.Devices.Emulated.FLOPs = []float64{2e8, 1e8} // slow, so that what the host does beside counts little
	s, err := Open(t.Context(), Config{Request: r})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}()
	beside := &slowed{bench: s.bench, disturbs: disturbs}
	s.bench = beside
	space, err := s.Space()
	if err != nil {
		t.Fatal(err)
	}
	notes, err := s.Profile(t.Context(), &space)
	if err != nil || len(notes) > 0 {
		t.Fatal(notes, err)
	}
	return space.Targets[0].Profile, beside.runs
}

// A reading of two pipelines that something disturbed is made once more, and the undisturbed one counts.
func TestADisturbedReadingOfTwoPipelinesIsRepeated(t *testing.T) {
	p, runs := profileBeside(t, func(run int) bool { return run == 1 })
	if contention := p.Contention.Values; runs != 2 || len(contention) != 1 || contention[0] > 1.5 {
		t.Errorf("%d runs of two pipelines, contention %v; want 2, and near to 1", runs, contention)
	}
}

// What both readings say is so.
func TestContentionThatStaysIsBelieved(t *testing.T) {
	p, runs := profileBeside(t, func(int) bool { return true })
	if contention := p.Contention.Values; runs != 2 || len(contention) != 1 || contention[0] < 2 {
		t.Errorf("%d runs of two pipelines, contention %v; want 2, and near to 3", runs, contention)
	}
}

// played gives results that are known.
type played struct {
	results []worker.TrialResult
}

func (p *played) Run(context.Context, worker.TrialConfig) (r worker.TrialResult, _ error) {
	r, p.results = p.results[0], p.results[1:]
	return r, nil
}

// The fastest of runs that scatter counts, not the one that scatters least.
func TestTheFastestOfScatteredReadingsCounts(t *testing.T) {
	times := func(scale float64, spread ...float64) worker.TrialResult {
		var r worker.TrialResult
		for _, s := range spread {
			r.Spans = append(r.Spans, trace.Span{Kind: trace.Compute, Work: schedule.Forward, End: time.Duration(scale * s * float64(time.Second))})
		}
		return r
	}
	s := &Session{config: Config{}.withDefaults()}
	s.bench = &played{results: []worker.TrialResult{times(1, 1, 1.5, 2), times(0.7, 1, 1.5, 2), times(2, 1, 1.3, 1.6)}}
	r, err := s.repeatIfNoisy(t.Context(), reading{kind: merged, pipelines: 1})
	if err != nil {
		t.Fatal(err)
	}
	if got := pace(passTimes(r.Spans)); got < 1.04 || got > 1.06 {
		t.Errorf("a run with a median of %v s counts, want that of 1.05", got)
	}
}

// Candidates are watched for as long as it takes to see more than what disturbs them.
func TestShortBatchesAreWatchedForMore(t *testing.T) {
	for _, c := range []struct {
		config  Config
		seconds float64
		want    int
	}{
		{Config{}, 1, 8},
		{Config{}, 0.05, 8},
		{Config{}, 0.004, 63},
		{Config{}, 1e-9, mostBatches},
		{Config{}, 0, 8},
		{Config{Watch: -1}, 0.004, 8},
		{Config{Batches: 1, Watch: time.Second}, 0.3, 4},
	} {
		s := &Session{config: c.config.withDefaults()}
		if got := s.batches(&tuner.Candidate{Predicted: tuner.Prediction{BatchSeconds: c.seconds}}); got != c.want {
			t.Errorf("%+v: %d batches of %v s, want %d", c.config, got, c.seconds, c.want)
		}
	}
}

// So are the sizes of a profile, by what their layers took.
func TestSmallMicroBatchesAreProfiledForMore(t *testing.T) {
	const second = time.Second
	for _, c := range []struct {
		micro float64 // seconds on all devices
		watch time.Duration
		want  int
	}{{1, second, 3}, {0.04, second, 7}, {0.02, second, 13}, {1e-6, second, mostProfiled}, {0, second, 3}, {0.02, -1, 3}} {
		m := &measurement{batch: 8, shares: make([]stage.Range, 2), layers: newMeasured(1)}
		if c.micro > 0 {
			m.layers.passes[schedule.Forward][0][2] = []float64{c.micro / 4}
			m.layers.passes[schedule.Backward][0][2] = []float64{c.micro * 3 / 4}
		}
		if got := m.batches(2, c.watch); got != c.want {
			t.Errorf("micro-batches of %v s: %d batches, want %d", c.micro, got, c.want)
		}
	}
}

// TestCandidatesRunOnceWhereASecondRunDecidesNothing: all others are outpaced, or all are alike.
func TestCandidatesRunOnceWhereASecondRunDecidesNothing(t *testing.T) {
	candidate := func(rate, predicted float64) tuner.Candidate {
		m := &tuner.Measurement{}
		m.SamplesPerSecond, m.BatchSeconds = rate, 1/rate
		return tuner.Candidate{Measured: m, Predicted: tuner.Prediction{BatchSeconds: 1 / predicted}}
	}
	if only := []tuner.Candidate{candidate(100, 100)}; (&Session{config: Config{Outpaced: 1}.withDefaults()}).needless(1, &only[0], only) {
		t.Error("a candidate that is to run as often as others does not")
	}
	s := &Session{config: Config{}.withDefaults()}
	failed := tuner.Candidate{Verdict: tuner.Fails}
	for i, c := range []struct {
		all  []tuner.Candidate
		want bool // the first runs no more
	}{
		{[]tuner.Candidate{candidate(100, 100), candidate(85, 85), failed}, true},
		{[]tuner.Candidate{candidate(100, 100), candidate(95, 95)}, false},
		{[]tuner.Candidate{candidate(98, 98), candidate(100, 100), failed}, true}, // little is lost, whichever wins
		{[]tuner.Candidate{candidate(98, 130), candidate(100, 100)}, false},
		{[]tuner.Candidate{candidate(100, 130), candidate(85, 85)}, false}, // it was disturbed
		{[]tuner.Candidate{candidate(100, 100), candidate(70, 99)}, false}, // the other was
	} {
		if got := s.needless(1, &c.all[0], c.all); got != c.want {
			t.Errorf("case %d: a second run is needless: %v", i, got)
		}
	}
}

// A third repeat is for who could still win by it.
func TestOnlyWhoCouldStillWinRunsAgain(t *testing.T) {
	candidate := func(rate, spread, predicted float64) tuner.Candidate {
		m := &tuner.Measurement{Spread: spread}
		m.SamplesPerSecond, m.BatchSeconds = rate, 1/rate
		return tuner.Candidate{Measured: m, Predicted: tuner.Prediction{BatchSeconds: 1 / predicted}}
	}
	all := []tuner.Candidate{
		candidate(100, 0.1, 100), candidate(97, 0.1, 97), candidate(97, 0.01, 97), candidate(94, 0.1, 94),
		candidate(50, 0.1, 99), // both repeats of it were disturbed, it seems
	}
	for i, want := range []bool{true, false, true, true, false} {
		if got := decided(&all[i], all); got != want {
			t.Errorf("candidate %d is decided: %v", i, got)
		}
	}
}
