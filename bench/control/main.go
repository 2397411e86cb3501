// Command control measures the control plane of a large cluster: what the node that leads costs, how long its API takes, and what Raft's files take. The
// nodes that vote are real ones with a process each; all others share one process, where they are real too, but for their workers, which pretend to train.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"time"

	"github.com/avgpipe/avgpipe/bench/internal/report"
	"github.com/avgpipe/avgpipe/internal/node/nodetest"
)

// options are the flags.
type options struct {
	nodes   int           // simulated ones
	voters  int           // real ones
	mix     mix           // jobs, by how they stand
	steady  time.Duration // for which processor time is measured
	profile string        // a directory for profiles of the node that leads; empty: none are made
	parts   string
	hours   int // that Raft's files are simulated for
}

// programs are what this program becomes by its first argument. nodetest has those of a node's children.
var programs = map[string]func(arguments []string) error{"node": runNode, "herd": runHerd}

func main() { nodetest.Main(start) }

func start() int {
	if len(os.Args) > 2 {
		if run, ok := programs[os.Args[1]]; ok {
			if err := run(os.Args[2:]); err != nil {
				fmt.Fprintln(os.Stderr, os.Args[1]+":", err)
				return 1
			}
			return 0
		}
	}
	var o options
	flag.IntVar(&o.nodes, "nodes", 200, "nodes with pretended workers")
	flag.IntVar(&o.voters, "voters", 5, "nodes that vote, each a process of its own")
	flag.IntVar(&o.mix.running, "running", 50, "jobs that run, on four nodes each")
	flag.IntVar(&o.mix.queued, "queued", 200, "jobs that wait")
	flag.IntVar(&o.mix.done, "done", 600, "jobs that are done")
	flag.IntVar(&o.mix.failed, "failed", 100, "jobs that failed")
	flag.IntVar(&o.mix.cancelled, "cancelled", 50, "jobs that were cancelled")
	flag.DurationVar(&o.steady, "steady", 30*time.Second, "for how long processor time is measured")
	flag.StringVar(&o.profile, "profile", "", "directory for profiles of the node that leads")
	flag.StringVar(&o.parts, "parts", "cluster,disk", "what to measure: cluster, disk")
	flag.IntVar(&o.hours, "hours", 24, "how many hours of commits Raft's files are measured over")
	report.Main("control", func(ctx context.Context) ([]report.Figure, error) {
		return report.Parts(ctx, o.parts,
			report.Part{Name: "cluster", Measure: func(ctx context.Context) ([]report.Figure, error) { return measureCluster(ctx, o) }},
			report.Part{Name: "disk", Measure: func(ctx context.Context) ([]report.Figure, error) { return measureDisk(ctx, o) }},
		)
	})
	return 0
}
