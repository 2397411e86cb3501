package main

import (
	"fmt"
	"math"
	"os"
	"text/tabwriter"

	"github.com/avgpipe/avgpipe/bench/internal/report"
)

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

// moment is a point of a training that the methods are compared at.
type moment struct {
	name   string
	target func(workload) float64
	judged bool // its gains are held against bars; those of the other one are shown beside
}

var moments = []moment{{"early", workload.first, false}, {"late", workload.last, true}}

// gains are the figures of a way to average, own, over the best peer: each by itself, and the geometric means of each model and of all.
func gains(all []compared, at moment, own string, published bool) (figures []report.Figure, err error) {
	name, bar, aim := "best of all peers", 1.3, 1.5
	if published {
		name, bar, aim = "best of the published peers", 1.7, 2.0
	}
	metric := fmt.Sprintf("time to the %s target, %s over %s", at.name, name, own)
	var models []string // in their order
	logs := map[string][]float64{}
	for _, c := range all {
		peer, found := c.peer(published)
		mine, there := c.of(own)
		if c.target != at.target(c.workload) || !found || !there {
			continue
		}
		f, err := gainFigure(c, mine, peer)
		if err != nil {
			return nil, err
		}
		f.Metric, f.Bar, f.Aim = fmt.Sprintf("%s[%s,%v]", metric, c.name, c.setting), bar, aim
		figures = append(figures, f)
		if logs[c.name] == nil {
			models = append(models, c.name)
		}
		logs[c.name], logs[""] = append(logs[c.name], math.Log(f.Value)), append(logs[""], math.Log(f.Value))
	}
	add := func(of, model string) {
		figures = append(figures, report.Figure{
			Metric: metric + ", mean" + of, Value: math.Exp(mean(logs[model])), Unit: "x", Bar: bar, Aim: aim, Conditions: map[string]any{"of": len(logs[model]), "mean": "geometric"},
		})
	}
	for _, model := range models {
		add("["+model+"]", model)
	}
	if len(models) > 0 {
		add("", "")
	}
	return figures, nil
}

// allGains prints the gains at both targets, and returns those that have bars: of avgpipe with tuning, where the target is judged. What changes the arithmetic a user chooses.
func allGains(all []compared) (judged []report.Figure, err error) {
	t := tabwriter.NewWriter(os.Stderr, 0, 8, 2, ' ', 0)
	fmt.Fprintln(t, "gain\tvalue\tpeer\tbubble\toverlap\tsamples\t") //nolint:errcheck // Flush returns it
	for _, at := range moments {
		for _, own := range []string{averaged, averagedPipeDream} {
			for _, published := range []bool{true, false} {
				found, err := gains(all, at, own, published)
				if err != nil {
					return nil, err
				}
				if at.judged && own == averaged {
					judged = append(judged, found...)
				}
				for _, f := range found {
					fmt.Fprintf(t, "%s\t%.3f\t", f.Metric, f.Value) //nolint:errcheck // Flush returns it
					if c := f.Conditions; c["peer"] != nil {
						fmt.Fprintf(t, "%s\t%.2f\t%.2f\t%.2f\t", c["peer"], c["gain_bubble"], c["gain_overlap"], c["gain_samples"]) //nolint:errcheck // Flush returns it
					}
					fmt.Fprintln(t) //nolint:errcheck // Flush returns it
				}
			}
		}
	}
	return judged, t.Flush()
}

// gainFigure is what an outcome gains over one of a peer.
func gainFigure(c compared, own, peer outcome) (f report.Figure, err error) {
	free, err := own.free()
	if err != nil {
		return f, err
	}
	peerFree, err := peer.free()
	if err != nil {
		return f, err
	}
	p := gain(own, peer, free, peerFree)
	return report.Figure{
		Value: peer.time / own.time, Unit: "x",
		Conditions: map[string]any{
			"peer": peer.name, "peer_micro_batches": peer.micros, "peer_lr": peer.rate, "peer_samples": peer.samples, "peer_bytes": peer.bytes,
			"pipelines": own.pipelines, "micro_batches": own.micros, "schedule": own.schedule, "lr": own.rate, "samples": own.samples, "bytes": own.bytes,
			"target": c.target, "gain_bubble": p.bubble, "gain_overlap": p.overlap, "gain_samples": p.samples,
		},
	}, nil
}
