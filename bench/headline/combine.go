package main

import (
	"context"
	"fmt"
	"math"
	"os"
	"slices"
	"text/tabwriter"

	"github.com/avgpipe/avgpipe/bench/internal/report"
)

// measured is all that is recorded.
type measured struct {
	quality []quality
	speed   []speed
	full    []full
	memory  []memory
	options
}

func load(o options) (m measured, err error) {
	m.options = o
	if m.quality, err = records[quality](o.results, qualityFile); err != nil {
		return m, err
	}
	if m.speed, err = records[speed](o.results, speedFile); err != nil {
		return m, err
	}
	if m.full, err = records[full](o.results, fullFile); err != nil {
		return m, err
	}
	m.memory, err = records[memory](o.results, memoryFile)
	return m, err
}

// outcome is a configuration with what it takes to the target: measured samples at the simulator's speed.
type outcome struct {
	configuration
	period     float64 // a batch of all pipelines, in forwards
	samples    float64 // to the target
	rate       float64 // learning rate that needs the fewest
	time       float64 // to the target, in forwards
	throughput float64 // micro-batches in a forward
	bytes      int64   // of the device that holds most; 0 where it is not known
}

// outcomes are those of a method on a setting, one for each number of micro-batches that was trained.
func (m measured) outcomes(w workload, s setting, of method) (all []outcome, err error) {
	if of.chunks*s.devices > w.layers && of.schedule != "" {
		return nil, nil
	}
	for _, micros := range m.microsOf(of) {
		if of.schedule == "" && micros%s.devices != 0 {
			continue
		}
		c, err := m.counts(of, s, micros).settle()
		if err != nil {
			return nil, err
		}
		o := outcome{configuration: c}
		if o.period, err = m.periodOf(w, c); err != nil {
			return nil, err
		}
		var found bool
		if o.samples, o.rate, found = need(m.quality, w.name, of.side, s.devices, c.pipelines, micros, w.target); !found {
			continue
		}
		o.throughput = float64(c.pipelines*micros) / o.period
		o.time = o.samples / float64(w.micro) / o.throughput
		o.bytes = m.bytesOf(w, c)
		all = append(all, o)
	}
	return all, nil
}

// counts is a configuration with the number of pipelines that is given to it.
func (o options) counts(of method, s setting, micros int) configuration {
	c := configuration{of, s, 1, micros}
	if of.side == averagedPipeDream {
		c.pipelines = o.given
	}
	return c
}

// periodOf is what a batch takes by the simulator, of methods that step inside of it without a drain at its end.
func (m measured) periodOf(w workload, c configuration) (float64, error) {
	switch {
	case c.onOne():
		return c.replicated(exchange{m.weightsOf(w), w.layers}, c.micros)
	case c.runsOn():
		return c.undrained(c.schedule, c.micros)
	}
	return c.period(c.schedule, c.chunks, c.pipelines, c.micros)
}

// best is the outcome of a method that reaches the target first, of all numbers of micro-batches and learning rates.
func (m measured) best(w workload, s setting, of method) (best outcome, found bool, err error) {
	all, err := m.outcomes(w, s, of)
	for _, o := range all {
		if !math.IsInf(o.time, 1) && !math.IsNaN(o.time) && (!found || o.time < best.time) {
			best, found = o, true
		}
	}
	return best, found, err
}

// compared is one model on one setting: every method at its best.
type compared struct {
	workload
	setting
	all []outcome
}

// of finds a method's; false where it could not run or was not trained.
func (c compared) of(name string) (outcome, bool) {
	at := slices.IndexFunc(c.all, func(o outcome) bool { return o.name == name })
	if at < 0 {
		return outcome{}, false
	}
	return c.all[at], true
}

// peer is the fastest method but avgpipe; of those that AvgPipe's authors compared it with, or of all.
func (c compared) peer(published bool) (best outcome, found bool) {
	for _, o := range c.all {
		if !o.averages() && (o.published || !published) && (!found || o.time < best.time) {
			best, found = o, true
		}
	}
	return best, found
}

// compare puts all methods side by side.
func (m measured) compare() (all []compared, err error) {
	for _, w := range m.models {
		for _, s := range m.settings() {
			c := compared{workload: w, setting: s}
			for _, of := range methods {
				o, found, err := m.best(w, s, of)
				if err != nil {
					return nil, err
				}
				if found {
					c.all = append(c.all, o)
				}
			}
			all = append(all, c)
		}
	}
	return all, nil
}

