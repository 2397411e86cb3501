package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"runtime"
	"slices"
	"strconv"

	"github.com/avgpipe/avgpipe/bench/internal/report"
	"github.com/avgpipe/avgpipe/bench/internal/rig"
	"github.com/avgpipe/avgpipe/internal/api"
)

// speed is a record: how long batches of a configuration took in real time, and what devices held.
type speed struct {
	Model     string  `json:"model"`
	Method    string  `json:"method"`
	Schedule  string  `json:"schedule"`        // what tuning chose, where the method leaves it to that
	Given     int     `json:"given_pipelines"` // 0: tuning chose them
	Devices   int     `json:"devices"`
	Link      float64 `json:"link"` // in forwards
	Pipelines int     `json:"pipelines"`
	Micros    int     `json:"micro_batches"`
	ForwardMs float64 `json:"forward_ms"`
	// Period is the mean time from one batch of all pipelines to their next, in forwards; Simulated the simulator's.
	Period    float64 `json:"period"`
	Simulated float64 `json:"simulated"`
	Batches   int     `json:"batches"` // that Period is the mean of
	Lag       float64 `json:"lag"`
	Void      string  `json:"void,omitempty"`
	Held      []int64 `json:"device_bytes"` // what each device held
	Cores     int     `json:"cores"`
}

func (s speed) key() string {
	return fmt.Sprintf("%s %s K=%d c=%g N=%d M=%d", s.Model, s.Method, s.Devices, s.Link, s.Given, s.Micros)
}

// configurations are what is timed: each method with each of its counts.
func (o options) configurations(w workload) (all []configuration) {
	for _, s := range o.settings() {
		for _, m := range o.methods {
			if m.chunks*s.devices > w.layers {
				continue // there are not enough layers
			}
			all = append(all, o.counts(m, s)...)
		}
	}
	return all
}

// microsOf are the numbers of micro-batches that a method chooses from.
func (o options) microsOf(m method) []int {
	switch {
	case m.side == averaged:
		return o.shares
	case m.averages():
		return o.updatingShares
	case m.updates():
		return []int{o.updating}
	}
	return o.micros
}

// timeAll times what is not yet recorded, one configuration after the other: they need the cores to themselves.
func timeAll(ctx context.Context, d *rig.Daemon, o options) (figures []report.Figure, err error) {
	recorded, err := records[speed](o.results, speedFile)
	if err != nil {
		return nil, err
	}
	for _, w := range o.models {
		for _, c := range o.configurations(w) {
			s := speed{Model: w.name, Method: c.name, Given: c.given(), Devices: c.devices, Link: c.link, Micros: c.micros}
			at := slices.IndexFunc(recorded, func(r speed) bool { return r.key() == s.key() })
			if at >= 0 && recorded[at].Void == "" {
				figures = append(figures, recorded[at].figure())
				continue
			}
			if s, err = w.time(ctx, d, o, c); err != nil {
				return figures, fmt.Errorf("%s, %v: %w", w.name, c, err)
			}
			fmt.Fprintf(os.Stderr, "%s, %v: N=%d %s, a batch %.2f F, simulated %.2f; lag %.2f%% %s\n",
				w.name, c, s.Pipelines, s.Schedule, s.Period, s.Simulated, 100*s.Lag, s.Void)
			if err := add(o.results, speedFile, s); err != nil {
				return figures, err
			}
			figures = append(figures, s.figure())
		}
	}
	return figures, nil
}

// figure holds the simulator to what was measured.
func (s speed) figure() report.Figure {
	return report.Figure{
		Metric: "error of the simulated batch[" + s.key() + "]", Unit: "%", Value: 100 * math.Abs(s.Simulated/s.Period-1),
		Bar: 3, Aim: 1, AtMost: true, Void: s.Void,
		Conditions: map[string]any{"record": s},
	}
}

