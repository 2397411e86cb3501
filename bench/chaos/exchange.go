package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"text/tabwriter"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/avgpipe/avgpipe/bench/internal/report"
	"github.com/avgpipe/avgpipe/internal/api"
)

// exchangeResponse is the daemons' response_timeout while exchanges are disturbed: one stop is shorter, the others are longer.
const exchangeResponse = 10 * time.Second

// exchangeRound is where a job is disturbed, whose groups exchange something all the time.
const exchangeRound = 100

// slowed is the rate of a link that is slowed, in bits a second.
const slowed = 1e6

// stops are what happens to one of two groups in the middle of an exchange.
var stops = []fault{
	{name: "stop-worker-2s", does: "SIGSTOP the worker of a group for 2 s", lasts: 2 * time.Second, apply: ofGroup(stopWorkers)},
	{name: "stop-worker-20s", does: "the same for 20 s", lasts: 20 * time.Second, apply: ofGroup(stopWorkers)},
	{name: "stop-worker-60s", does: "the same for 60 s", lasts: time.Minute, apply: ofGroup(stopWorkers)},
	{name: "stop-host-2s", does: "SIGSTOP the host of a group, with its daemon, for 2 s", lasts: 2 * time.Second, apply: ofGroup(freezeAll)},
	{name: "stop-host-20s", does: "the same for 20 s", lasts: 20 * time.Second, apply: ofGroup(freezeAll)},
	{name: "stop-host-60s", does: "the same for 60 s", lasts: time.Minute, apply: ofGroup(freezeAll)},
	{name: "slow-20s", does: "the host of a group sends and receives 1 Mbit/s for 20 s", lasts: 20 * time.Second, apply: ofGroup(slowLink)},
	{name: "cut-60s", does: "the host of a group is cut off for 60 s", lasts: time.Minute, apply: ofGroup(cutOff)},
}

func stopWorkers(_ context.Context, h *host) (func() error, error) {
	return freeze(h.processes(asWorker)...)
}

func slowLink(ctx context.Context, h *host) (func() error, error) {
	return func() error { return h.network.Limit(context.WithoutCancel(ctx), h.name, 0) }, h.network.Limit(ctx, h.name, slowed)
}

// ofGroup applies a fault to a host that has a worker, and notes how far the job is when it begins and when it ends.
func ofGroup(do apply) apply {
	return func(ctx context.Context, h *host) (func() error, error) {
		var train []*host
		for _, one := range h.hosts {
			if len(one.processes(asWorker)) > 0 {
				train = append(train, one)
			}
		}
		if len(train) < 2 {
			return nil, fmt.Errorf("%d hosts have a worker, expected one of each group", len(train))
		}
		one := pick(h, train)
		h.say("strikes the group%s: %s", one.of(), h.jobs[0].where())
		undo, err := do(ctx, one)
		if undo == nil {
			return nil, err
		}
		return func() error {
			h.say("before it ends: %s", h.jobs[0].where())
			return undo()
		}, err
	}
}

// where says how far a job is.
func (j *trialJob) where() string {
	s := j.status()
	return fmt.Sprintf("%s, generation %d, step %d, round %d committed", s.State, s.Generation, s.Step, s.CommittedRound)
}

// exchangeKinds are the jobs whose exchanges are disturbed: of two groups with a host each, or, where there are enough for that, two.
func exchangeKinds(hosts int) (all []kind) {
	for _, k := range clusterKinds(hosts) {
		if !strings.Contains(k.source, "groups: 2") {
			continue
		}
		if hosts > 4 { // one more than they take
			k.source = strings.NewReplacer("stages: 1", "stages: 2", "count: 1", "count: 2", "placement: pack", "placement: spread").Replace(k.source)
		}
		all = append(all, k)
	}
	return all
}

// exchange is a job of each kind that is disturbed in each way, which has to end as one that nothing disturbs. The kinds and faults may be restricted to those named.
func exchange(ctx context.Context, o options) ([]report.Figure, error) {
	o.response, o.calm = exchangeResponse, true
	kinds, faults := exchangeKinds(o.hosts), stops
	if o.faults != "" {
		named := strings.Split(o.faults, ",")
		kinds, faults = among(kinds, named, func(k *kind) string { return k.name }), among(stops, named, func(f *fault) string { return f.name })
	}
	references, err := undisturbed(ctx, o, kinds)
	if err != nil {
		return nil, err
	}
	s := &exchanges{}
	var running errgroup.Group
	running.SetLimit(o.parallel)
	for i := range faults { // those of one length are at the same time
		for k := range kinds {
			p := plan{seed: max(o.seed, 1) + uint64(i*len(kinds)+k), kinds: []*kind{&kinds[k]}, events: []event{{fault: &faults[i], round: exchangeRound, lasts: faults[i].lasts}}}
			running.Go(func() error {
				jobs, err := trial(ctx, o, p, references)
				if ctx.Err() != nil {
					return errors.New("interrupted")
				}
				s.add(&p, jobs, err)
				return nil
			})
		}
	}
	if err := running.Wait(); err != nil {
		return nil, err
	}
	return s.report()
}

// among are those that are named; all where none is.
func among[T any](all []T, named []string, name func(*T) string) (found []T) {
	for i := range all {
		for _, n := range named {
			if n == name(&all[i]) {
				found = append(found, all[i])
			}
		}
	}
	if found == nil {
		return all
	}
	return found
}

// exchanges are the trials that have ended.
type exchanges struct {
	mu     sync.Mutex
	rows   [][3]string // the job, what happened to it, how it ended
	failed []error
}

func (e *exchanges) add(p *plan, jobs []*trialJob, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	var s api.JobStatus
	for _, j := range jobs {
		s = j.status()
	}
	ended := fmt.Sprintf("%s in generation %d", s.State, s.Generation)
	if err != nil {
		ended += ": " + err.Error()
		e.failed = append(e.failed, fmt.Errorf("seed %d, %v: %w", p.seed, p, err))
	}
	e.rows = append(e.rows, [3]string{p.kinds[0].name, p.events[0].fault.name, ended})
	fmt.Fprintf(os.Stderr, "%v: %s\n", p, ended)
}

func (e *exchanges) report() ([]report.Figure, error) {
	rows := tabwriter.NewWriter(os.Stderr, 0, 0, 2, ' ', 0)
	fmt.Fprintln(rows, "JOB\tDISTURBED BY\tENDED") //nolint:errcheck // Flush reports it
	for _, row := range e.rows {
		fmt.Fprintln(rows, strings.Join(row[:], "\t")) //nolint:errcheck // as above
	}
	n := len(e.rows)
	figure := report.Figure{
		Metric: "jobs that end as if undisturbed after one of two groups was stopped, slowed or cut off in an exchange", Value: float64(n-len(e.failed)) / float64(max(1, n)), Unit: "of 1", Bar: 1, Aim: 1,
		Conditions: map[string]any{"jobs": e.rows, "processor": processor()},
	}
	return []report.Figure{figure}, errors.Join(append(e.failed, rows.Flush())...)
}
