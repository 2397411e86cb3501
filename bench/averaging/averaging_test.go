package main

import "testing"

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
	o := options{counts: []int{4}, steps: []int{10}, seeds: []int{1}, rates: []float64{0.1}, rules: []rule{{"default", "elastic"}}, batch: 16, sides: sides}
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
