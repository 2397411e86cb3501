package tune

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/avgpipe/avgpipe/internal/trace"
	"github.com/avgpipe/avgpipe/internal/worker"
	"github.com/avgpipe/avgpipe/internal/worker/control"
	"github.com/avgpipe/avgpipe/tuner"
)

// turns is how often each candidate runs: alternating, so that a host that slows down meanwhile slows down all of them.
const turns = 2

// Confirm runs candidates for a few batches each and measures them. One whose run fails keeps the error as its reason.
func (s *Session) Confirm(ctx context.Context, best []tuner.Candidate) ([]tuner.Candidate, error) {
	results := make([][]worker.TrialResult, len(best))
	for range turns {
		for i := range best {
			c := &best[i]
			if c.Verdict == tuner.Fails {
				continue
			}
			s.step("run %s: %d pipelines, %d micro-batches, %d stages", c.Schedule, c.Pipelines, c.MicroBatches, c.Stages)
			config, err := Trial(&s.config.Request, c, max(s.config.Batches/turns, 1))
			if err != nil {
				return nil, err
			}
			r, err := s.bench.Run(ctx, config)
			if ctx.Err() != nil {
				return nil, fmt.Errorf("run the best candidates: %w", context.Cause(ctx))
			}
			if err != nil {
				c.Verdict, c.Reason, c.Measured = tuner.Fails, fmt.Sprintf("its run failed: %v", err), nil
				continue
			}
			results[i] = append(results[i], r)
		}
	}
	for i := range best {
		if best[i].Verdict != tuner.Fails {
			best[i].Measured = Measure(&best[i], results[i]...)
		}
	}
	return best, nil
}

// Trial is the run of a candidate for so many batches, after one that is not watched.
func Trial(r *control.TuneRequest, c *tuner.Candidate, batches int) (worker.TrialConfig, error) {
	plan, _, err := tuner.Plan(c)
	if err != nil {
		return worker.TrialConfig{}, err
	}
	j := resolved(&r.Job, tuner.Target{Stages: c.Stages, Threads: c.Threads}, c.Pipelines, c.MicroBatches)
	j.Schedule, j.Recompute = c.Schedule, c.Recompute
	if len(slices.Compact(slices.Clone(c.Recompute))) == 1 {
		j.Recompute = c.Recompute[:1]
	}
	return worker.TrialConfig{Job: *j, Plan: plan, Split: c.Split, Cores: r.Cores, WarmUp: 1, Batches: batches}, nil
}

// Measure sums up runs of one candidate, at least one, in the terms of its prediction.
func Measure(c *tuner.Candidate, runs ...worker.TrialResult) *tuner.Measurement {
	m := &tuner.Measurement{}
	m.Links = c.Predicted.Links
	var batches, means []float64
	for _, r := range runs {
		m.Batches += len(r.Batches)
		means = append(means, (r.End-r.Start).Seconds()/float64(len(r.Batches)))
		for _, b := range r.Batches {
			batches = append(batches, b.Seconds())
		}
	}
	m.BatchSeconds = median(means)
	m.SamplesPerSecond = c.Predicted.SamplesPerSecond * c.Predicted.BatchSeconds / m.BatchSeconds
	m.Spread = (quantile(batches, 0.9) - quantile(batches, 0.1)) / 2 / m.BatchSeconds
	if len(runs) > 1 { // pipelines take turns, so that batches differ regularly; runs should not
		m.Spread = (slices.Max(means) - slices.Min(means)) / 2 / m.BatchSeconds
	}
	m.Stages = stagesOf(c, runs, float64(m.Batches))
	return m
}

// stagesOf are the terms of each stage, of one pipeline and batch.
func stagesOf(c *tuner.Candidate, runs []worker.TrialResult, batches float64) []tuner.StageTerms {
	out := make([]tuner.StageTerms, len(c.Predicted.Stages))
	each := batches * float64(c.Pipelines)
	total := time.Duration(0)
	for s := range out {
		out[s].Device = c.Predicted.Stages[s].Device
	}
	for _, r := range runs {
		total += r.End - r.Start
		for _, e := range r.Events {
			took := (e.End - max(e.Start, r.Start)).Seconds() / each
			switch t := &out[e.Stage]; e.Kind { //nolint:exhaustive // what else is on the device is not the batch's
			case trace.Compute:
				t.ComputeSeconds += took
			case trace.Optimizer:
				t.OptimizerSeconds += took
			case trace.Average:
				t.AverageSeconds += took
			}
		}
		for s := range out {
			out[s].Busy += r.Devices[out[s].Device].Busy / float64(len(runs))
			memory := c.Predicted.Stages[s].Memory
			memory.Activations += r.Stages[s].AllocatedBytes - deviceBytes(memory) // the other parts have one length whatever the plan
			out[s].Memory = memory
		}
	}
	for s := range out {
		out[s].WaitSeconds = (1 - out[s].Busy) * total.Seconds() / batches
	}
	return out
}

// deviceBytes is the part of a stage's memory that is allocated on its device: all but the messages of links.
func deviceBytes(m tuner.Memory) int64 { return m.Total() - m.Boundaries }
