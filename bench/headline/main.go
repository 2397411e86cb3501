// Headline measures how long training takes to a held-out loss: AvgPipe's parallel pipelines against every other method, on emulated
// devices that compute. See README.md.
package main

import (
	"context"
	"flag"
	"os"
	"regexp"
	"strconv"
	"time"

	"github.com/avgpipe/avgpipe/bench/internal/list"
	"github.com/avgpipe/avgpipe/bench/internal/report"
	"github.com/avgpipe/avgpipe/bench/internal/rig"
)

// options are the program's flags.
type options struct {
	models   []workload
	devices  []int
	links    []float64
	micros   []int // micro-batches of a batch, of synchronous methods
	shares   []int // of a pipeline's, where several pipelines are averaged
	updating int   // of methods that step inside of the batch
	// Of pipelines that step inside of the batch and are averaged: micro-batches between two rounds to choose from, and how many pipelines.
	updatingShares []int
	given          []int
	methods        []method
	seeds          []int
	heldOut        int
	runs           *regexp.Regexp // of part quality, by their keys; nil for all
	jobs           int
	forward        time.Duration
	batches        int
	results        string
	figures        string
	jobFiles       string
}

// settings are all that are compared.
func (o options) settings() (all []setting) {
	for _, k := range o.devices {
		for _, c := range o.links {
			all = append(all, setting{k, c})
		}
	}
	return all
}

func main() {
	var o options
	number := func(s string) (float64, error) { return strconv.ParseFloat(s, 64) }
	list.Flag(&o.models, "models", "gpt,awd-lstm,bert,gnmt", "models that are trained", workloadOf)
	list.Flag(&o.devices, "devices", "4", "numbers of devices", strconv.Atoi)
	list.Flag(&o.links, "links", "0,0.5,1.5", "what a message takes on a link, in forwards", number)
	list.Flag(&o.micros, "micro-batches", "4,8,16", "micro-batches of a batch that synchronous methods choose from", strconv.Atoi)
	list.Flag(&o.shares, "shares", "1,2,4,8", "micro-batches of a batch of each averaged pipeline that avgpipe chooses from", strconv.Atoi)
	flag.IntVar(&o.updating, "updating", 32, "micro-batches of a batch of pipedream and pipedream-2bw, which run on across batches to the next evaluation")
	list.Flag(&o.updatingShares, "updating-shares", "4,8,16", "micro-batches of a batch of each pipeline that avgpipe-pipedream chooses from", strconv.Atoi)
	list.Flag(&o.given, "given", "2,4", "numbers of pipelines that avgpipe-pipedream chooses from", strconv.Atoi)
	list.Flag(&o.methods, "methods", "data-parallel,gpipe,1f1b,pipedream,pipedream-2bw,interleaved,zb-h1,zb-h2,avgpipe,avgpipe-pipedream", "methods that the parts memory, speed and full measure", methodOf)
	list.Flag(&o.seeds, "seeds", "1", "seeds of initial weights and sample order; part full takes the first", strconv.Atoi)
	flag.IntVar(&o.heldOut, "held-out", 256, "held-out samples of an evaluation")
	flag.IntVar(&o.jobs, "jobs", 2, "jobs of part quality that run at a time, each on one core")
	flag.Func("runs", "`REGEXP` of the runs of part quality that are made, by the names they are printed with, such as 'M=4 .*lr=0.001 seed=1$' (default all)", func(text string) (err error) {
		o.runs, err = regexp.Compile(text)
		return err
	})
	flag.DurationVar(&o.forward, "forward", 10*time.Millisecond, "what an emulated device takes for a forward of one micro-batch")
	flag.IntVar(&o.batches, "batches", 4, "batches of 16 micro-batches that a configuration is timed for")
	flag.StringVar(&o.results, "results", "bench/headline/results", "`DIRECTORY` of the records")
	flag.StringVar(&o.figures, "figures", "bench/headline/figures", "`DIRECTORY` that the images are written to")
	flag.StringVar(&o.jobFiles, "jobs-dir", "bench/headline/jobs", "`DIRECTORY` of the job files")
	named := flag.String("parts", "quality,memory,speed,full,combine", "`PARTS` to run, separated by commas")
	daemon := rig.Flags()
	report.Main("headline", func(ctx context.Context) ([]report.Figure, error) {
		if err := os.MkdirAll(o.results, 0o755); err != nil {
			return nil, err
		}
		with := func(measure func(context.Context, *rig.Daemon, options) ([]report.Figure, error)) func(context.Context) ([]report.Figure, error) {
			return func(ctx context.Context) ([]report.Figure, error) {
				return daemon.With(ctx, func(ctx context.Context, d *rig.Daemon) ([]report.Figure, error) { return measure(ctx, d, o) })
			}
		}
		return report.Parts(ctx, *named,
			report.Part{Name: "quality", Measure: with(trainAll)},
			report.Part{Name: "memory", Measure: with(measureMemory)},
			report.Part{Name: "speed", Measure: with(timeAll)},
			report.Part{Name: "full", Measure: with(runFull)},
			report.Part{Name: "combine", Measure: func(ctx context.Context) ([]report.Figure, error) { return combine(ctx, o) }})
	})
}
