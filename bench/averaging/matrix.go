package main

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/avgpipe/avgpipe/elastic"
)

// run is one training.
type run struct {
	Steps, Pipelines int
	Batch            int    // samples of one pipeline in a step
	Averaging        string // rule.settings; empty: one pipeline, nothing is averaged
	Rate             string // before it is scaled
	Seed             int
}

func (r run) String() string {
	return fmt.Sprintf("%d steps, N = %d, batch %d, lr %s, %s, seed %d", r.Steps, r.Pipelines, r.Batch, r.Rate, cmp.Or(r.Averaging, "plain"), r.Seed)
}

// samples is how many the run trains on.
func (r run) samples() int { return r.Steps * r.Batch * r.Pipelines }

// rule is a way to average: METHOD, or METHOD:KEY=VALUE:..., of the section averaging of a job file.
type rule struct{ name, settings string }

// rules are those with a name of their own.
var rules = map[string]string{
	"default":  "elastic",
	"nearer":   "elastic:horizon=1",
	"old":      "elastic:pull=old:lr_scale=1",
	"new":      "elastic:pull=new",
	"unscaled": "elastic:lr_scale=1",
}

func ruleNames() string { return strings.Join(slices.Sorted(maps.Keys(rules)), ", ") }

// ruleOf finds a rule by its name, or takes METHOD:KEY=VALUE:....
func ruleOf(name string) (rule, error) {
	settings := cmp.Or(rules[name], name)
	method, rest, _ := strings.Cut(settings, ":")
	known := slices.Contains(elastic.Methods(), method)
	if strings.Contains(settings, ":") {
		for setting := range strings.SplitSeq(rest, ":") {
			known = known && strings.Contains(setting, "=")
		}
	}
	if !known {
		return rule{}, fmt.Errorf("no rule %q; there are %s, and METHOD:KEY=VALUE:... with the methods %s", name, ruleNames(), strings.Join(elastic.Methods(), ", "))
	}
	return rule{name, settings}, nil
}

// section is the run's section averaging of a job file: with one pipeline, which averages nothing, that of the default.
func (r run) section() string {
	settings := strings.ReplaceAll(cmp.Or(r.Averaging, rules["default"]), ":", ", ")
	return "averaging={method: " + strings.ReplaceAll(settings, "=", ": ") + "}"
}

// side is one of the two comparisons: what a pipeline and its reference train on in a step.
type side struct {
	flag, name     string
	batch, total   func(batch, pipelines int) int // of a pipeline; of the reference
	referenceRates func(rates []float64, pipelines int) []float64
	bars           map[int]float64 // by pipelines
}

var sides = []side{
	{
		flag:  "plain",
		name:  "plain training", // the pipelines share its batch
		batch: func(batch, pipelines int) int { return batch / pipelines },
		total: func(batch, _ int) int { return batch },
		referenceRates: func(rates []float64, _ int) []float64 {
			return rates
		},
		bars: map[int]float64{2: 1.01, 4: 1.02},
	},
	{
		flag:  "synchronous",
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

// sideOf finds a comparison.
func sideOf(name string) (side, error) {
	var names []string
	for _, s := range sides {
		if s.flag == name {
			return s, nil
		}
		names = append(names, s.flag)
	}
	return side{}, fmt.Errorf("no comparison %q; there are %s", name, strings.Join(names, ", "))
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
			Steps: steps, Pipelines: pipelines, Batch: s.batch(o.batch, pipelines), Averaging: u.settings, Rate: rate(lr), Seed: seed,
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
					for _, s := range o.sides {
						add(s.references(o, steps, n, seed))
						add(s.averaged(o, u, steps, n, seed))
					}
				}
			}
		}
	}
	return all
}
