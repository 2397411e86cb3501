package node

import (
	"math"
	"slices"

	"github.com/avgpipe/avgpipe/internal/api"
	"github.com/avgpipe/avgpipe/schedule"
	"github.com/avgpipe/avgpipe/tuner"
)

const (
	// mostSimulated bounds the ops of all pipelines of a batch, so that a simulation takes a tenth of a second at most. Links of larger
	// plans are not held against a drift.
	mostSimulated = 1 << 16
	// simulatedBatches is as many as say how long one takes between others.
	simulatedBatches = 3
)

// transferred says what links that have changed do to a job's batch time: the link whose messages have changed most, with the effect
// of all links together. How much of a message's time a batch has to wait for depends on the plan, so that is simulated, with
// what was expected of stages and with the links as they were expected and as they are. The zero move: they explain nothing.
func transferred(chosen *tuner.Candidate, observed []tuner.LinkTerms, whole float64) move {
	expected := chosen.Predicted.Links
	m := move{term: api.TermTransfer}
	costs, delays := chosen.Costs, 0.0
	costs.Link, costs.Bandwidth = slices.Clone(costs.Link), slices.Clone(costs.Bandwidth)
	for k := range min(len(expected), len(observed)) {
		e, o := expected[k].MessageSeconds, observed[k].MessageSeconds
		if o <= 0 || len(costs.Link) <= k {
			continue // none was observed, or none expected
		}
		if math.Abs(o-e) > math.Abs(m.observed-m.expected) {
			m.stage, m.expected, m.observed = k, e, o
		}
		delays += math.Abs(o - e)
		slowLink(&costs, k, e, o)
	}
	// No message is waited for more than once.
	if 2*float64(chosen.MicroBatches*chosen.Pipelines)*delays < driftCause*math.Abs(whole) {
		return move{}
	}
	before, known := simulatedPeriod(chosen, chosen.Costs)
	after, stillKnown := simulatedPeriod(chosen, costs)
	if !known || !stillKnown {
		return move{}
	}
	m.effect = after - before
	return m
}

// slowLink has messages of a link take so long, where they were expected to take another time. The link's latency and its time per
// byte change by the same factor, since messages of one length do not tell them apart.
func slowLink(c *schedule.Costs, link int, expected, observed float64) {
	if expected <= 0 {
		c.Link[link] = observed
		return
	}
	factor := observed / expected
	c.Link[link] *= factor
	if link < len(c.Bandwidth) {
		c.Bandwidth[link] /= factor
	}
}

// simulatedPeriod is how long a batch of a candidate takes with such costs; false where that is not known.
func simulatedPeriod(c *tuner.Candidate, costs schedule.Costs) (float64, bool) {
	plan, _, err := tuner.Plan(c) // with the costs that it was made for
	if err != nil || plan.Ops()*c.Pipelines > mostSimulated {
		return 0, false
	}
	r, err := schedule.SimulateMany(plan, costs, schedule.Load{Pipelines: c.Pipelines, Batches: simulatedBatches, AverageEvery: 1})
	if err != nil {
		return 0, false
	}
	return r.Period, true
}
