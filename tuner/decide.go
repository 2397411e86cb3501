package tuner

import (
	"cmp"
	"slices"
)

// listed are how many candidates a report names beside the chosen one and those that were run.
const listed = 9

// Best are n candidates that are worth a run: the predicted best, the best with another number of pipelines, since what pipelines
// take from each other is what a prediction knows least, the best with another number of micro-batches, since kernels change their
// pace between the sizes that were measured; then the others in their order.
func (o *Outcome) Best(n int) []Candidate {
	if len(o.Ranked) == 0 {
		return nil
	}
	first := o.Ranked[0]
	best, others := []Candidate{first}, slices.Clone(o.Ranked[1:])
	for _, differs := range []func(Candidate) bool{
		func(c Candidate) bool { return c.Pipelines != first.Pipelines },
		func(c Candidate) bool { return c.MicroBatches != first.MicroBatches },
	} {
		if i := slices.IndexFunc(others, differs); i >= 0 {
			best, others = append(best, others[i]), slices.Delete(others, i, i+1)
		}
	}
	all := slices.Concat(best, others)
	return all[:min(n, len(all))]
}

// Decide takes the measured best of those that were run: ran holds candidates of Best with Measured set, or with the verdict
// Fails and a reason. As in the prediction, of those within Tie, or twice that where runs scatter as much, the one with fewer
// pipelines wins. Where no run succeeded the predicted best of the others is taken; where there is none, what is chosen Fails. It fills Considered, Chosen, RunnersUp and Notes.
func (o *Outcome) Decide(ran []Candidate) Report {
	r := Report{Version: ReportVersion, Considered: o.Considered}
	var measured, rest []Candidate
	tie := Tie
	for _, c := range ran {
		if c.Measured == nil {
			rest = append(rest, c)
			continue
		}
		measured = append(measured, c)
		tie = max(tie, min(c.Measured.Spread, 2*Tie))
	}
	var predicted []Candidate
	for _, c := range o.Ranked {
		if !slices.ContainsFunc(ran, func(other Candidate) bool { return same(c, other) }) {
			predicted = append(predicted, c)
		}
	}
	throughput := func(c *Candidate) float64 { return c.Measured.SamplesPerSecond }
	slices.SortStableFunc(measured, func(a, b Candidate) int { return cmp.Compare(merit(&b, throughput(&b)), merit(&a, throughput(&a))) })
	promote(measured, throughput, tie)
	explain(measured, throughput, tie, "measured")
	if len(measured) > 0 { // the others lost against what was chosen, not against what was predicted to win
		measured[0].Reason += ", of those that were run"
		all := slices.Concat(measured[:1], predicted)
		explain(all, func(c *Candidate) float64 { return c.Predicted.SamplesPerSecond }, Tie, "predicted")
		predicted = all[1:]
	}
	list := slices.Concat(measured, predicted)
	if len(list) == 0 { // every run failed, and nothing else fits
		list, rest = rest, nil
	}
	if len(measured) == 0 && len(predicted) > 0 {
		explain(list, func(c *Candidate) float64 { return c.Predicted.SamplesPerSecond }, Tie, "predicted")
	}
	r.Chosen = list[0]
	r.Notes = o.weighed(&r.Chosen)
	r.RunnersUp = slices.Concat(list[1:min(len(list), max(len(measured), 1)+listed)], rest, onePerReason(o.Refused))
	return r
}

// same reports whether two candidates are one.
func same(a, b Candidate) bool {
	return a.Devices == b.Devices && a.Threads == b.Threads && a.Chunks == b.Chunks && a.Pipelines == b.Pipelines &&
		a.MicroBatches == b.MicroBatches && a.Schedule == b.Schedule
}

// onePerReason keeps, of each verdict and schedule, the refused candidate with the fewest pipelines, in the order of the search.
func onePerReason(refused []Candidate) (kept []Candidate) {
	for _, c := range refused {
		if c.Verdict == NotNeeded {
			continue
		}
		if !slices.ContainsFunc(kept, func(k Candidate) bool { return k.Verdict == c.Verdict && k.Schedule == c.Schedule }) {
			kept = append(kept, c)
		}
	}
	return kept
}
