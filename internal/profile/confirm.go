package profile

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"

	"github.com/avgpipe/avgpipe/internal/spec"
	"github.com/avgpipe/avgpipe/internal/trace"
	"github.com/avgpipe/avgpipe/internal/words"
	"github.com/avgpipe/avgpipe/internal/worker"
	"github.com/avgpipe/avgpipe/internal/worker/control"
	"github.com/avgpipe/avgpipe/tuner"
)

// repeats is how often each candidate runs. Candidates alternate, so that a host that slows down slows down all of them. A candidate
// runs again, up to Config.Repeats times, if it could still win: its two fastest runs differ by more than noisy, which says that
// something else took the host's time, and the fastest candidate is ahead by no more than that.
const (
	repeats = 2
	noisy   = 0.05
)

// Confirm runs candidates for a few batches each and measures them. One whose run fails keeps the error as its reason.
func (s *Session) Confirm(ctx context.Context, best []tuner.Candidate) ([]tuner.Candidate, error) {
	results := make([][]worker.TrialResult, len(best))
	s.left(repeats * len(best))
	for repeat := range s.config.Repeats {
		for i := range best {
			c := &best[i]
			if s.needless(repeat, c, best) {
				if repeat < repeats {
					s.drop()
				}
				continue
			}
			s.step(min(repeat, repeats-1), "run %s: %s, %s, %s", c.Schedule,
				words.Count(c.Pipelines, "pipeline"), words.Count(c.MicroBatches, "micro-batch"), words.Count(c.Devices, "stage"))
			r, err := s.trial(ctx, c)
			if ctx.Err() != nil {
				return nil, fmt.Errorf("run the best candidates: %w", context.Cause(ctx))
			}
			if err != nil {
				c.Verdict, c.Reason, c.Measured = tuner.Fails, fmt.Sprintf("its run failed: %v", err), nil
				continue
			}
			results[i] = append(results[i], r)
			c.Measured = Measure(c, results[i]...)
		}
	}
	return best, nil
}

// needless reports whether one more run of a candidate would not change who wins.
func (s *Session) needless(repeat int, c *tuner.Candidate, all []tuner.Candidate) bool {
	switch {
	case c.Verdict == tuner.Fails:
		return true
	case repeat == 0:
		return false
	}
	by := s.config.Outpaced
	return outpaced(c, all, by) || unrivalled(c, all, by) || by < 1 && alike(all) || repeat >= repeats && decided(c, all)
}

// alike reports whether all candidates are as fast as each other, as far as runs can tell, and none was disturbed: whichever wins, little is lost.
func alike(all []tuner.Candidate) bool {
	for i := range all {
		if c := &all[i]; c.Measured != nil && (c.Measured.SamplesPerSecond < (1-noisy/2)*fastest(all) || disturbed(c)) {
			return false
		}
	}
	return true
}

// RunOnce runs a candidate one time and measures it.
func (s *Session) RunOnce(ctx context.Context, c tuner.Candidate) (tuner.Candidate, error) {
	r, err := s.trial(ctx, &c)
	if err != nil {
		return c, err
	}
	c.Measured = Measure(&c, r)
	return c, nil
}

// trial runs a candidate, if that much memory is free now.
func (s *Session) trial(ctx context.Context, c *tuner.Candidate) (r worker.TrialResult, err error) {
	config, err := Trial(&s.config.Request, c, s.batches(c))
	if err != nil {
		return r, err
	}
	need, free := c.Predicted.Bytes(), availableMemory()
	if free > 0 && need > free && s.config.Request.Spec.Job.Devices.InHost() {
		return r, fmt.Errorf("it needs %s of memory, and %s are free now", words.Bytes(need), words.Bytes(free))
	}
	return s.bench.Run(ctx, config)
}

// mostBatches bounds how long a run is watched when batches are predicted to take next to no time.
const mostBatches = 200

// batches is how many batches of a candidate a run is watched for.
func (s *Session) batches(c *tuner.Candidate) int {
	n := max(s.config.Batches/repeats, 1)
	if c.Predicted.BatchSeconds <= 0 || s.config.Watch <= 0 {
		return n
	}
	return max(n, int(min(mostBatches, math.Ceil(s.config.Watch.Seconds()/c.Predicted.BatchSeconds))))
}

