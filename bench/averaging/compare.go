package main

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"github.com/avgpipe/avgpipe/bench/internal/report"
)

// tried is what runs that differ in their learning rate and seed came to.
type tried struct {
	seeds map[string][]float64 // by learning rate, a loss a seed
	mean  map[string]float64
	best  string // learning rate of the lowest mean
}

// try collects the losses of runs.
func try(o options, results map[run]result, runs func(seed int) map[string]run) tried {
	t := tried{seeds: map[string][]float64{}, mean: map[string]float64{}}
	for _, seed := range o.seeds {
		for lr, r := range runs(seed) {
			t.seeds[lr] = append(t.seeds[lr], results[r].loss)
			t.mean[lr] += results[r].loss / float64(len(o.seeds))
		}
	}
	t.best = slices.MinFunc(slices.Sorted(maps.Keys(t.mean)), func(a, b string) int { return cmp.Compare(t.mean[a], t.mean[b]) })
	return t
}

// over is the loss at each learning rate over another loss.
func (t tried) over(loss float64) map[string]float64 {
	all := map[string]float64{}
	for lr, mean := range t.mean {
		all[lr] = mean / loss
	}
	return all
}

// compare holds each rule to its references: the mean loss over the seeds at the best learning rate of each.
func compare(o options, results map[run]result) (figures []report.Figure) {
	for _, s := range o.sides {
		for _, u := range o.rules {
			for _, steps := range o.steps {
				for _, n := range o.counts {
					figures = append(figures, s.figure(o, results, u, steps, n))
				}
			}
		}
	}
	return figures
}

func (s side) figure(o options, results map[run]result, u rule, steps, pipelines int) report.Figure {
	averaged := try(o, results, func(seed int) map[string]run { return s.averaged(o, u, steps, pipelines, seed) })
	reference := try(o, results, func(seed int) map[string]run { return s.references(o, steps, pipelines, seed) })
	best := reference.mean[reference.best]
	var bySeed []float64
	for i := range o.seeds {
		bySeed = append(bySeed, averaged.seeds[averaged.best][i]/reference.seeds[reference.best][i])
	}
	sample := s.averaged(o, u, steps, pipelines, o.seeds[0])[averaged.best]
	return report.Figure{
		Metric: fmt.Sprintf("held-out loss, rule %s, N=%d, %d steps, over %s", u.name, pipelines, steps, s.name),
		Value:  averaged.mean[averaged.best] / best, Unit: "x",
		Bar: s.bars[pipelines], Aim: 1, AtMost: true,
		Conditions: map[string]any{
			"averaging": results[sample].averaging, "steps": steps, "samples": sample.samples(), "batch": sample.Batch, "seeds": o.seeds,
			"lr": averaged.best, "lr_reference": reference.best, "by_seed": bySeed, "by_lr": averaged.over(best), "reference_by_lr": reference.over(best),
			"losses": averaged.seeds, "losses_reference": reference.seeds,
			"loss_untrained": results[sample].untrained,
		},
	}
}
