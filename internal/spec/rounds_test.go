package spec_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/avgpipe/avgpipe/internal/spec"
	"github.com/avgpipe/avgpipe/internal/strictyaml"
	"github.com/avgpipe/avgpipe/stage/model"
)

// TestRoundsAreAsLongAsTheMethodWants, and of equal length and at least four in a short run; one that is given stays.
func TestRoundsAreAsLongAsTheMethodWants(t *testing.T) {
	for _, c := range []struct {
		averaging                    string
		pipelines, steps, tau, total int // total: of each pipeline
	}{
		{"method: elastic", 2, 1000, 1, 500},
		{"method: allreduce", 2, 1000, 1, 500},
		{"method: localsgd", 2, 1600, 8, 800},
		{"method: diloco", 2, 6400, 32, 3200},
		{"method: diloco", 2, 200, 25, 100}, // 4 of 32 would be 128 steps
		{"method: diloco", 2, 100, 13, 52},
		{"method: diloco", 2, 4, 1, 2},
		{"method: diloco", 4, 2, 1, 1},      // not a step of each
		{"method: diloco", 1, 200, 29, 203}, // one trains all of them
		{"method: streaming-diloco, fragments: 2", 2, 1600, 8, 800},
		{"method: streaming-diloco, fragments: 2", 2, 64, 4, 32}, // each fragment four times
		{"method: diloco, tau: 1", 2, 1000, 1, 500},
		{"method: diloco, tau: 40", 2, 1000, 40, 520},
	} {
		found, err := resolve(t, refJob, 0, fmt.Sprintf("pipelines=%d", c.pipelines), "averaging={"+c.averaging+"}", fmt.Sprintf("train.steps=%d", c.steps))
		if err != nil {
			t.Errorf("%+v: %v", c, err)
			continue
		}
		if got := found.Job.Averaging.Tau; got != c.tau || found.Budget.Steps != uint64(c.total) { //nolint:gosec // not negative
			t.Errorf("%+v: tau %d, %d steps", c, got, found.Budget.Steps)
		}
	}
}

// TestRoundsOfEpochsFollowFromTheirSamples, where those are known: as many as of the same budget in steps, and no more is chosen. The budget itself is the worker's, which reads the data.
func TestRoundsOfEpochsFollowFromTheirSamples(t *testing.T) {
	for _, c := range []struct {
		averaging      string
		epoch          uint64
		tau, most      int
		why, describes string
	}{
		{"method: diloco", 200, 25, 0, "budget 2 epochs: 400 samples, 100 steps of each pipeline", "tau=25"},
		{"method: diloco", 0, 32, 0, "budget 2 epochs: how many samples that is, is known once the data are open", "tau=32"},
		{"method: streaming-diloco, fragments: 2", 64, 4, 0, "budget 2 epochs: 128 samples, 32 steps of each pipeline", "tau=4"},
		{"tau: auto", 64, 1, 8, "32 steps", "tau=auto, 1 to 8,"},
		{"method: diloco, tau: auto, tau_most: 8", 64, 8, 8, "32 steps", "tau=auto, 8 to 8,"},
		{"tau: auto", 0, 1, 64, "known once the data are open", "tau=auto, 1 to 64,"},
		{"tau: auto, tau_most: 5", 64, 1, 5, "32 steps", "tau=auto, 1 to 5,"},
		{"tau: auto", 1, 1, 1, "1 step", "tau=auto, 1 to 1,"},
	} {
		j, facts := parsed(t, refJob, 0, "stages=2", "pipelines=2", "micro_batches=2", "tuning=rules", "train={epochs: 2, batch: 2}", "averaging={"+c.averaging+"}")
		facts.Epoch = c.epoch
		found, problems := spec.Resolve(j, facts, nil)
		if len(problems) > 0 {
			t.Errorf("%+v: %v", c, problems)
			continue
		}
		s, err := spec.New(found, facts.Model, nil, false)
		if err != nil {
			t.Fatal(err)
		}
		if a := found.Job.Averaging; a.Tau != c.tau || a.TauMost != c.most || found.Budget != nil || !strings.Contains(strings.Join(found.Why, "\n"), c.why) || !strings.Contains(s.Averaging(), c.describes) {
			t.Errorf("%+v: tau %d, at most %d, budget %+v, %q: %q", c, a.Tau, a.TauMost, found.Budget, s.Averaging(), found.Why)
		}
	}
}

