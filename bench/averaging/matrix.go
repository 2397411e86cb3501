package main

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
)

// run is one training.
type run struct {
	Steps, Pipelines int
	Batch            int    // samples of one pipeline in a step
	Pull             string // empty: one pipeline, nothing is averaged
	Alpha            string // empty: the pull's default
	Horizon          string // empty: the pull does not predict
	RateScale        string
	Rate             string // before it is scaled
	Seed             int
}

func (r run) String() string {
	averaging := "plain"
	if r.Pull != "" {
		averaging = "pull " + r.Pull + ", alpha " + cmp.Or(r.Alpha, "default") + ", horizon " + cmp.Or(r.Horizon, "none") + ", lr_scale " + r.RateScale
	}
	return fmt.Sprintf("%d steps, N = %d, batch %d, lr %s, %s, seed %d", r.Steps, r.Pipelines, r.Batch, r.Rate, averaging, r.Seed)
}

// samples is how many the run trains on.
func (r run) samples() int { return r.Steps * r.Batch * r.Pipelines }

// rule is a setting of averaging.
type rule struct {
	name, pull, alpha, horizon, rateScale string
}

// rules are those that can be measured.
var rules = map[string]rule{
	"default":  {"default", "predicted", "", "1.5", "auto"},
	"nearer":   {"nearer", "predicted", "", "1", "auto"},
	"old":      {"old", "old", "", "", "1"},
	"new":      {"new", "new", "", "", "auto"},
	"unscaled": {"unscaled", "predicted", "", "1.5", "1"},
}

func ruleNames() string { return strings.Join(slices.Sorted(maps.Keys(rules)), ", ") }

// ruleOf finds a rule by its name, or makes one of PULL:ALPHA:HORIZON:LR_SCALE.
func ruleOf(name string) (rule, error) {
	if r, ok := rules[name]; ok {
		return r, nil
	}
	parts := strings.Split(name, ":")
	if len(parts) != 4 {
		return rule{}, fmt.Errorf("no rule %q; there are %s, and PULL:ALPHA:HORIZON:LR_SCALE", name, ruleNames())
	}
	return rule{name, parts[0], parts[1], parts[2], parts[3]}, nil
}

// side is one of the two comparisons: what a pipeline and its reference train on in a step.
type side struct {
	name           string
	batch, total   func(batch, pipelines int) int // of a pipeline; of the reference
	referenceRates func(rates []float64, pipelines int) []float64
	bars           map[int]float64 // by pipelines
}

var sides = []side{
	{
		name:  "plain training", // the pipelines share its batch
		batch: func(batch, pipelines int) int { return batch / pipelines },
		total: func(batch, _ int) int { return batch },
		referenceRates: func(rates []float64, _ int) []float64 {
			return rates
		},
		bars: map[int]float64{2: 1.01, 4: 1.02},
	},
	{
		name:  "the synchronous batch of the same total size", // each pipeline has a batch of its own
		batch: func(batch, _ int) int { return batch },
		total: func(batch, pipelines int) int { return batch * pipelines },
		referenceRates: func(rates []float64, pipelines int) []float64 {
			all := slices.Clone(rates)
			for _, r := range rates {
				all = append(all, r*math.Sqrt(float64(pipelines)))
			}
			return all
		},
		bars: map[int]float64{2: 1.025, 4: 1.04},
	},
}

// rate writes a learning rate so that equal ones look equal.
func rate(r float64) string { return strconv.FormatFloat(r, 'g', 5, 64) }

// references are the runs of one pipeline that those of a side are held against, by learning rate.
func (s side) references(o options, steps, pipelines, seed int) map[string]run {
	all := map[string]run{}
	for _, lr := range s.referenceRates(o.rates, pipelines) {
		all[rate(lr)] = run{Steps: steps, Pipelines: 1, Batch: s.total(o.batch, pipelines), Rate: rate(lr), Seed: seed}
	}
	return all
}

// averaged are the runs with a rule, by learning rate.
func (s side) averaged(o options, u rule, steps, pipelines, seed int) map[string]run {
	all := map[string]run{}
	for _, lr := range o.rates {
		all[rate(lr)] = run{
			Steps: steps, Pipelines: pipelines, Batch: s.batch(o.batch, pipelines), Pull: u.pull, Alpha: u.alpha, Horizon: u.horizon, RateScale: u.rateScale, Rate: rate(lr), Seed: seed,
		}
	}
	return all
}

// matrix is every run, the first rule with its references before the other rules.
func matrix(o options) []run {
	var all []run
	have := map[run]bool{}
	add := func(runs map[string]run) {
		for _, key := range slices.Sorted(maps.Keys(runs)) {
			if r := runs[key]; !have[r] {
				have[r] = true
				all = append(all, r)
			}
		}
	}
	for _, u := range o.rules {
		for _, seed := range o.seeds {
			for _, steps := range o.steps {
				for _, n := range o.counts {
					for _, s := range sides {
						add(s.references(o, steps, n, seed))
						add(s.averaged(o, u, steps, n, seed))
					}
				}
			}
		}
	}
	return all
}
