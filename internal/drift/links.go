package drift

import (
	"math"
	"slices"

	"github.com/avgpipe/avgpipe/internal/api"
	"github.com/avgpipe/avgpipe/schedule"
	"github.com/avgpipe/avgpipe/tuner"
)

// Chosen is what tuning chose for a job, with what its stages do to end a batch beside the averaging.
type Chosen struct {
	*tuner.Candidate
	ExchangeNorm bool // optimizer.clip_norm
}

// transferred says what links that have changed do to a job's batch time: the link whose messages have changed most, with the effect
// of all links together. How much of a message's time a batch has to wait for depends on the plan, so that is simulated, with
// what was expected of stages and with the links as they were expected and as they are. The zero move: they explain nothing.
func transferred(c Chosen, observed []tuner.LinkTerms, whole float64) move {
	expected := c.Predicted.Links
	m := move{term: api.TermTransfer}
	costs, delays := c.Costs, 0.0
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
		if e <= 0 {
			costs.Link[k] = o
			continue
		}
		costs.Link[k] *= o / e // and the time per byte: messages of one length do not tell the two apart
		if k < len(costs.Bandwidth) {
			costs.Bandwidth[k] /= o / e
		}
	}
	// No message is waited for more than once: those of micro-batches, and the norm's.
	if 2*float64((c.MicroBatches+1)*c.Pipelines)*delays < cause*math.Abs(whole) {
		return move{}
	}
	before, known := c.period(c.Costs)
	after, stillKnown := c.period(costs)
	if !known || !stillKnown {
		return move{}
	}
	m.effect = after - before
	return m
}

// period is how long a batch takes with such costs; false where that is not known: links of plans too large to be simulated in a
// tenth of a second are not held against a drift.
func (c Chosen) period(costs schedule.Costs) (float64, bool) {
	plan, _, err := tuner.Plan(c.Candidate) // with the costs that it was made for
	if err != nil || plan.Ops()*c.Pipelines > tuner.MostSimulated {
		return 0, false
	}
	period, err := tuner.Period(plan, costs, schedule.Load{Pipelines: c.Pipelines, MicroBatches: c.MicroBatches, AverageEvery: 1, ExchangeNorm: c.ExchangeNorm && plan.Updates() == 0})
	return period, err == nil
}
