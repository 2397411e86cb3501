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
	all, err := records[quality](o.results, qualityFile)
	if err != nil {
		return m, err
	}
	m.quality = longest(all)
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

// outcomes are those of a method on a setting, one for each number of micro-batches and of pipelines that was trained to the target.
func (m measured) outcomes(w workload, target float64, s setting, of method) (all []outcome, err error) {
	if of.chunks*s.devices > w.layers && of.schedule != "" {
		return nil, nil
	}
	for _, given := range m.counts(of, s) {
		c, err := given.settle()
		if err != nil {
			return nil, err
		}
		o := outcome{configuration: c}
		if o.period, err = m.periodOf(w, c); err != nil {
			return nil, err
		}
		var found bool
		if o.samples, o.rate, found = need(m.quality, w.name, of.side, s.devices, c.pipelines, c.micros, target); !found {
			continue
		}
		o.throughput = float64(c.pipelines*c.micros) / o.period
		o.time = o.samples / float64(w.micro) / o.throughput
		o.bytes = m.bytesOf(w, c)
		all = append(all, o)
	}
	return all, nil
}

// counts are the configurations that a method chooses from: its numbers of micro-batches, and of pipelines where they are given to it.
func (o options) counts(of method, s setting) (all []configuration) {
	pipelines := []int{1}
	switch of.side {
	case averaged:
		pipelines = []int{0} // tuning chooses
	case averagedPipeDream:
		pipelines = o.given
	}
	for _, n := range pipelines {
		for _, micros := range o.microsOf(of) {
			if c := (configuration{of, s, n, micros}); !c.onOne() || micros%s.devices == 0 {
				all = append(all, c)
			}
		}
	}
	return all
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

// best is the outcome of a method that reaches the target first, of all numbers of micro-batches and of pipelines and learning rates.
func (m measured) best(w workload, target float64, s setting, of method) (best outcome, found bool, err error) {
	all, err := m.outcomes(w, target, s, of)
	for _, o := range all {
		if !math.IsInf(o.time, 1) && !math.IsNaN(o.time) && (!found || o.time < best.time) {
			best, found = o, true
		}
	}
	return best, found, err
}

// compared is one model to one target on one setting: every method at its best.
type compared struct {
	workload
	target float64
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

// compare puts all methods side by side, at every target of every model.
func (m measured) compare() (all []compared, err error) {
	for _, w := range m.models {
		for _, target := range w.targets {
			for _, s := range m.settings() {
				c, err := m.compareOn(w, target, s)
				if err != nil {
					return nil, err
				}
				all = append(all, c)
			}
		}
	}
	return all, nil
}

func (m measured) compareOn(w workload, target float64, s setting) (compared, error) {
	c := compared{workload: w, target: target, setting: s}
	for _, of := range methods {
		o, found, err := m.best(w, target, s, of)
		if err != nil {
			return c, err
		}
		if found {
			c.all = append(c.all, o)
		}
	}
	return c, nil
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
	if figures, err = allGains(all); err != nil {
		return nil, err
	}
	return figures, draw(o, m)
}

// table prints every method of every comparison.
func table(all []compared) error {
	t := tabwriter.NewWriter(os.Stderr, 0, 8, 2, ' ', 0)
	fmt.Fprintln(t, "model\ttarget\tsetting\tmethod\tschedule\tN\tM\tlr\tsamples\tmicro-batches in F\ttime in F\tMB of a device\t") //nolint:errcheck // Flush returns it
	for _, c := range all {
		for _, o := range c.all {
			fmt.Fprintf(t, "%s\t%g\t%v\t%s\t%s\t%d\t%d\t%g\t%.0f\t%.3f\t%.0f\t%.2f\t\n", //nolint:errcheck // Flush returns it
				c.name, c.target, c.setting, o.name, o.schedule, o.pipelines, o.micros, o.rate, o.samples, o.throughput, o.time, float64(o.bytes)/1e6)
		}
	}
	return t.Flush()
}
