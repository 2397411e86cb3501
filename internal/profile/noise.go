package profile

import (
	"context"

	"github.com/avgpipe/avgpipe/internal/trace"
	"github.com/avgpipe/avgpipe/internal/words"
	"github.com/avgpipe/avgpipe/internal/worker"
	"github.com/avgpipe/avgpipe/schedule"
	"github.com/avgpipe/avgpipe/tuner"
)

// When a reading is repeated: the slower quarter of passes takes longer than the faster one by more than noisyRatio. Seen on a
// quiet host are 1.02 to 1.1, beside a process that keeps a core busy 1.5 and more.
const (
	noisyRuns  = 3
	noisyRatio = 1.2
)

// likelyContention is how many times as long passes take with two pipelines as with one, or the reverse, before one of the two
// readings is taken to be disturbed. Seen on a quiet host are 0.9 to 1.2.
const likelyContention = 1.3

// repeatIfNoisy runs a reading, and again where passes of one kind scatter as they do when something else takes the host's time. Of several
// runs the fastest counts: what disturbs a run only adds time. Passes of pipelines that share devices scatter by themselves, with
// what the others do at the moment: such a reading runs once, and readContended looks at what it says.
func (s *Session) repeatIfNoisy(ctx context.Context, r reading) (best worker.TrialResult, err error) {
	for repeat := range noisyRuns {
		s.step(0, "measure %s on %s: micro-batches of %d, %s",
			r.kind, words.Count(int(r.trial.Job.Stages), "device"), r.samples, words.Count(r.pipelines, "pipeline"))
		result, err := s.bench.Run(ctx, r.trial)
		if err != nil {
			if repeat > 0 && ctx.Err() == nil {
				break
			}
			return best, err
		}
		times := passTimes(result.Spans)
		if repeat == 0 || pace(times) < pace(passTimes(best.Spans)) {
			best = result
		}
		if scatter(times) <= noisyRatio || r.pipelines > 1 {
			break
		}
	}
	return best, nil
}

// readContended runs the reading of two pipelines that belongs to one of a pipeline alone, which has been read. Where passes of one take
// unlikely much longer than those of the other, that one runs once more, and its faster run counts.
func (s *Session) readContended(ctx context.Context, m *measurement, alone, together reading, notes *[]string) error {
	if err := s.read(ctx, m, together, notes); err != nil {
		return err
	}
	n := alone.samples
	one, two := m.stages.total(n), m.contended.total(n)
	if two == 0 || max(one/two, two/one) < likelyContention {
		return nil
	}
	slower := together
	if one > two {
		slower = alone
	}
	again := &measurement{profile: &tuner.Profile{}, stages: newMeasured(len(m.shares)), contended: newMeasured(len(m.shares))}
	if err := s.read(ctx, again, slower, notes); err != nil {
		return err
	}
	m.stages.takeFaster(n, again.stages)
	m.contended.takeFaster(n, again.contended)
	return nil
}

// pass is a kind of work on a stage.
type pass struct {
	stage int
	work  schedule.Kind
}

// passTimes are the times of all passes, in seconds.
func passTimes(spans []trace.Span) map[pass][]float64 {
	times := map[pass][]float64{}
	for _, e := range spans {
		if e.Kind == trace.Compute {
			times[pass{e.Stage, e.Work}] = append(times[pass{e.Stage, e.Work}], (e.End - e.Start).Seconds())
		}
	}
	return times
}

// pace is what one pass of each stage and kind takes, in sum of medians.
func pace(times map[pass][]float64) float64 {
	sum := 0.0
	for _, of := range times {
		sum += median(of)
	}
	return sum
}

// scatter is by how much the passes of one stage and kind differ: their third quartile over the first, in the middle of all stages
// and kinds.
func scatter(times map[pass][]float64) float64 {
	var all []float64
	for _, of := range times {
		if first := quantile(of, 0.25); first > 0 {
			all = append(all, quantile(of, 0.75)/first)
		}
	}
	return median(all)
}
