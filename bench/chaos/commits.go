package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"sort"
	"strings"
	"time"

	"github.com/avgpipe/avgpipe/bench/internal/report"
	"github.com/avgpipe/avgpipe/bench/internal/rig"
	"github.com/avgpipe/avgpipe/internal/api"
	"github.com/avgpipe/avgpipe/internal/worker/control"
)

// committing is how long a job is looked at that commits again and again.
const committing = time.Minute

// steady is a job on two hosts that does not end, and commits often: a round is some 90 MB, with two copies of each shard.
const steady = `version: 1
name: steady
model: {family: gpt2, config: {n_layer: 4, n_head: 4, n_embd: 256, n_positions: 64, vocab_size: 256}}
data: {files: [corpus.txt], holdout: 0.1}
optimizer: {name: adamw, lr: 1e-3, clip_norm: 1}
train: {steps: 2000000, batch: 8}
stages: 2
pipelines: 2
micro_batches: 2
schedule: 1f1b
center: {commit_every: 10, replicas: 2}
devices: DEVICES
placement: spread
`

// steadyDevices are what it trains on: on this machine's cores, which daemons, hashes and copies share with it, and on devices that take time and no core, as
// a GPU does.
var steadyDevices = []struct{ name, devices string }{
	{"devices that need no core", "{kind: emulated, emulated: {forward: 12ms, backward: 24ms}}"},
	{"cores that hashes and copies need too", "{kind: cpu, cpu: {count: 2, threads: 1}}"},
}

// progress is a step that a worker has done, and when it was first seen to have.
type progress struct {
	at   time.Time
	step float64
}

// flight is a commit, from when its round was reached until it was durable.
type flight struct {
	begun, done time.Time
	decided     time.Duration // from the last verified shard to the manifest
}

// measureCommits measures what commits cost the training of jobs on a cluster that does nothing else.
func measureCommits(ctx context.Context, o options) (figures []report.Figure, err error) {
	o.inside = false // its rounds are larger than the small disks of trials
	w, err := newTestbed(ctx, o, 0)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, w.end(ctx), w.remove(ctx)) }()
	if err := w.start(ctx); err != nil {
		return nil, err
	}
	for _, on := range steadyDevices {
		some, err := w.commits(ctx, on.name, on.devices)
		if err != nil {
			return figures, fmt.Errorf("commits on %s: %w", on.name, err)
		}
		figures = append(figures, some...)
	}
	return figures, nil
}

// commits trains a job on devices, and returns what its commits cost.
func (w *testbed) commits(ctx context.Context, name, devices string) (figures []report.Figure, err error) {
	k := kind{name: "steady", source: strings.Replace(steady, "DEVICES", devices, 1)}
	id, err := w.submit(ctx, &k)
	if err != nil {
		return nil, err
	}
	j := &trialJob{kind: &k, id: id}
	defer func() { err = errors.Join(err, w.cancel(ctx, j)) }()
	var s api.JobStatus
	if err := rig.Poll(ctx, jobBound, "a job that has committed", func() bool {
		s, err = w.job(ctx, id)
		return err == nil && s.CommittedRound > 0
	}); err != nil {
		return nil, err
	}
	from := time.Now()
	seen := w.follow(ctx, j, committing)
	flights, err := w.flights(id, from)
	if err != nil {
		return nil, err
	}
	in, out, err := apart(seen, flights)
	if err != nil {
		return nil, err
	}
	var decided []float64
	for _, f := range flights {
		decided = append(decided, f.decided.Seconds()*1e3)
	}
	slices.Sort(decided)
	conditions := map[string]any{
		"hosts": len(w.hosts), "processor": processor(), "devices": name, "commits": len(flights),
		"share of the time in flight": in.seconds / (in.seconds + out.seconds), "steps per second": (in.steps + out.steps) / (in.seconds + out.seconds),
	}
	return []report.Figure{
		{Metric: "training slower while a commit is in flight, on " + name, Value: 100 * (1 - (in.steps/in.seconds)/(out.steps/out.seconds)), Unit: "%", Bar: 2, Aim: 1, AtMost: true, Conditions: conditions},
		{
			Metric: "manifest after the last verified shard, worst, on " + name, Value: decided[len(decided)-1], Unit: "ms", Bar: 50, Aim: 20, AtMost: true,
			Conditions: map[string]any{"hosts": len(w.hosts), "processor": processor(), "commits": len(flights), "median": decided[len(decided)/2]},
		},
	}, nil
}

