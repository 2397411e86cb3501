// Averaging measures what averaging methods cost in quality: held-out losses of two and four averaged pipelines over those of one
// pipeline that trains on the same samples in the same number of steps. See README.md.
package main

import (
	"cmp"
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
	workload // of which flags change some

	counts []int // of averaged pipelines
	seeds  []int
	rules  []rule
	sides  []side
	jobs   int
}

func main() {
	var o, changed options
	var names []string
	list.Flag(&names, "workload", workloads[0].name, "what is trained: "+workloadNames(), func(name string) (string, error) {
		_, err := workloadOf(name)
		return name, err
	})
	list.Flag(&o.counts, "pipelines", "2,4", "numbers of averaged pipelines: 2, 4", strconv.Atoi)
	list.Change(&changed.steps, "steps", "lengths of the runs, in optimizer steps of each pipeline (default the workload's)", strconv.Atoi)
	list.Flag(&o.seeds, "seeds", "1,2,3", "seeds of initial weights and sample order", strconv.Atoi)
	list.Change(&changed.rates, "rates", "learning rates to choose from (default the workload's)", func(s string) (float64, error) { return strconv.ParseFloat(s, 64) })
	list.Flag(&o.rules, "rules", "default,old,new,unscaled", "rules of averaging: "+ruleNames()+", or METHOD:KEY=VALUE:..., of the section averaging of a job file", ruleOf)
	list.Flag(&o.sides, "over", "plain,synchronous", "what is compared with: plain, one pipeline whose batch the pipelines share; synchronous, one with the batch of all", sideOf)
	flag.IntVar(&changed.batch, "batch", 0, "samples in a step of one pipeline; a multiple of 4 (default the workload's)")
	flag.IntVar(&o.jobs, "jobs", 2, "jobs that run at a time, each on one core")
	rig.Main("averaging", func(ctx context.Context, d *rig.Daemon) ([]report.Figure, error) {
		var all []report.Figure
		for _, name := range names {
			one, err := o.with(name, changed.workload)
			if err != nil {
				return nil, err
			}
			figures, err := measure(ctx, d, one)
			if err != nil {
				return nil, err
			}
			all = append(all, figures...)
		}
		return all, nil
	})
}

// with are the options for a workload, with what the flags change of it.
func (o options) with(name string, changed workload) (options, error) {
	var err error
	if o.workload, err = workloadOf(name); err != nil {
		return o, err
	}
	o.batch = cmp.Or(changed.batch, o.batch)
	if len(changed.steps) > 0 {
		o.steps = changed.steps
	}
	if len(changed.rates) > 0 {
		o.rates = changed.rates
	}
	return o, nil
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
