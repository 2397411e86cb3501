package spec

import (
	"fmt"
	"slices"
	"sync"

	"github.com/avgpipe/avgpipe/elastic"
	"github.com/avgpipe/avgpipe/internal/jobfile"
	"github.com/avgpipe/avgpipe/internal/words"
	"github.com/avgpipe/avgpipe/schedule"
)

// Tau is how many steps a round of a job has, where its file leaves that open: as it was chosen for the nodes that its groups are on. It is kept with the placement.
type Tau struct {
	Steps    int     `json:"steps"`
	Seconds  float64 `json:"seconds"`          // that a step is expected to take
	Least    float64 `json:"least_seconds"`    // that it would with the fewest steps that may be chosen
	Compute  float64 `json:"compute_seconds"`  // and without rounds
	Average  float64 `json:"average_seconds"`  // that the arithmetic of a round takes
	Exchange float64 `json:"exchange_seconds"` // that the busiest link takes to carry what a round exchanges
	Why      string  `json:"why"`
}

// TauOpen reports whether it is left to the program how many steps a round has, and is to be chosen where the job is placed.
func (s *Spec) TauOpen() bool { return s.Job.Averaging.TauMost > 0 }

// ChooseTau chooses how many steps a round has, by where each group lies and what lies between them, stage by stage: nothing of a job of one group. Where nobody knows what the layers take, and with one group, it
// is the least that may be chosen.
//
// The number that a job has committed rounds with, before, stays: rounds and steps are counted by it.
func (s *Spec) ChooseTau(grounds []Ground, links []GroupLink, before *Tau) *Tau {
	s = s.Admitted()
	a := &s.Job.Averaging
	least := a.Tau
	if before != nil {
		kept := *before
		kept.Why = fmt.Sprintf("tau %d, as in the rounds that are committed, whose steps are counted by it", before.Steps)
		return &kept
	}
	if s.Groups() == 1 {
		return &Tau{Steps: least, Why: fmt.Sprintf("tau %d: with one group of pipelines nothing is exchanged over a network", least)}
	}
	method, err := jobfile.Averaging(a, int(s.Job.Pipelines))
	if err != nil {
		return &Tau{Steps: least, Why: fmt.Sprintf("tau %d: %v", least, err)}
	}
	step, measured, err := s.step(grounds, links)
	if err != nil {
		return &Tau{Steps: least, Why: fmt.Sprintf("tau %d: %v", least, err)}
	}
	needs := method.Needs()
	for i := range step.Layers { // of which a round exchanges a part
		step.Layers[i].Bytes /= float64(needs.Every())
	}
	most := max(least, a.TauMost)
	if s.Budget != nil {
		most = max(least, min(most, int(s.Budget.Steps)/(leastRounds*needs.Every()))) //nolint:gosec // a budget
	}
	t := &Tau{Least: step.RoundSeconds(needs, least) / float64(least), Compute: step.Compute, Average: step.Average, Exchange: step.Exchange()}
	t.Steps, t.Seconds = elastic.Tau(&step, needs, least, most)
	slow := slowestLink(links)
	t.Why = fmt.Sprintf("tau %d of %d to %d: a step takes %s, and %s with tau %d; it computes for %s (%s), and the exchange of a round takes %s over the link %s with %v",
		t.Steps, least, most, words.Seconds(t.Seconds), words.Seconds(t.Least), least, words.Seconds(t.Compute), basisOf(measured), words.Seconds(t.Exchange), slow.Name, slow.Link)
	return t
}

// WithTau is the spec, laid over nodes or not, with what was chosen for a placement. The budget is rounded up to whole rounds of it.
func (s *Spec) WithTau(t *Tau) *Spec {
	out := *s
	out.base = s.Admitted()
	a := &out.Job.Averaging
	a.Tau, a.TauMost = max(1, t.Steps), 0
	if s.Budget != nil {
		b, tau := *s.Budget, uint64(a.Tau)              //nolint:gosec // at least 1
		each := b.Samples / max(1, b.Steps)             // of a step of all pipelines
		if again := out.Job.Resolved(0); again != nil { // what the file asks for, which was rounded up by another tau
			b = *again
		} else {
			b.Steps = (b.Steps + tau - 1) / tau * tau
			b.Samples = b.Steps * each
		}
		out.Budget = &b
	}
	out.Why = append(slices.Clip(s.Why), "averaging."+t.Why)
	placed := &out
	placed.placement, placed.memory = sync.OnceValue(placed.place), sync.OnceValue(placed.predict)
	return placed
}

// whyTau says what becomes of a tau that is left open.
func (x *resolver) whyTau() {
	a := &x.Job.Averaging
	switch {
	case a.TauMost == 0 || x.Job.Pipelines == 1:
	case x.Job.Groups > 1:
		x.because(fmt.Sprintf("averaging.tau auto: from %d to %d, chosen where the job is placed, by the links between its groups, and kept from its first commit on", a.Tau, max(a.Tau, a.TauMost)))
	default:
		x.because(fmt.Sprintf("averaging.tau auto: %d, since with one group of pipelines nothing is exchanged over a network", a.Tau))
	}
}

// whyDrains says what would have a plan drain less often.
func (x *resolver) whyDrains(plan schedule.Plan) {
	if x.Job.Averaging.Tau == 1 && plan.Stages() > 1 && x.UserPlan == nil {
		x.because("a round has one batch (averaging.tau is 1), for which the pipeline drains; with a larger averaging.tau it runs on across the batches of a round")
	}
}
