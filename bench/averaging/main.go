// Averaging measures what averaging methods cost in quality: held-out losses of two and four averaged pipelines over those of one
// pipeline that trains on the same samples in the same number of steps. See README.md.
package main

import (
	"context"
	"flag"
	"fmt"
	"strconv"

	"github.com/avgpipe/avgpipe/bench/internal/list"
	"github.com/avgpipe/avgpipe/bench/internal/report"
	"github.com/avgpipe/avgpipe/bench/internal/rig"
)

// options are the program's flags.
type options struct {
	counts []int // of averaged pipelines
	steps  []int
	seeds  []int
	rates  []float64
	rules  []rule
	sides  []side
	batch  int
	jobs   int
}

func main() {
	var o options
	list.Flag(&o.counts, "pipelines", "2,4", "numbers of averaged pipelines: 2, 4", strconv.Atoi)
	list.Flag(&o.steps, "steps", "512,2048", "lengths of the runs, in optimizer steps of each pipeline", strconv.Atoi)
	list.Flag(&o.seeds, "seeds", "1,2,3", "seeds of initial weights and sample order", strconv.Atoi)
	list.Flag(&o.rates, "rates", "0.003,0.006", "learning rates to choose from", func(s string) (float64, error) { return strconv.ParseFloat(s, 64) })
	list.Flag(&o.rules, "rules", "default,old,new,unscaled", "rules of averaging: "+ruleNames()+", or METHOD:KEY=VALUE:..., of the section averaging of a job file", ruleOf)
	list.Flag(&o.sides, "over", "plain,synchronous", "what is compared with: plain, one pipeline whose batch the pipelines share; synchronous, one with the batch of all", sideOf)
	flag.IntVar(&o.batch, "batch", 16, "samples in a step of one pipeline; a multiple of 4")
	flag.IntVar(&o.jobs, "jobs", 2, "jobs that run at a time, each on one core")
	rig.Main("averaging", func(ctx context.Context, d *rig.Daemon) ([]report.Figure, error) { return measure(ctx, d, o) })
}

// measure trains all runs and compares them.
func measure(ctx context.Context, d *rig.Daemon, o options) ([]report.Figure, error) {
	if o.batch < 4 || o.batch%4 != 0 {
		return nil, fmt.Errorf("-batch %d: a multiple of 4, so that four pipelines can share it", o.batch)
	}
	results, err := trainAll(ctx, d, o)
	if err != nil {
		return nil, err
	}
	return compare(o, results), nil
}