// time runs a configuration for a few batches.
func (w workload) time(ctx context.Context, d *rig.Daemon, o options, c configuration) (s speed, err error) {
	shape, err := w.shapeOf(ctx, d, o, c)
	if err != nil {
		return s, err
	}
	batches := (o.batches + 2) * max(1, 16/c.micros)
	pipelines := c.pipelines
	if pipelines == 0 {
		pipelines = mostPipelines // a budget of rounds enough for as many as may be chosen
	}
	at := *d
	at.File = w.file(o.jobFiles)
	status, h, err := untilSteps(ctx, &at, uint64(batches), slices.Concat(c.laid(w), c.timed(shape, o.forward), []string{
		"train.samples=" + strconv.Itoa(batches*pipelines*c.micros*w.micro), "optimizer.warmup=0", "train.eval_every=0", "train.eval_samples=1",
		"center.state=center", "center.commit_every=1000000",
	}))
	if err != nil {
		return s, err
	}
	s = speed{
		Model: w.name, Method: c.name, Given: c.given(), Schedule: status.Schedule, Devices: c.devices, Link: c.link, Pipelines: status.Pipelines, Micros: c.micros,
		ForwardMs: o.forward.Seconds() * 1e3, Lag: lag(status), Void: void(lag(status)),
		Cores: runtime.NumCPU(),
	}
	s.Held = held(status, c)
	took := stepTimes(h)
	if len(took) < 4 {
		return s, fmt.Errorf("its history has the times of %d steps; expected 4 at least", len(took))
	}
	took = took[2:] // pipelines fill
	s.Batches, s.Period = len(took), mean(took)/o.forward.Seconds()
	s.Simulated, err = w.simulated(c, s)
	return s, err
}

// simulated is the simulator's period of what was run.
func (w workload) simulated(c configuration, s speed) (float64, error) {
	if c.onOne() { // without the exchange, which was not run
		return setting{devices: c.devices}.replicated(exchange{layers: w.layers}, c.micros)
	}
	return c.period(s.Schedule, c.chunks, s.Pipelines, c.micros)
}

// untilSteps runs a job until every pipeline has done so many steps.
func untilSteps(ctx context.Context, d *rig.Daemon, steps uint64, set []string) (last api.JobStatus, h api.History, err error) {
	id, err := d.SubmitFile(ctx, set...)
	if err != nil {
		return last, h, err
	}
	var cancelled error
	var trained api.JobStatus // the last status while it trained
	reached := false
	last, err = d.Watch(ctx, id, func(s api.JobStatus) {
		if s.State == api.Running && len(s.StageStatus) > 0 {
			trained = s
		}
		if !reached && s.Step >= steps {
			reached = true
			_, cancelled = d.Cancel(ctx, id)
		}
	})
	switch {
	case err != nil:
		return last, h, err
	case cancelled != nil && last.State != api.Done:
		return last, h, cancelled
	case last.State != api.Done && !reached:
		return last, h, fmt.Errorf("job %s is %s: %s", id, last.State, last.Reason)
	case len(trained.StageStatus) == 0:
		return last, h, errors.New("the job was never seen at training")
	}
	h, err = d.History(ctx, id, api.HistoryRequest{})
	return trained, h, err
}

// held is what each device held.
func held(status api.JobStatus, c configuration) []int64 {
	devices := c.devices
	if c.onOne() {
		devices = 1
	}
	all := make([]int64, devices)
	for i, s := range status.StageStatus {
		all[i%devices] += s.MemoryBytes // as interleaved places them
	}
	return all
}

// stepTimes is how long each step took that the history has by itself, in seconds.
func stepTimes(h api.History) (all []float64) {
	for i, p := range h.Points[1:] {
		if before := h.Points[i]; p.First == p.Last && before.Last+1 == p.First {
			all = append(all, p.Time.Sub(before.Time).Seconds())
		}
	}
	return all
}

func mean(values []float64) float64 {
	sum := 0.0
	for _, v := range values {
		sum += v
	}
	return sum / float64(len(values))
}
