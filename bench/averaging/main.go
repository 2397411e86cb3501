// Averaging measures what elastic averaging costs in quality: held-out losses of two and four averaged pipelines over those of one
// pipeline that trains on the same samples in the same number of steps. See README.md.
package main

import (
	"context"
	"flag"
	"fmt"
	"strconv"
	"strings"

	"github.com/avgpipe/avgpipe/bench/internal/report"
	"github.com/avgpipe/avgpipe/bench/internal/rig"
)

// options are the program's flags.
type options struct {
	results string
	counts  []int // of averaged pipelines
	steps   []int
	seeds   []int
	rates   []float64
	rules   []rule
	batch   int
	jobs    int
}

func main() {
	results := flag.String("results", "", "a file to add each finished run to, as a JSON line; runs that it has are not run again")
	counts := flag.String("pipelines", "2,4", "numbers of averaged pipelines: 2, 4")
	steps := flag.String("steps", "512,2048", "lengths of the runs, in optimizer steps of each pipeline")
	seeds := flag.String("seeds", "1,2,3", "seeds of initial weights and sample order")
	rates := flag.String("rates", "0.003,0.006", "learning rates to choose from")
	names := flag.String("rules", "default,old,new,unscaled", "rules of averaging: "+ruleNames()+", or PULL:ALPHA:HORIZON:LR_SCALE")
	batch := flag.Int("batch", 16, "samples in a step of one pipeline; a multiple of 4")
	jobs := flag.Int("jobs", 2, "jobs that run at a time, each on one core")
	rig.Main("averaging", func(ctx context.Context, d *rig.Daemon) (figures []report.Figure, err error) {
		o := options{results: *results, batch: *batch, jobs: *jobs}
		if o.counts, err = list("pipelines", *counts, strconv.Atoi); err != nil {
			return nil, err
		}
		if o.steps, err = list("steps", *steps, strconv.Atoi); err != nil {
			return nil, err
		}
		if o.seeds, err = list("seeds", *seeds, strconv.Atoi); err != nil {
			return nil, err
		}
		if o.rates, err = list("rates", *rates, func(s string) (float64, error) { return strconv.ParseFloat(s, 64) }); err != nil {
			return nil, err
		}
		if o.rules, err = list("rules", *names, ruleOf); err != nil {
			return nil, err
		}
		return measure(ctx, d, o)
	})
}

// list parses the comma-separated value of a flag.
func list[T any](name, text string, parse func(string) (T, error)) ([]T, error) {
	var all []T
	for part := range strings.SplitSeq(text, ",") {
		v, err := parse(part)
		if err != nil {
			return nil, fmt.Errorf("-%s %s: %w", name, text, err)
		}
		all = append(all, v)
	}
	return all, nil
}

// measure trains what is not in the results file yet, and compares all that is.
func measure(ctx context.Context, d *rig.Daemon, o options) ([]report.Figure, error) {
	if o.batch < 4 || o.batch%4 != 0 {
		return nil, fmt.Errorf("-batch %d: a multiple of 4, so that four pipelines can share it", o.batch)
	}
	losses, err := open(o.results)
	if err != nil {
		return nil, err
	}
	if err := trainAll(ctx, d, o, losses); err != nil {
		return nil, fmt.Errorf("%w; %d runs are kept in the results file", err, len(losses.all))
	}
	return compare(o, losses)
}
