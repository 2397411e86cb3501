package main

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"

	"github.com/avgpipe/avgpipe/bench/internal/report"
)

// tried is what runs that differ in their learning rate and seed came to.
type tried struct {
	seeds map[string][]float64 // by learning rate, a loss a seed
	mean  map[string]float64
	best  string // learning rate of the lowest mean; "": all have diverged
}

// try collects the losses of runs, or something else of which less is better. A rate at which one has diverged does not count.
func try(o options, results map[run]result, of func(result) float64, runs func(seed int) map[string]run) tried {
	t := tried{seeds: map[string][]float64{}, mean: map[string]float64{}}
	for _, seed := range o.seeds {
		for lr, r := range runs(seed) {
			x := of(results[r])
			if results[r].diverged {
				x = math.Inf(1)
			}
			t.seeds[lr] = append(t.seeds[lr], x)
			t.mean[lr] += x / float64(len(o.seeds))
		}
	}
	maps.DeleteFunc(t.mean, func(_ string, mean float64) bool { return math.IsInf(mean, 1) })
	maps.DeleteFunc(t.seeds, func(lr string, _ []float64) bool { _, ok := t.mean[lr]; return !ok })
	if len(t.mean) > 0 {
		t.best = slices.MinFunc(slices.Sorted(maps.Keys(t.mean)), func(a, b string) int { return cmp.Compare(t.mean[a], t.mean[b]) })
	}
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

// compare holds each rule to its references: the mean over the seeds at the best learning rate of each.
func compare(o options, results map[run]result) (figures []report.Figure) {
	for _, s := range o.sides {
		for _, u := range o.rules {
			for _, steps := range o.steps {
				for _, n := range o.counts {
					figures = append(figures, s.loss(o, results, u, steps, n))
					if o.classes {
						figures = append(figures, s.accuracy(o, results, u, steps, n))
					}
					figures = append(figures, s.share(o, results, u, steps, n))
				}
			}
		}
	}
	return figures
}

// tries are the runs of a rule, and those that they are held against.
func (s side) tries(o options, results map[run]result, of func(result) float64, u rule, steps, pipelines int) (averaged, reference tried) {
	averaged = try(o, results, of, func(seed int) map[string]run { return s.averaged(o, u, steps, pipelines, seed) })
	reference = try(o, results, of, func(seed int) map[string]run { return s.references(o, steps, pipelines, seed) })
	return averaged, reference
}

// void says why nothing can be compared; "": it can.
func void(averaged, reference tried) string {
	switch {
	case averaged.best == "":
		return "diverges at every learning rate"
	case reference.best == "":
		return "the reference diverges at every learning rate"
	}
	return ""
}

// loss is the loss of a rule over that of its reference.
func (s side) loss(o options, results map[run]result, u rule, steps, pipelines int) report.Figure {
	averaged, reference := s.tries(o, results, func(r result) float64 { return r.loss }, u, steps, pipelines)
	f := report.Figure{
		Metric: fmt.Sprintf("%s: held-out loss, rule %s, N=%d, %d steps, over %s", o.name, u.name, pipelines, steps, s.name), Unit: "x",
		Bar: s.bars[pipelines], Aim: 1, AtMost: true, Void: void(averaged, reference),
	}
	if f.Void != "" {
		return f
	}
	best := reference.mean[reference.best]
	var bySeed []float64
	for i := range o.seeds {
		bySeed = append(bySeed, averaged.seeds[averaged.best][i]/reference.seeds[reference.best][i])
	}
	sample := s.averaged(o, u, steps, pipelines, o.seeds[0])[averaged.best]
	f.Value = averaged.mean[averaged.best] / best
	f.Conditions = map[string]any{
		"averaging": results[sample].averaging, "steps": steps, "samples": sample.samples(), "batch": sample.Batch, "seeds": o.seeds,
		"lr": averaged.best, "lr_reference": reference.best, "by_seed": bySeed, "by_lr": averaged.over(best), "reference_by_lr": reference.over(best),
		"losses": averaged.seeds, "losses_reference": reference.seeds,
		"loss_untrained": results[sample].untrained,
	}
	return f
}

// mostErrors is how many points of held-out samples a method may get wrong more than its reference: what SAPipe's own table has (Chen et al. 2022).
const mostErrors = 0.3

// accuracy is how many more of held-out samples a rule gets wrong than its reference, in points.
func (s side) accuracy(o options, results map[run]result, u rule, steps, pipelines int) report.Figure {
	averaged, reference := s.tries(o, results, func(r result) float64 { return math.Round(1e8*(1-r.accuracy)) / 1e6 }, u, steps, pipelines)
	f := report.Figure{
		Metric: fmt.Sprintf("%s: held-out errors, rule %s, N=%d, %d steps, more than %s", o.name, u.name, pipelines, steps, s.name), Unit: "points",
		Bar: mostErrors, AtMost: true, Void: void(averaged, reference),
	}
	if f.Void == "" {
		f.Value = math.Round(1e6*(averaged.mean[averaged.best]-reference.mean[reference.best])) / 1e6 // without what a decimal fraction lacks in binary
		f.Conditions = map[string]any{
			"errors": averaged.mean[averaged.best], "errors_reference": reference.mean[reference.best], "lr": averaged.best, "lr_reference": reference.best,
			"by_lr": averaged.mean, "reference_by_lr": reference.mean, "by_seed": averaged.seeds[averaged.best], "reference_by_seed": reference.seeds[reference.best],
		}
	}
	return f
}

// mostShare is how much of a device's time averaging may take, of all pipelines on one device.
const mostShare = 0.01

// share is how much of the device's time averaging took: the median of all runs of a rule, which a rate does not change.
func (s side) share(o options, results map[run]result, u rule, steps, pipelines int) report.Figure {
	var all []float64
	for _, seed := range o.seeds {
		for _, r := range s.averaged(o, u, steps, pipelines, seed) {
			if !results[r].diverged {
				all = append(all, results[r].share)
			}
		}
	}
	f := report.Figure{
		Metric: fmt.Sprintf("%s: share of the device's time in averaging, rule %s, N=%d, batch %d", o.name, u.name, pipelines, s.batch(o.batch, pipelines)), Unit: "",
		Bar: mostShare, AtMost: true, Conditions: map[string]any{"shares": all},
	}
	if len(all) == 0 {
		f.Void = "all runs have diverged"
		return f
	}
	slices.Sort(all)
	f.Value = all[len(all)/2]
	return f
}
