package main

import (
	"context"
	"fmt"
	"math"
	"os"
	"slices"

	"github.com/avgpipe/avgpipe/bench/internal/report"
	"github.com/avgpipe/avgpipe/bench/internal/rig"
)

// full is a record: one run in real time to the last target.
type full struct {
	Model     string  `json:"model"`
	Method    string  `json:"method"`
	Schedule  string  `json:"schedule"`
	Given     int     `json:"given_pipelines"` // 0: tuning chose them
	Devices   int     `json:"devices"`
	Link      float64 `json:"link"`
	Pipelines int     `json:"pipelines"`
	Micros    int     `json:"micro_batches"`
	Rate      float64 `json:"lr"`
	Seed      int     `json:"seed"`
	ForwardMs float64 `json:"forward_ms"`
	Target    float64 `json:"target"`
	// Samples and Seconds are to the target, evaluations not counted; Wall is with them.
	Samples     float64 `json:"samples"`
	Seconds     float64 `json:"seconds"`
	Wall        float64 `json:"wall_seconds"`
	Combined    float64 `json:"combined_seconds"` // samples of a run as fast as can be, times the simulator's batch time
	Lag         float64 `json:"lag"`
	Void        string  `json:"void,omitempty"`
	DeviceBytes []int64 `json:"device_bytes"`
}

func (f full) key() string {
	return fmt.Sprintf("%s %s to %g K=%d c=%g N=%d M=%d lr=%g seed=%d", f.Model, f.Method, f.Target, f.Devices, f.Link, f.Given, f.Micros, f.Rate, f.Seed)
}

// runFull runs the best configuration of each method that is named in real time to the last target of each model.
func runFull(ctx context.Context, d *rig.Daemon, o options) (figures []report.Figure, err error) {
	m, err := load(o)
	if err != nil {
		return nil, err
	}
	all, err := m.compare()
	if err != nil {
		return nil, err
	}
	for _, c := range all {
		if c.target != c.last() {
			continue
		}
		for _, best := range c.all {
			if !slices.ContainsFunc(o.methods, func(m method) bool { return m.name == best.name }) || best.onOne() { // the exchange of replicas on several hosts is not emulated
				continue
			}
			f := full{Model: c.name, Method: best.name, Given: best.given(), Target: c.target, Devices: best.devices, Link: best.link, Micros: best.micros, Rate: best.rate, Seed: o.seeds[0]}
			at := slices.IndexFunc(m.full, func(r full) bool { return r.key() == f.key() && r.Void == "" })
			if at >= 0 {
				figures = append(figures, m.full[at].figure())
				continue
			}
			if f, err = m.run(ctx, d, c.workload, best, f); err != nil {
				return figures, fmt.Errorf("%s: %w", f.key(), err)
			}
			fmt.Fprintf(os.Stderr, "%s: N=%d %s, %.0f samples in %.1f s, combined %.1f s; lag %.2f%% %s\n",
				f.key(), f.Pipelines, f.Schedule, f.Samples, f.Seconds, f.Combined, 100*f.Lag, f.Void)
			if err := add(o.results, fullFile, f); err != nil {
				return figures, err
			}
			figures = append(figures, f.figure())
		}
	}
	return figures, nil
}

// figure holds the combination to the run.
func (f full) figure() report.Figure {
	return report.Figure{
		Metric: "error of the combined time to the target[" + f.key() + "]", Unit: "%", Value: 100 * math.Abs(f.Combined/f.Seconds-1),
		Bar: 10, Aim: 5, AtMost: true, Void: f.Void, Conditions: map[string]any{"record": f},
	}
}

// run runs one configuration to the last target.
func (m measured) run(ctx context.Context, d *rig.Daemon, w workload, best outcome, f full) (full, error) {
	c, o := best.configuration, m.options
	if c.side == averaged { // tuning chooses
		c.pipelines, c.schedule = 0, "auto"
	}
	shape, err := w.shapeOf(ctx, d, o, c)
	if err != nil {
		return f, err
	}
	q := quality{Model: w.name, Side: c.side, Devices: c.trainedOn(), Pipelines: max(1, best.pipelines), Micros: c.micros, Micro: w.micro, Rate: best.rate, Seed: f.Seed}
	at := *d
	at.File = w.file(o.jobFiles)
	set := slices.Concat(w.training(q, o), c.laid(w), c.timed(shape, o.forward)) // what is said later counts
	last, h, err := untilLoss(ctx, &at, w.last(), set)
	if err != nil {
		return f, err
	}
	q.Pipelines = last.Pipelines // what tuning chose
	for _, e := range h.Evaluations {
		q.Samples, q.Loss = append(q.Samples, int(e.Steps)*q.batch()), append(q.Loss, e.Loss)
	}
	samples, reached := q.samplesTo(w.last())
	if !reached {
		return f, fmt.Errorf("the loss was %v after %d samples, and the target is %v", q.Loss, w.budget, w.last())
	}
	took := stepTimes(h)
	slices.Sort(took)
	step := mean(took[:max(1, len(took)*9/10)]) // those with an evaluation in them take longer
	seconds := samples / float64(q.batch()) * step
	f.Schedule, f.Pipelines, f.ForwardMs = last.Schedule, last.Pipelines, o.forward.Seconds()*1e3
	f.Samples, f.Seconds, f.Wall = samples, seconds, h.Evaluations[len(h.Evaluations)-1].Time.Sub(h.Evaluations[0].Time).Seconds()
	period, err := c.across(f.Schedule, c.chunks, f.Pipelines, c.micros, q.roundBatches(w)) // drained where it was
	if err != nil {
		return f, err
	}
	f.Lag, f.Void, f.DeviceBytes = lag(last), void(lag(last)), held(last, c)
	fast, reached := recordedSamples(m.quality, q, w.last())
	if !reached && f.Void == "" {
		f.Void = fmt.Sprintf("no run is recorded to the target that the combination could take its samples from: %s", q.key())
	}
	f.Combined = fast / float64(q.batch()) * period * o.forward.Seconds()
	return f, nil
}

// trainedOn is the number of devices in the key of runs of the method.
func (c configuration) trainedOn() int {
	if lies(c.side) {
		return c.devices
	}
	return 1
}

// recordedSamples is what the same run took to the target as fast as can be: with as many pipelines as tuning chose, which need not be those that the combination took.
func recordedSamples(all []quality, run quality, target float64) (samples float64, reached bool) {
	at := slices.IndexFunc(all, func(q quality) bool { return q.key() == run.key() })
	if at < 0 {
		return 0, false
	}
	return all[at].samplesTo(target)
}