// parts are what a gain in time is the product of.
type parts struct {
	bubble  float64 // speed on links that take no time
	overlap float64 // what is left of the speed: communication that is hidden
	samples float64 // to the target
}

// gain splits the gain of an outcome over another one. free are their throughputs on links that take no time.
func gain(o, over outcome, free, overFree float64) parts {
	return parts{
		bubble: free / overFree, overlap: o.throughput / over.throughput / (free / overFree), samples: over.samples / o.samples,
	}
}

// free is the throughput of an outcome's configuration on links that take no time.
func (o outcome) free() (float64, error) {
	s := setting{devices: o.devices}
	if o.onOne() {
		period, err := s.replicated(exchange{layers: 1}, o.micros)
		return float64(o.micros) / period, err
	}
	if o.runsOn() {
		period, err := s.undrained(o.schedule, o.micros)
		return float64(o.micros) / period, err
	}
	period, err := s.period(o.schedule, o.chunks, o.pipelines, o.micros)
	return float64(o.pipelines*o.micros) / period, err
}

// combine prints and compares what was measured.
func combine(_ context.Context, o options) (figures []report.Figure, err error) {
	m, err := load(o)
	if err != nil {
		return nil, err
	}
	all, err := m.compare()
	if err != nil {
		return nil, err
	}
	if err := table(all); err != nil {
		return nil, err
	}
	for _, published := range []bool{true, false} {
		found, err := gains(all, published)
		if err != nil {
			return nil, err
		}
		figures = append(figures, found...)
	}
	return figures, draw(o, m)
}

// gains are the figures of avgpipe over the best peer, each by itself and their geometric mean.
func gains(all []compared, published bool) (figures []report.Figure, err error) {
	name, bar, aim := "best of all peers", 1.3, 1.5
	if published {
		name, bar, aim = "best of the published peers", 1.7, 2.0
	}
	product, count := 0.0, 0
	for _, c := range all {
		own, found := c.of(averaged)
		peer, there := c.peer(published)
		if !found || !there {
			continue
		}
		free, err := own.free()
		if err != nil {
			return nil, err
		}
		peerFree, err := peer.free()
		if err != nil {
			return nil, err
		}
		p := gain(own, peer, free, peerFree)
		product, count = product+math.Log(peer.time/own.time), count+1
		figures = append(figures, report.Figure{
			Metric: fmt.Sprintf("time to the target, %s over avgpipe[%s,%v]", name, c.name, c.setting), Value: peer.time / own.time, Unit: "x", Bar: bar, Aim: aim,
			Conditions: map[string]any{
				"peer": peer.name, "peer_micro_batches": peer.micros, "peer_lr": peer.rate, "peer_samples": peer.samples, "peer_bytes": peer.bytes,
				"pipelines": own.pipelines, "micro_batches": own.micros, "schedule": own.schedule, "lr": own.rate, "samples": own.samples, "bytes": own.bytes,
				"target": c.target, "gain_bubble": p.bubble, "gain_overlap": p.overlap, "gain_samples": p.samples,
			},
		})
	}
	if count > 0 {
		figures = append(figures, report.Figure{
			Metric: "time to the target, " + name + " over avgpipe, mean", Value: math.Exp(product / float64(count)), Unit: "x", Bar: bar, Aim: aim,
			Conditions: map[string]any{"of": count, "mean": "geometric"},
		})
	}
	return figures, nil
}

// table prints every method of every comparison.
func table(all []compared) error {
	t := tabwriter.NewWriter(os.Stderr, 0, 8, 2, ' ', 0)
	fmt.Fprintln(t, "model\tsetting\tmethod\tschedule\tN\tM\tlr\tsamples\tmicro-batches in F\ttime in F\tMB of a device\t") //nolint:errcheck // Flush returns it
	for _, c := range all {
		for _, o := range c.all {
			fmt.Fprintf(t, "%s\t%v\t%s\t%s\t%d\t%d\t%g\t%.0f\t%.3f\t%.0f\t%.2f\t\n", //nolint:errcheck // Flush returns it
				c.name, c.setting, o.name, o.schedule, o.pipelines, o.micros, o.rate, o.samples, o.throughput, o.time, float64(o.bytes)/1e6)
		}
	}
	return t.Flush()
}
