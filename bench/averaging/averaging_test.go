package main

import (
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestRulesAreSectionsOfAJobFile(t *testing.T) {
	for name, want := range map[string]string{
		"default":                          "averaging={method: elastic}",
		"old":                              "averaging={method: elastic, pull: old, lr_scale: 1}",
		"sapipe:stale_layers=2:warmup=100": "averaging={method: sapipe, stale_layers: 2, warmup: 100}",
		"localsgd":                         "averaging={method: localsgd}",
	} {
		u, err := ruleOf(name)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if got := (run{Averaging: u.settings}).section(); got != want {
			t.Errorf("%s: %s, want %s", name, got, want)
		}
	}
	for _, name := range []string{"", "elastc", "sapipe:stale_layers", "elastic:"} {
		if u, err := ruleOf(name); err == nil {
			t.Errorf("%q is taken for %+v", name, u)
		}
	}
	if got := (run{}).section(); got != "averaging={method: elastic}" {
		t.Errorf("of one pipeline: %s", got)
	}
}

// TestEverySideHasItsReference: runs of one pipeline with the samples of the averaged ones.
func TestEverySideHasItsReference(t *testing.T) {
	o := options{workload: workload{steps: []int{10}, rates: []float64{0.1}, batch: 16}, counts: []int{4}, seeds: []int{1}, rules: []rule{{"default", "elastic"}}, sides: sides}
	for _, s := range sides {
		for _, r := range s.averaged(o, o.rules[0], 10, 4, 1) {
			for _, of := range s.references(o, 10, 4, 1) {
				if of.Averaging != "" || of.Pipelines != 1 || of.samples() != r.samples() {
					t.Errorf("%s: %v is held against %v", s.name, r, of)
				}
			}
		}
	}
	if n := len(matrix(o)); n != 5 { // two averaged ones, one reference of the one side and two of the other
		t.Errorf("%d runs, want 5", n)
	}
}

// TestAWorkloadIsAJobFile that is there, with what flags change.
func TestAWorkloadIsAJobFile(t *testing.T) {
	for _, w := range workloads {
		if _, err := os.Stat(filepath.Join("../..", w.file)); err != nil || len(w.steps) == 0 || len(w.rates) == 0 || w.batch%4 != 0 || w.heldOut == 0 {
			t.Errorf("%+v: %v", w, err)
		}
	}
	if _, err := workloadOf("mnist"); err == nil || !strings.Contains(err.Error(), "source, mlp") {
		t.Errorf("an unknown one: %v", err)
	}
	o, err := options{}.with("mlp", workload{batch: 4, rates: []float64{1}})
	if err != nil || o.batch != 4 || len(o.rates) != 1 || o.steps[0] != 512 || !o.classes {
		t.Errorf("with changes: %+v, %v", o, err)
	}
}

// TestErrorsAreCountedInPoints: at the best rate of each side, which need not be that of its lowest loss.
func TestErrorsAreCountedInPoints(t *testing.T) {
	u := rule{"default", "elastic"}
	o := options{workload: workload{name: "mlp", steps: []int{10}, rates: []float64{0.1, 0.2}, batch: 16, classes: true}, counts: []int{4}, seeds: []int{1, 2}, rules: []rule{u}, sides: sides[1:]}
	results := map[run]result{}
	for _, seed := range o.seeds {
		for lr, r := range sides[1].averaged(o, u, 10, 4, seed) {
			results[r] = result{loss: 2, share: 0.25, accuracy: map[string]float64{"0.1": 0.93, "0.2": 0.95}[lr]}
		}
		for lr, r := range sides[1].references(o, 10, 4, seed) {
			results[r] = result{loss: 1, accuracy: map[string]float64{"0.2": 0.97}[lr] + float64(seed)/100}
		}
	}
	for _, seed := range o.seeds { // the rate of the best loss is of no use where a seed diverges
		lost := sides[1].references(o, 10, 4, seed)["0.1"]
		if lost.Seed == 2 {
			results[lost] = result{diverged: true}
		} else {
			results[lost] = result{loss: 0.1, accuracy: 1}
		}
	}
	figures := compare(o, results)
	if len(figures) != 3 || math.Abs(figures[2].Value-0.25) > 1e-9 || figures[0].Value != 2 || math.Abs(figures[1].Value-3.5) > 1e-9 { // 5 of 100 over the mean of 2 and 1
		t.Errorf("%+v", figures)
	}
	for r := range results {
		results[r] = result{diverged: true}
	}
	for _, f := range compare(o, results) {
		if f.Void == "" {
			t.Errorf("of runs that have diverged: %+v", f)
		}
	}
}
