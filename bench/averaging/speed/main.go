// Speed measures how fast replicas train that exchange gradients or updates over slow links: every averaging method beside allreduce, and allreduce beside
// PyTorch's DistributedDataParallel, on hosts that are network namespaces. See README.md.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"time"

	"github.com/avgpipe/avgpipe/bench/internal/hosts"
	"github.com/avgpipe/avgpipe/bench/internal/list"
	"github.com/avgpipe/avgpipe/bench/internal/report"
)

// options are the program's flags.
type options struct {
	setting // of which replicas, link and dictated come from the lists below

	program  string
	python   string
	replicas []int
	links    []float64 // Gbit/s
	methods  []method
	computes []time.Duration // dictated time of a step's computation; 0: real cores
	repeats  int
	figures  string
	inside   bool
}

func main() {
	var o options
	flag.StringVar(&o.program, "avgpiped", "bin/avgpiped", "the daemon's `program`")
	flag.StringVar(&o.python, "python", "/usr/bin/python3", "the interpreter that has PyTorch, for the method ddp")
	list.Flag(&o.replicas, "replicas", "2,4", "numbers of replicas, each on a host of its own", strconv.Atoi)
	list.Flag(&o.links, "links", "10,1,0.4,0.1", "rates of the hosts' links, in Gbit/s", func(s string) (float64, error) { return strconv.ParseFloat(s, 64) })
	list.Flag(&o.methods, "methods", "none,ddp,ddp:bucket=4,allreduce,pipesgd,sapipe:stale_layers=5,sapipe:stale_layers=8,elastic,elastic:tau=8,localsgd:tau=8,diloco:tau=16",
		"what is measured, in turn: an averaging method with its settings, NAME:KEY=VALUE:KEY=VALUE; ddp, the peer; none, no exchange", methodOf)
	list.Flag(&o.computes, "compute", "0,150ms", "how long a replica computes for a step: 0, as long as the cores take, which all replicas share; else a dictated time, as on a device that uses no core", time.ParseDuration)
	flag.IntVar(&o.repeats, "repeats", 3, "how often each method is measured, in turn with the others; the median counts")
	flag.DurationVar(&o.lasts, "lasts", 5*time.Second, "how long steps are measured for, at least")
	flag.IntVar(&o.warmup, "warmup", 3, "steps before those that are measured, rounded up to whole rounds")
	flag.IntVar(&o.least, "least", 4, "steps that are measured at least, rounded up to whole rounds")
	flag.IntVar(&o.layers, "layers", 8, "blocks of the model, a GPT-2; the embedding and the head are a layer each beside them")
	flag.IntVar(&o.width, "width", 192, "its width")
	flag.IntVar(&o.heads, "heads", 6, "its heads")
	flag.IntVar(&o.sequence, "sequence", 64, "bytes in a sample")
	flag.IntVar(&o.vocabulary, "vocabulary", 256, "its tokens; those of the text are bytes, but all have an embedding, whose gradient is exchanged whole")
	flag.BoolVar(&o.tied, "tied", false, "its head has the weights of the embedding, whose gradient then is final at the end of the backward")
	flag.IntVar(&o.batch, "batch", 4, "samples in a step of a replica that computes on real cores")
	flag.IntVar(&o.small, "dictated-batch", 1, "the same where times are dictated, which the arithmetic must not exceed")
	flag.StringVar(&o.figures, "figures", "", "`directory` that charts are drawn in; empty: none are")
	flag.BoolVar(&o.inside, "inside", false, "used by the program itself: it runs in namespaces of its own")
	report.Main("averaging/speed", func(ctx context.Context) ([]report.Figure, error) { return enter(ctx, o) })
}

// enter measures in namespaces of its own, which take everything with them.
func enter(ctx context.Context, o options) ([]report.Figure, error) {
	if err := o.check(ctx); err != nil {
		return nil, err
	}
	if !o.inside {
		return nil, hosts.Enter(ctx)
	}
	if err := hosts.Prepare(ctx); err != nil {
		return nil, err
	}
	return measureAll(ctx, o)
}

// check refuses what cannot be measured, before anything is started.
func (o *options) check(ctx context.Context) error {
	for _, n := range o.replicas {
		if n < 2 || n > 26 {
			return fmt.Errorf("-replicas %d: 2 to 26", n)
		}
	}
	for _, l := range o.links {
		if l < 1e-3 || l > 1000 {
			return fmt.Errorf("-links %g: 0.001 to 1000 Gbit/s", l)
		}
	}
	for _, d := range o.computes {
		if d < 0 || d > time.Minute {
			return fmt.Errorf("-compute %v: 0, or a time of at most a minute", d)
		}
	}
	if o.repeats < 1 || o.warmup < 1 || o.least < 1 || o.lasts <= 0 {
		return fmt.Errorf("-repeats %d, -warmup %d, -least %d, -lasts %v: each must be above 0", o.repeats, o.warmup, o.least, o.lasts)
	}
	if os.Getuid() != 0 {
		return errors.New("hosts are network namespaces, which need root")
	}
	if _, err := os.Stat(o.program); err != nil {
		return fmt.Errorf("-avgpiped: %w; `make build` makes it", err)
	}
	for _, m := range o.methods {
		if m.name != ddp {
			continue
		}
		if said, err := exec.CommandContext(ctx, o.python, "-c", "import torch").CombinedOutput(); err != nil { //nolint:gosec // a flag
			return fmt.Errorf("-python %s: import torch: %w: %s; Debian's package is python3-torch, `make test-deps` installs it", o.python, err, said)
		}
		break
	}
	return nil
}
