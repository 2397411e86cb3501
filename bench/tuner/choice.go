package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/avgpipe/avgpipe/bench/internal/report"
	"github.com/avgpipe/avgpipe/internal/tune"
	"github.com/avgpipe/avgpipe/job"
	"github.com/avgpipe/avgpipe/tuner"
)

// choice tunes pipelines and micro-batches, then runs every one of them, and compares.
func choice(ctx context.Context, o options, dir string) (figures []report.Figure, err error) {
	r, err := request("small gpt2", dir)
	if err != nil {
		return nil, err
	}
	r.Job.Pipelines, r.Job.MicroBatches = job.Auto, job.Auto
	chosen, err := tune.Tune(ctx, config(r, o))
	if err != nil {
		return nil, err
	}
	c := config(r, o)
	c.Turns = 2
	s, err := tune.Open(ctx, c)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	all, err := everything(s)
	if err != nil {
		return nil, err
	}
	began := time.Now()
	ran, err := s.Confirm(ctx, all)
	if err != nil {
		return nil, err
	}
	took := time.Since(began).Seconds()
	best, own := ran[0], 0.0
	for _, c := range ran {
		if c.Measured == nil {
			return nil, fmt.Errorf("run of N=%d M=%d: %s", c.Pipelines, c.MicroBatches, c.Reason)
		}
		fmt.Fprintf(os.Stderr, "N=%d M=%d: %.1f samples/s\n", c.Pipelines, c.MicroBatches, c.Measured.SamplesPerSecond)
		if c.Measured.SamplesPerSecond > best.Measured.SamplesPerSecond {
			best = c
		}
		if c.Pipelines == chosen.Chosen.Pipelines && c.MicroBatches == chosen.Chosen.MicroBatches {
			own = c.Measured.SamplesPerSecond
		}
	}
	if own == 0 { // more pipelines than the search through everything has: in the terms of its own run
		own = chosen.Chosen.Measured.SamplesPerSecond
	}
	conditions := map[string]any{
		"model": "gpt2, 4 layers of width 128", "batch": r.Job.Train.Batch, "runs": len(ran), "batches": o.batches,
		"chosen": combination{chosen.Chosen.Pipelines, chosen.Chosen.MicroBatches, chosen.Chosen.Schedule}.String(),
		"best":   combination{best.Pipelines, best.MicroBatches, best.Schedule}.String(),
		"tune_s": chosen.Took, "exhaustive_s": took, "candidates": chosen.Considered,
	}
	return []report.Figure{
		{
			Bench: "tuner", Metric: "throughput of the chosen configuration over the best", Unit: "of 1",
			Value: own / best.Measured.SamplesPerSecond, Bar: 0.95, Aim: 0.98, Conditions: conditions,
		},
		{
			Bench: "tuner", Metric: "time of tuning over that of running everything", Unit: "of 1",
			Value: chosen.Took / took, Bar: 0.25, Aim: 0.1, AtMost: true, Conditions: conditions,
		},
	}, nil
}

// everything is all of N <= 4 and M in the divisors of the batch.
func everything(s *tune.Session) ([]tuner.Candidate, error) {
	space, err := s.Space()
	if err != nil {
		return nil, err
	}
	space.Pipelines = []int{1, 2, 3, 4}
	s.Guess(&space) // what is run is not what was predicted to be good
	out, err := tuner.Search(space)
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
	r.Job.Pipelines, r.Job.MicroBatches = 2, 4
	c := config(r, o)
	c.Batches = 10 * o.batches
	s, err := tune.Open(ctx, c)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	space, err := s.Space()
	if err != nil {
		return nil, err
	}
	if _, err := s.Profile(ctx, &space); err != nil {
		return nil, err
	}
	out, err := tuner.Search(space)
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
		Bench: "tuner", Metric: "busy time of the idler of two devices, two pipelines", Unit: "of 1", Value: least, Bar: 0.95, Aim: 0.98,
		Conditions: map[string]any{"model": "gpt2, 6 layers of width 192", "batches": c.Batches, "predicted": ran[0].Predicted.Stages[0].Busy},
	}}, nil
}