// follow asks the worker of the first stage for a time how far it is, and notes its steps.
func (w *testbed) follow(ctx context.Context, j *trialJob, lasts time.Duration) (seen []progress) {
	i := slices.IndexFunc(w.hosts, func(h *host) bool { return len(h.processes(asWorker)) > 0 })
	if i < 0 {
		return nil
	}
	c := control.NewClient(w.hosts[i].jobDir(j), func(ctx context.Context, socket string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", socket)
	})
	defer c.Close()
	for end := time.Now().Add(lasts); ctx.Err() == nil && time.Now().Before(end); rig.Pause(ctx, 10*time.Millisecond) {
		s, err := c.Status(ctx)
		if step := float64(s.Progress.Step); err == nil && (len(seen) == 0 || step > seen[len(seen)-1].step) {
			seen = append(seen, progress{time.Now(), step})
		}
	}
	return seen
}

// flights are the commits of a job since a time, as the daemon that leads has logged them.
func (w *testbed) flights(id string, from time.Time) (all []flight, err error) {
	for _, h := range w.hosts {
		f, err := os.Open(h.log())
		if err != nil {
			return nil, err
		}
		defer f.Close() //nolint:errcheck // only read
		for lines := bufio.NewScanner(f); lines.Scan(); {
			var line struct {
				Msg, Job, Took string
				Time           time.Time
				SinceVerified  string `json:"since_verified"`
			}
			if json.Unmarshal(lines.Bytes(), &line) != nil || line.Msg != "round committed" || line.Job != id {
				continue
			}
			took, err := time.ParseDuration(line.Took)
			decided, failed := time.ParseDuration(line.SinceVerified)
			if begun := line.Time.Add(-took); err == nil && failed == nil && begun.After(from) {
				all = append(all, flight{begun, line.Time, decided})
			}
		}
	}
	slices.SortFunc(all, func(a, b flight) int { return a.begun.Compare(b.begun) })
	if len(all) < 5 {
		return nil, fmt.Errorf("%d commits were logged since %s; want 5 at least", len(all), from.Format(time.TimeOnly))
	}
	return all, nil
}

// apart is what was done while a commit was in flight, and while none was.
func apart(seen []progress, flights []flight) (in, out progressed, err error) {
	for i := range len(flights) - 1 {
		f, next := flights[i], flights[i+1]
		if !next.begun.After(f.done) {
			return in, out, fmt.Errorf("a commit began at %s, and the one before was done at %s: none is alone", next.begun.Format(time.TimeOnly), f.done.Format(time.TimeOnly))
		}
		in.add(seen, f.begun, f.done)
		out.add(seen, f.done, next.begun)
	}
	if in.steps == 0 || out.steps == 0 {
		return in, out, fmt.Errorf("%g steps with a commit in flight and %g without one: nothing to compare", in.steps, out.steps)
	}
	return in, out, nil
}

// progressed is what was done in how long.
type progressed struct{ steps, seconds float64 }

func (p *progressed) add(seen []progress, from, to time.Time) {
	if a, ok := stepAt(seen, from); ok {
		if b, ok := stepAt(seen, to); ok {
			p.steps, p.seconds = p.steps+b-a, p.seconds+to.Sub(from).Seconds()
		}
	}
}

// stepAt is how far training was at a time, between the two steps around it.
func stepAt(seen []progress, at time.Time) (step float64, ok bool) {
	i := sort.Search(len(seen), func(i int) bool { return seen[i].at.After(at) })
	if i == 0 || i == len(seen) {
		return 0, false
	}
	a, b := seen[i-1], seen[i]
	return a.step + (b.step-a.step)*at.Sub(a.at).Seconds()/b.at.Sub(a.at).Seconds(), true
}
