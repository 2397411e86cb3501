package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/avgpipe/avgpipe/bench/internal/report"
	"github.com/avgpipe/avgpipe/internal/profile"
	"github.com/avgpipe/avgpipe/job"
	"github.com/avgpipe/avgpipe/tuner"
)

// choice tunes pipelines and micro-batches, then runs every one of them, and compares.
func choice(ctx context.Context, o options, dir string) (figures []report.Figure, err error) {
	r, err := request("small gpt2", dir)
	if err != nil {
		return nil, err
	}
	r.Spec.Job.Pipelines, r.Spec.Job.MicroBatches = job.Auto, job.Auto
	chosen, err := profile.Tune(ctx, config(r, o))
	if err != nil {
		return nil, err
	}
	c := config(r, o)
	c.Repeats, c.Outpaced, c.Watch = 2, 1, -1 // all for as many batches, however long these are
	s, err := profile.Open(ctx, c)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	all, err := everything(ctx, s)
	if err != nil {
		return nil, err
	}
	began := time.Now()
	ran, err := s.Confirm(ctx, all)
	if err != nil {
		return nil, err
	}
	took := time.Since(began).Seconds()
	for _, c := range ran {
		if c.Measured == nil {
			return nil, fmt.Errorf("run of N=%d M=%d: %s", c.Pipelines, c.MicroBatches, c.Reason)
		}
		fmt.Fprintf(os.Stderr, "N=%d M=%d: %.1f samples/s, predicted %.1f\n",
			c.Pipelines, c.MicroBatches, c.Measured.SamplesPerSecond, predicted(chosen, c))
	}
	own, best, rates, err := playOff(ctx, o, s, chosen.Chosen, ran)
	if err != nil {
		return nil, err
	}
	conditions := map[string]any{
		"model": "gpt2, 4 layers of width 128", "batch": r.Spec.Job.Train.Batch, "runs": len(ran), "batches": o.batches,
		"chosen": combination{chosen.Chosen.Pipelines, chosen.Chosen.MicroBatches, chosen.Chosen.Schedule}.String(),
		"best":   combination{best.Pipelines, best.MicroBatches, best.Schedule}.String(),
		"tune_s": chosen.Took, "exhaustive_s": took, "candidates": chosen.Considered, "play_off_samples_per_s": rates,
	}
	return []report.Figure{
		{
			Metric: "throughput of the chosen configuration over the best", Unit: "of 1",
			Value: own, Bar: 0.95, Aim: 0.98, Conditions: conditions,
		},
		{
			Metric: "time of tuning over that of running everything", Unit: "of 1",
			Value: chosen.Took / took, Bar: 0.25, Aim: 0.1, AtMost: true, Conditions: conditions,
		},
	}, nil
}

// predicted is the throughput that tuning predicted for a configuration; 0 if it did not look at it.
func predicted(r *tuner.Report, of tuner.Candidate) float64 {
	for _, c := range append([]tuner.Candidate{r.Chosen}, r.RunnersUp...) {
		if c.Pipelines == of.Pipelines && c.MicroBatches == of.MicroBatches {
			return c.Predicted.SamplesPerSecond
		}
	}
	return 0
}

// How the best of everything is found among runs that scatter as much as they differ.
const (
	finalists = 3 // the fastest of everything, beside the chosen one
	playOffs  = 3 // times the rounds of the other parts: in each all of them run alternately
)

// playOff runs the chosen candidate and the fastest of all alternately, and returns the throughput of the chosen over that of the best,
// both medians. The fastest of twenty single runs is the luckiest as well, so those runs only say who takes part.
func playOff(ctx context.Context, o options, s *profile.Session, chosen tuner.Candidate, all []tuner.Candidate) (ratio float64, best tuner.Candidate, rates map[string]float64, err error) {
	same := func(c tuner.Candidate) bool {
		return c.Pipelines == chosen.Pipelines && c.MicroBatches == chosen.MicroBatches
	}
	all = slices.Clone(all)
	slices.SortFunc(all, func(a, b tuner.Candidate) int {
		return cmp.Compare(b.Measured.SamplesPerSecond, a.Measured.SamplesPerSecond)
	})
	players := []tuner.Candidate{chosen}
	for _, c := range all {
		if !same(c) && len(players) <= finalists {
			players = append(players, c)
		}
	}
	seen := make([][]float64, len(players))
	for range playOffs * o.rounds {
		ran, err := s.Confirm(ctx, slices.Clone(players))
		if err != nil {
			return 0, best, nil, err
		}
		for i, c := range ran {
			if c.Measured == nil {
				return 0, best, nil, fmt.Errorf("run of N=%d M=%d again: %s", c.Pipelines, c.MicroBatches, c.Reason)
			}
			seen[i] = append(seen[i], c.Measured.SamplesPerSecond)
		}
	}
	rates = make(map[string]float64, len(players))
	first := 0
	for i, c := range players {
		rates[fmt.Sprintf("N=%d M=%d", c.Pipelines, c.MicroBatches)] = report.Median(seen[i])
		if report.Median(seen[i]) > report.Median(seen[first]) {
			first = i
		}
	}
	return report.Median(seen[0]) / report.Median(seen[first]), players[first], rates, nil
}

// everything is all of N <= 4 and M in the divisors of the batch, cut and planned by a profile as the chosen one is. The profile's
// time is not counted as a part of the search.
func everything(ctx context.Context, s *profile.Session) ([]tuner.Candidate, error) {
	out, err := search(ctx, s, 1, 2, 3, 4)
	if err != nil {
		return nil, err
	}
	all := slices.Concat(out.Ranked, out.Refused)
	slices.SortFunc(all, func(a, b tuner.Candidate) int {
		return (a.Pipelines-b.Pipelines)*1000 + a.MicroBatches - b.MicroBatches
	})
	for i := range all {
		all[i].Verdict = ""
	}
	return all, nil
}

// busy runs two pipelines over two devices of a core each.
func busy(ctx context.Context, o options, dir string) (figures []report.Figure, err error) {
	r, err := request("gpt2", dir)
	if err != nil {
		return nil, err
	}
	r.Spec.Job.Pipelines, r.Spec.Job.MicroBatches = 2, 4
	c := config(r, o)
	c.Batches = 10 * o.batches
	s, err := profile.Open(ctx, c)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	out, err := search(ctx, s)
	if err != nil {
		return nil, err
	}
	ran, err := s.Confirm(ctx, out.Best(1))
	if err != nil {
		return nil, err
	}
	if ran[0].Measured == nil {
		return nil, errors.New(ran[0].Reason)
	}
	least := 1.0
	for _, t := range ran[0].Measured.Stages {
		least = min(least, t.Busy)
	}
	return []report.Figure{{
		Metric: "busy time of the idler of two devices, two pipelines", Unit: "of 1", Value: least, Bar: 0.95, Aim: 0.98,
		Conditions: map[string]any{"model": "gpt2, 6 layers of width 192", "batches": c.Batches, "predicted": ran[0].Predicted.Stages[0].Busy},
	}}, nil
}
