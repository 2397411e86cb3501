package main

import (
	"fmt"
	"math"
	"strings"

	"github.com/avgpipe/avgpipe/bench/internal/report"
)

// measurement is a line of the output: a method in a setting.
type measurement struct {
	Bench         string    `json:"bench"`
	Method        string    `json:"method"`
	Settings      string    `json:"settings,omitempty"`
	Replicas      int       `json:"replicas"`
	Link          float64   `json:"link_gbit_s"`
	Dictated      float64   `json:"dictated_s"` // that a replica computes for a step; 0: on real cores
	Parameters    int       `json:"parameters"`
	Batch         int       `json:"batch"`    // samples of a replica
	Sequence      int       `json:"sequence"` // tokens of a sample
	Step          float64   `json:"step_s"`   // median of the repeats
	Repeats       []float64 `json:"repeats_s"`
	TokensPerS    float64   `json:"tokens_per_s"`            // of all replicas
	Communication *float64  `json:"communication,omitempty"` // share of a step beyond what it takes without any exchange
	OverAllReduce *float64  `json:"over_allreduce,omitempty"`
	OverDDP       *float64  `json:"over_ddp,omitempty"` // the fastest of its settings
	CPU           float64   `json:"cpu_s"`              // of the cores, in a step of a replica
	Sent          float64   `json:"sent_bytes"`         // by a host in a step
	LinkUsed      float64   `json:"link_used"`          // share of what the link could have sent meanwhile
	Lag           float64   `json:"lag,omitempty"`      // by which share of the time emulated devices were late
}

// each takes a number of every reading.
func each(all []reading, of func(reading) float64) (values []float64) {
	for _, r := range all {
		values = append(values, of(r))
	}
	return values
}

func stepOf(r reading) float64 { return r.step }

// ratio is the median over the repeats of other's step over one's: how much faster one is. Both were measured in turn, so what slows the machine down for a while
// slows both down.
func ratio(one, other []reading) *float64 {
	if len(one) == 0 || len(one) != len(other) {
		return nil
	}
	var all []float64
	for i := range one {
		all = append(all, other[i].step/one[i].step)
	}
	median := report.Median(all)
	return &median
}

// fastest is the peer in each repeat with the setting that was the fastest there; nothing where it was not measured.
func fastest(methods []method, readings [][]reading) (best []reading) {
	for i, m := range methods {
		if m.name != ddp {
			continue
		}
		if best == nil {
			best = append(best, readings[i]...)
			continue
		}
		for k, r := range readings[i] {
			if r.step < best[k].step {
				best[k] = r
			}
		}
	}
	return best
}

// of are the readings of the first method of a name.
func of(name string, methods []method, readings [][]reading) []reading {
	for i, m := range methods {
		if m.name == name {
			return readings[i]
		}
	}
	return nil
}

// compare is what readings come to.
func compare(s setting, methods []method, readings [][]reading) (all []measurement) {
	allreduce, peer, alone := of("allreduce", methods, readings), fastest(methods, readings), of(none, methods, readings)
	for i, m := range methods {
		rs := readings[i]
		step := report.Median(each(rs, stepOf))
		sent := report.Median(each(rs, func(r reading) float64 { return r.sent }))
		one := measurement{
			Bench: "averaging/speed", Method: m.name, Settings: strings.Join(m.settings, " "), Replicas: s.replicas, Link: s.link, Dictated: s.dictated.Seconds(),
			Parameters: s.parameters, Batch: s.batch, Sequence: s.sequence, Step: step, Repeats: each(rs, stepOf),
			TokensPerS: float64(s.replicas*s.tokens()) / step, OverAllReduce: ratio(rs, allreduce), OverDDP: ratio(rs, peer),
			CPU: report.Median(each(rs, func(r reading) float64 { return r.cpu })), Sent: sent, LinkUsed: 8 * sent / step / (s.link * 1e9),
			Lag: report.Median(each(rs, func(r reading) float64 { return r.lag })),
		}
		without := report.Median(each(alone, stepOf))
		if m.name == ddp {
			without = report.Median(each(rs, func(r reading) float64 { return r.alone }))
		}
		if without > 0 && m.name != none {
			share := max(0, 1-without/step)
			one.Communication = &share
		}
		all = append(all, one)
	}
	return all
}

// The bars, and where they hold.
const (
	balancedFrom, balancedTo = 0.4, 0.6 // shares of communication in a step of allreduce
	slowLink                 = 0.1      // Gbit/s

	sapipeBar, sapipeAim   = 1.5, 2.57 // over allreduce
	updatesBar, updatesAim = 2.5, 5    // of elastic averaging and DiLoCo over the peer
)

// judge holds a setting's measurements against the bars.
func judge(s setting, all []measurement) (figures []report.Figure) {
	best := map[string]*measurement{} // by method, the fastest of its settings
	for i := range all {
		if m := &all[i]; best[m.Method] == nil || m.Step < best[m.Method].Step {
			best[m.Method] = m
		}
	}
	figure := func(name, over string, value *float64, bar, aim float64) {
		if value == nil {
			return
		}
		f := report.Figure{Metric: fmt.Sprintf("%s over %s, %v", name, over, s), Value: *value, Unit: "x", Bar: bar, Aim: aim, Conditions: map[string]any{
			"settings": best[name].Settings, "step_s": best[name].Step, "communication": best[name].Communication, "parameters": s.parameters, "batch": s.batch,
			"sequence": s.sequence, "lag": best[name].Lag,
		}}
		if math.IsNaN(*value) {
			f.Void = "a step takes no time"
		}
		figures = append(figures, f)
	}
	allreduce := best["allreduce"]
	if allreduce != nil {
		figure("allreduce", ddp, allreduce.OverDDP, 1, 1)
	}
	if m := best["sapipe"]; m != nil && allreduce != nil && allreduce.Communication != nil {
		if share := *allreduce.Communication; share >= balancedFrom && share <= balancedTo {
			figure("sapipe", "allreduce", m.OverAllReduce, sapipeBar, sapipeAim)
		}
	}
	for _, name := range []string{"elastic", "diloco"} {
		if m := best[name]; m != nil && s.link <= slowLink {
			figure(name, ddp, m.OverDDP, updatesBar, updatesAim)
		}
	}
	return figures
}
