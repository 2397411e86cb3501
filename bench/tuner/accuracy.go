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

// errorsOf is by how much predictions of one combination were off, of 1, round by round; more than 0: predicted too long, too large.
type errorsOf struct {
	name         string // model and combination
	time, memory []float64
}

// accuracy compares predictions with runs. A round profiles a model and runs its combinations right after; of the rounds of one
// combination the median counts, since the host changes its pace by 10% within seconds. What single rounds say is reported as well.
func accuracy(ctx context.Context, o options, dir string) ([]report.Figure, error) {
	var all []*errorsOf
	for range o.rounds {
		for _, name := range o.models {
			ran, err := hold(ctx, o, dir, name)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", name, err)
			}
			for _, c := range ran {
				time, memory := c.Predicted.BatchSeconds/c.Measured.BatchSeconds-1, float64(c.Predicted.Bytes())/float64(c.Measured.Bytes())-1
				fmt.Fprintln(os.Stderr, line(name, c, time, memory))
				all = note(all, fmt.Sprintf("%s %v", name, combination{c.Pipelines, c.MicroBatches, c.Schedule}), time, memory)
			}
		}
	}
	return accuracyFigures(o, all), nil
}

// note adds the errors of one round.
func note(all []*errorsOf, name string, time, memory float64) []*errorsOf {
	i := slices.IndexFunc(all, func(e *errorsOf) bool { return e.name == name })
	if i < 0 {
		i, all = len(all), append(all, &errorsOf{name: name})
	}
	all[i].time, all[i].memory = append(all[i].time, time), append(all[i].memory, memory)
	return all
}

// accuracyFigures sums up.
func accuracyFigures(o options, all []*errorsOf) []report.Figure {
	var times, memory, single []float64
	byCombination := map[string]any{}
	for _, e := range all {
		times, memory = append(times, math.Abs(report.Median(e.time))), append(memory, math.Abs(report.Median(e.memory)))
		for _, one := range e.time {
			single = append(single, math.Abs(one))
		}
		byCombination[e.name] = e.time
	}
	within := 0
	for _, e := range single {
		if e <= 0.1 {
			within++
		}
	}
	conditions := map[string]any{
		"models": o.models, "rounds": o.rounds, "batches": o.batches, "time_errors": byCombination, "median_time_error": report.Median(times),
		"largest_time_error_of_one_round": slices.Max(single), "rounds_within_bar": float64(within) / float64(len(single)),
	}
	return []report.Figure{
		{Bench: "tuner", Metric: "largest error of predicted batch time", Unit: "of 1", Value: slices.Max(times), Bar: 0.1, Aim: 0.05, AtMost: true, Conditions: conditions},
		{Bench: "tuner", Metric: "largest error of predicted memory", Unit: "of 1", Value: slices.Max(memory), Bar: 0.1, Aim: 0.05, AtMost: true, Conditions: conditions},
		{Bench: "tuner", Metric: "combinations", Unit: "", Value: float64(len(times)), Bar: 12, Aim: 24, Conditions: conditions},
	}
}

// hold profiles one model, predicts all combinations of it, and runs them.
func hold(ctx context.Context, o options, dir, name string) (ran []tuner.Candidate, err error) {
	r, err := request(name, dir)
	if err != nil {
		return nil, err
	}
	r.Spec.Job.Schedule = job.AutoSchedule
	c := config(r, o)
	c.Turns, c.Outpaced = 2, 1 // slow ones are predictions as well
	s, err := profile.Open(ctx, c)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	space, err := s.Space()
	if err != nil {
		return nil, err
	}
	space.Pipelines = []int{1, 2, 3}
	if _, err := s.Profile(ctx, &space); err != nil {
		return nil, err
	}
	out, err := tuner.Search(space)
	if err != nil {
		return nil, err
	}
	var chosen []tuner.Candidate
	for _, c := range combinations {
		if found, ok := find(out, c); ok {
			chosen = append(chosen, found)
		}
	}
	if ran, err = s.Confirm(ctx, chosen); err != nil {
		return nil, err
	}
	for _, c := range ran {
		if c.Measured == nil {
			return nil, fmt.Errorf("%s: %s", c.Schedule, c.Reason)
		}
	}
	return ran, nil
}

// line is one run for people: its errors, and where they are: the terms of the busiest stage.
func line(name string, c tuner.Candidate, t, m float64) string {
	var text strings.Builder
	fmt.Fprintf(&text, "%-8s N=%d M=%d %-11s predicted %6.2f ms, measured %6.2f (%+.1f%%, spread %.1f%%), memory %+.1f%%;", name, c.Pipelines,
		c.MicroBatches, c.Schedule, 1e3*c.Predicted.BatchSeconds, 1e3*c.Measured.BatchSeconds, 100*t, 100*c.Measured.Spread, 100*m)
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