// decided reports whether a third run is of no use: the candidate leads, its runs are alike, or it is too far behind.
func decided(c *tuner.Candidate, all []tuner.Candidate) bool {
	return c.Measured.Spread <= noisy/2 || c.Measured.SamplesPerSecond >= fastest(all) || outpaced(c, all, noisy)
}

// unrivalled reports whether all other candidates are too far behind to run again, so that another run of this one decides nothing.
func unrivalled(c *tuner.Candidate, all []tuner.Candidate, by float64) bool {
	for i := range all {
		if other := &all[i]; other != c && other.Measured != nil && !outpaced(other, all, by) {
			return false
		}
	}
	return by < 1 && !disturbed(c)
}

// fastest is the highest throughput that was measured.
func fastest(all []tuner.Candidate) (rate float64) {
	for i := range all {
		if m := all[i].Measured; m != nil {
			rate = max(rate, m.SamplesPerSecond)
		}
	}
	return rate
}

// outpaced reports whether another candidate was faster by more than a part of its throughput, as predicted: see disturbed.
func outpaced(c *tuner.Candidate, all []tuner.Candidate, by float64) bool {
	return c.Measured.SamplesPerSecond < (1-by)*fastest(all) && !disturbed(c)
}

// disturbed reports whether a candidate took so much longer than predicted that something else may have taken the host's time in
// each of its runs so far.
func disturbed(c *tuner.Candidate) bool {
	return c.Measured.BatchSeconds > (1+bound)*c.Predicted.BatchSeconds
}

// Trial is the run of a candidate for so many batches, after warmUp that are not watched.
func Trial(r *control.TuneRequest, c *tuner.Candidate, batches int) (worker.TrialConfig, error) {
	plan, _, err := tuner.Plan(c)
	if err != nil {
		return worker.TrialConfig{}, err
	}
	j := spec.With(&r.Spec.Job, c)
	return worker.TrialConfig{
		Job: j, Plan: plan, Split: c.Split, Cores: r.Cores, WarmUp: warmUp(c.Pipelines), Batches: batches, CoolDown: min(c.Pipelines-1, 1),
	}, nil
}

// Measure sums up runs of one candidate, at least one, in the terms of its prediction. What disturbs a run only ever adds time, so
// it is the fastest run that counts; Spread is half of the distance to the second.
func Measure(c *tuner.Candidate, runs ...worker.TrialResult) *tuner.Measurement {
	period := func(r worker.TrialResult) float64 { return (r.End - r.Start).Seconds() / r.Worked }
	runs = slices.SortedFunc(slices.Values(runs), func(a, b worker.TrialResult) int { return cmp.Compare(period(a), period(b)) })
	fastest := runs[0]
	m := &tuner.Measurement{Batches: len(fastest.Batches)}
	m.Links = c.Predicted.Links
	m.BatchSeconds = period(fastest)
	m.SamplesPerSecond = c.Predicted.SamplesPerSecond * c.Predicted.BatchSeconds / m.BatchSeconds
	if len(runs) > 1 {
		m.Spread = (period(runs[1]) - m.BatchSeconds) / 2 / m.BatchSeconds
	}
	m.Stages = stagesOf(c, fastest)
	return m
}

// stagesOf are the terms of each stage, of one pipeline and batch.
func stagesOf(c *tuner.Candidate, r worker.TrialResult) []tuner.StageTerms {
	out := make([]tuner.StageTerms, len(c.Predicted.Stages))
	batches := r.Worked
	for _, e := range r.Spans {
		took := (e.End - max(e.Start, r.Start)).Seconds() / batches / float64(c.Pipelines)
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
		t := &out[s]
		t.Device = r.Stages[s].Device
		t.Busy = r.Devices[t.Device].Busy
		t.WaitSeconds = (1 - t.Busy) * (r.End - r.Start).Seconds() / batches
		t.Memory.Allocated = r.Stages[s].AllocatedBytes
	}
	return out
}
