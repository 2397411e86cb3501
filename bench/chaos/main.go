// Chaos runs trials of random faults on one node: the real daemon with real workers, a state directory of its own, jobs of a second
// or two, and one to three faults at random moments. Each job must end with the bits and the sample count of a run that nothing
// disturbed. See README.md.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/avgpipe/avgpipe/bench/internal/hosts"
	"github.com/avgpipe/avgpipe/bench/internal/report"
)

// options are the program's flags.
type options struct {
	program  string
	trials   int
	seed     uint64
	parallel int
	faults   string
	keep     string
	whole    bool
	verbose  bool
	inside   bool
	hosts    int
	measure  bool
	upgrade  string
	parts    string
	python   string
	modules  bool
	slowable string
	response time.Duration // the daemons' response_timeout
	calm     bool          // no daemon is to log an error
}

func main() {
	var o options
	flag.StringVar(&o.program, "avgpiped", "bin/avgpiped", "the daemon's `program`")
	flag.IntVar(&o.trials, "trials", 1000, "how many trials")
	flag.Uint64Var(&o.seed, "seed", 0, "of the first trial; the others follow it. 0: from 1 on, and a random one for the last trial")
	flag.IntVar(&o.parallel, "parallel", 4, "how many trials run at the same time")
	flag.StringVar(&o.faults, "faults", "", "draw among these alone, separated by commas")
	flag.StringVar(&o.keep, "keep", "", "`directory` for the directories of failed trials; default: a temporary one")
	flag.BoolVar(&o.whole, "whole", false, "fail at once when a fault would have to be skipped")
	flag.BoolVar(&o.verbose, "v", false, "print what happens in each trial")
	flag.IntVar(&o.hosts, "hosts", 1, "how many hosts a trial has; several need root")
	flag.BoolVar(&o.measure, "measure", false, "measure several hosts in place of trials")
	flag.StringVar(&o.upgrade, "upgrade", "", "in place of trials: upgrade a cluster that trains from this `program`, which has a version before, host by host")
	flag.StringVar(&o.parts, "parts", "pauses,torchrun,commits,pipeline", "what to measure: pauses after faults, the same of PyTorch's launcher, what commits cost, and a pipeline over three hosts beside the simulator; or exchange: groups that are stopped, slowed and cut off while they average")
	flag.StringVar(&o.python, "python", "/usr/bin/python3", "the interpreter that has PyTorch, for the part torchrun and for -modules")
	flag.BoolVar(&o.modules, "modules", false, "trials of jobs whose modules are in Python, on one host")
	flag.BoolVar(&o.inside, "inside", false, "used by the program itself: it runs in namespaces of its own")
	flag.StringVar(&o.slowable, hosts.SlowableFlag[1:], "", "used by the program itself: it becomes the program of its arguments, on a `disk` that can be slow")
	o.response = responseTimeout
	report.Main("chaos", func(ctx context.Context) ([]report.Figure, error) { return run(ctx, o) })
}

// run runs the trials, as root in namespaces: no mount and no process outlives the program, however it ends.
func run(ctx context.Context, o options) ([]report.Figure, error) {
	if o.slowable != "" {
		return nil, hosts.BecomeSlowable(ctx, o.slowable, flag.Args())
	}
	if os.Getuid() == 0 && !o.inside {
		return nil, hosts.Enter(ctx)
	}
	if o.inside {
		if err := hosts.Prepare(ctx); err != nil {
			return nil, err
		}
	}
	if o.hosts < 1 || o.hosts > len(names) || o.hosts > 1 && !o.inside {
		return nil, fmt.Errorf("-hosts %d: 1 to %d, and several need root", o.hosts, len(names))
	}
	if o.modules && o.hosts > 1 {
		return nil, fmt.Errorf("-modules: -hosts %d; such trials have one", o.hosts)
	}
	if o.whole && !o.inside {
		return nil, errors.New("-whole: faults of the file system need root and are not to be skipped")
	}
	if _, err := os.Stat(o.program); err != nil {
		return nil, fmt.Errorf("-avgpiped: %w; `make build` makes it", err)
	}
	if (o.measure || o.upgrade != "") && o.hosts < 3 {
		return nil, fmt.Errorf("-measure and -upgrade: -hosts %d; with fewer than 3 nobody leads when one is gone", o.hosts)
	}
	if o.measure {
		if o.keep == "" {
			o.keep = os.TempDir()
		}
		return report.Parts(ctx, o.parts,
			report.Part{Name: "pauses", Measure: func(ctx context.Context) ([]report.Figure, error) { return measure(ctx, o) }},
			report.Part{Name: "torchrun", Measure: func(ctx context.Context) ([]report.Figure, error) { return measureTorchrun(ctx, o) }},
			report.Part{Name: "commits", Measure: func(ctx context.Context) ([]report.Figure, error) { return measureCommits(ctx, o) }},
			report.Part{Name: "pipeline", Measure: func(ctx context.Context) ([]report.Figure, error) { return measurePipeline(ctx, o) }},
			report.Part{Name: "exchange", Measure: func(ctx context.Context) ([]report.Figure, error) { return exchange(ctx, o) }},
		)
	}
	from, err := choose(o)
	if err != nil {
		return nil, err
	}
	if o.keep == "" {
		if o.keep, err = os.MkdirTemp("", "chaos-failed-"); err != nil {
			return nil, err
		}
		defer os.Remove(o.keep) //nolint:errcheck // it stays when there is something in it
	}
	if o.upgrade != "" {
		return upgrade(ctx, o)
	}
	return campaign(ctx, o, from)
}

// choose returns what trials draw from.
func choose(o options) (setting, error) {
	all := setting{faults, kinds}
	switch {
	case o.modules:
		all = modules()
	case o.hosts > 1:
		all = several(o.hosts)
	}
	if o.faults == "" {
		return all, nil
	}
	chosen := setting{kinds: all.kinds}
	for name := range strings.SplitSeq(o.faults, ",") {
		i := slices.IndexFunc(all.faults, func(f fault) bool { return f.name == name })
		if i < 0 {
			return all, fmt.Errorf("-faults: no fault is called %q with %d hosts; faults.go, modules.go and cluster.go list them", name, o.hosts)
		}
		chosen.faults = append(chosen.faults, all.faults[i])
	}
	return chosen, nil
}

// The bounds of waits. Nothing waits this long unless something is broken, or the machine does far more than this.
const (
	stopBound  = 60 * time.Second
	startBound = 60 * time.Second
	jobBound   = 120 * time.Second // without a job that gets on
	jobsBound  = 15 * time.Minute
	leakBound  = 60 * time.Second
	leftBound  = 20 * time.Second // less than a worker trains on without a daemon
)