// TestFragmentsAreAsManyAsLayersAtMost: of layers that are trained; by default as many as there are, of few.
func TestFragmentsAreAsManyAsLayersAtMost(t *testing.T) {
	for _, c := range []struct {
		set       []string
		fragments int
		problem   string
	}{
		{nil, 4, ""},
		{[]string{"model.config.n_layer=8"}, 4, ""},
		{[]string{"model.config.n_layer=1"}, 3, ""},
		{[]string{"model.config.n_layer=8", "averaging.fragments=10"}, 10, ""},
		{[]string{"model.config.n_layer=8", "averaging.fragments=11"}, 0, "averaging.fragments is 11: the model has 10 layers that are trained, and each fragment needs one; at most 10"},
		{[]string{"averaging.fragments=1"}, 0, "for the whole model at once remove it and write method: diloco"},
		{[]string{"train.steps=32", "averaging.tau=8"}, 0, "averaging.tau is 8, and the budget (32 steps of 4 samples) has 2 rounds of it, fewer than the 4 in which every pipeline exchanges all layers once"},
		{[]string{"train.steps=4"}, 0, "averaging.fragments is 4, averaging.tau is 1, and the budget (4 steps of 4 samples) has 2 rounds of it"},
	} {
		set := append([]string{"pipelines=2", "model.config.n_layer=2", "train.batch=4", "train.steps=1000", "averaging.method=streaming-diloco"}, c.set...)
		found, err := resolve(t, refJob, 0, set...)
		switch {
		case c.problem != "":
			if err == nil || !strings.Contains(err.Error(), c.problem) {
				t.Errorf("%v: %v, want %q", c.set, err, c.problem)
			}
		case err != nil:
			t.Errorf("%v: %v", c.set, err)
		case found.Job.Averaging.Fragments != c.fragments || found.Job.Averaging.Mix != 0.5:
			t.Errorf("%v: %d fragments, mix %v", c.set, found.Job.Averaging.Fragments, found.Job.Averaging.Mix)
		}
	}
}

// TestTheNearestToTooFewRoundsIsAccepted, whichever key it is of: rounds are made of the budget that the file gives, and not of what another tau rounded it up to.
func TestTheNearestToTooFewRoundsIsAccepted(t *testing.T) {
	for _, c := range []struct {
		set          []string
		key, nearest string
	}{
		{[]string{"pipelines=4", "averaging={method: easgd-async, tau: 9}", "train={steps: 40, batch: 2}"}, "averaging.tau", "3"},
		{[]string{"pipelines=4", "averaging={method: streaming-diloco, fragments: 2, tau: 12}", "train={steps: 40, batch: 2}"}, "averaging.tau", "9"},
		{[]string{"pipelines=8", "averaging={method: easgd-async}", "train={steps: 12, batch: 2}"}, "pipelines", "3"},
		{[]string{"pipelines=9", "groups=3", "averaging={method: easgd-async}", "train={steps: 12, batch: 2}"}, "pipelines", "3"},
		{[]string{"pipelines=2", "averaging={method: streaming-diloco, fragments: 3}", "train={steps: 3, batch: 2}"}, "averaging.fragments", "2"},
		{[]string{"pipelines=2", "averaging={method: streaming-diloco}", "train={steps: 1, batch: 2}"}, "averaging.method", "diloco"},
	} {
		job := func(set ...string) strictyaml.Problems {
			j, facts := parsed(t, refJob, 0, append(append([]string{"stages=2", "micro_batches=2", "tuning=rules"}, c.set...), set...)...)
			_, problems := spec.Resolve(j, facts, nil)
			return problems
		}
		problems := job()
		if len(problems) != 1 || problems[0].Key != c.key || problems[0].Nearest != c.nearest || !strings.Contains(problems[0].Message, c.key+" is ") {
			t.Errorf("%v: %+v, want nearest %s of %s", c.set, problems, c.nearest, c.key)
			continue
		}
		if again := job(c.key + "=" + c.nearest); len(again) > 0 {
			t.Errorf("%v: with %s %s: %v", c.set, c.key, c.nearest, again)
		}
	}
}

// TestPartsOfAnExchangeAreChargedByRound: of what groups send each other a round has a part, of a model or of the pipelines.
func TestPartsOfAnExchangeAreChargedByRound(t *testing.T) {
	sent := map[string]int64{}
	for _, averaging := range []string{"method: diloco, tau: 8", "method: streaming-diloco, fragments: 2, tau: 8", "method: easgd-async, tau: 8"} {
		j, facts := parsed(t, refJob, 0, "pipelines=2", "groups=2", "train.steps=1000", "averaging={"+averaging+"}")
		found, problems := spec.Resolve(j, facts, nil)
		if len(problems) > 0 {
			t.Fatal(problems)
		}
		m, err := model.Build(j.Model.Family, j.Model.Config)
		if err != nil {
			t.Fatal(err)
		}
		s, err := spec.New(found, m, nil, false)
		if err != nil {
			t.Fatal(err)
		}
		for _, bytes := range s.Messages() {
			sent[found.Job.Averaging.Method] += bytes
		}
		if !strings.Contains(s.Averaging(), "tau=8") {
			t.Errorf("it says %s", s.Averaging())
		}
	}
	for _, by := range []string{"streaming-diloco", "easgd-async"} {
		if whole, part := sent["diloco"], sent[by]; whole == 0 || part > whole/2 || part < whole/2-8 {
			t.Errorf("in the time of a batch diloco sends %d bytes, %s in two parts %d", whole, by, part)
		}
	}
}
