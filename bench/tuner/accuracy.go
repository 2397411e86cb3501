package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"strings"

	"github.com/avgpipe/avgpipe/bench/internal/report"
	"github.com/avgpipe/avgpipe/internal/profile"
	"github.com/avgpipe/avgpipe/job"
	"github.com/avgpipe/avgpipe/tuner"
)

// combination is one configuration whose prediction is held to its run.
type combination struct {
	pipelines, micros int
	schedule          string
}

func (c combination) String() string {
	return fmt.Sprintf("N=%d M=%d %s", c.pipelines, c.micros, c.schedule)
}

// combinations are run of every model.
var combinations = []combination{
	{1, 4, "gpipe"}, {1, 8, "1f1b"}, {1, 4, "afp"}, {1, 8, "zb-h1"}, {2, 4, "afp"}, {2, 8, "1f1b"}, {3, 2, "gpipe"}, {2, 4, "interleaved"},
}

// accuracy compares one profile with one run each of a model's combinations, right after it, and again in every round. Nothing is
// repeated and no best is taken: these are the errors that a tuning has to live with, those of a host that does other things included.
func accuracy(ctx context.Context, o options, dir string) ([]report.Figure, error) {
	var errs []float64
	byCombination := map[string][]float64{}
	models := o.models
	if len(models) == 0 {
		models = []string{"gpt2", "awd-lstm", "vgg"}
	}
	for range o.rounds {
		for _, name := range models {
			ran, err := hold(ctx, o, dir, name)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", name, err)
			}
			for _, c := range ran {
				off := c.Predicted.BatchSeconds/c.Measured.BatchSeconds - 1
				fmt.Fprintln(os.Stderr, line(name, c, off))
				errs = append(errs, math.Abs(off))
				key := fmt.Sprintf("%s %v", name, combination{c.Pipelines, c.MicroBatches, c.Schedule})
				byCombination[key] = append(byCombination[key], off)
			}
		}
	}
	slices.Sort(errs)
	within := 0.0
	for _, e := range errs {
		if e <= 0.1 {
			within += 1 / float64(len(errs))
		}
	}
	at := func(part float64) float64 { return errs[int(math.Ceil(part*float64(len(errs))))-1] }
	conditions := map[string]any{"models": models, "rounds": o.rounds, "batches": o.batches, "runs": len(errs), "errors": byCombination}
	figure := func(metric string, value, bar, aim float64, most bool) report.Figure {
		return report.Figure{Bench: "tuner", Metric: metric, Unit: "of 1", Value: value, Bar: bar, Aim: aim, AtMost: most, Conditions: conditions}
	}
	return []report.Figure{
		figure("error of predicted batch time, median", at(0.5), 0.04, 0.02, true),
		figure("error of predicted batch time, 90% of runs", at(0.9), 0.1, 0.05, true),
		figure("error of predicted batch time, worst", errs[len(errs)-1], 0.2, 0.1, true),
		figure("runs within 10% of the predicted batch time", within, 0.9, 0.95, false),
	}, nil
}

// hold profiles one model, predicts all combinations of it, and runs them.
func hold(ctx context.Context, o options, dir, name string) (ran []tuner.Candidate, err error) {
	r, err := request(name, dir)
	if err != nil {
		return nil, err
	}
	r.Spec.Job.Schedule = job.AutoSchedule
	s, err := profile.Open(ctx, config(r, o))
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	out, err := search(ctx, s, 1, 2, 3)
	if err != nil {
		return nil, err
	}
	for _, want := range combinations {
		if c, ok := find(out, want); ok {
			if c, err = s.RunOnce(ctx, c); err != nil {
				return nil, fmt.Errorf("%v: %w", want, err)
			}
			ran = append(ran, c)
		}
	}
	return ran, nil
}

// search profiles the job of a session and predicts all candidates, with so many pipelines, or as many as the job leaves open.
func search(ctx context.Context, s *profile.Session, pipelines ...int) (*tuner.Outcome, error) {
	space, err := s.Space()
	if err != nil {
		return nil, err
	}
	if len(pipelines) > 0 {
		space.Pipelines = pipelines
	}
	if _, err := s.Profile(ctx, &space); err != nil {
		return nil, err
	}
	return tuner.Search(space)
}

// line is one run for people: its error, and the terms of each stage.
func line(name string, c tuner.Candidate, off float64) string {
	var text strings.Builder
	fmt.Fprintf(&text, "%-8s N=%d M=%d %-11s predicted %6.2f ms, measured %6.2f (%+.1f%%);", name, c.Pipelines,
		c.MicroBatches, c.Schedule, 1e3*c.Predicted.BatchSeconds, 1e3*c.Measured.BatchSeconds, 100*off)
	for s := range c.Predicted.Stages {
		p, o := c.Predicted.Stages[s], c.Measured.Stages[s]
		fmt.Fprintf(&text, " stage %d compute %.2f/%.2f optimizer %.2f/%.2f average %.2f/%.2f wait %.2f/%.2f;", s,
			1e3*p.ComputeSeconds, 1e3*o.ComputeSeconds, 1e3*p.OptimizerSeconds, 1e3*o.OptimizerSeconds,
			1e3*p.AverageSeconds, 1e3*o.AverageSeconds, 1e3*p.WaitSeconds, 1e3*o.WaitSeconds)
	}
	return text.String()
}

// find looks a combination up among all candidates, those included that have the same plan as another.
func find(o *tuner.Outcome, want combination) (tuner.Candidate, bool) {
	for _, c := range slices.Concat(o.Ranked, o.Refused) {
		if c.Pipelines == want.pipelines && c.MicroBatches == want.micros && c.Schedule == want.schedule && c.Predicted.BatchSeconds > 0 {
			c.Verdict = ""
			return c, true
		}
	}
	return tuner.Candidate{}, false
}
