package coordinator

import (
	"slices"

	"github.com/avgpipe/avgpipe/internal/api"
	"github.com/avgpipe/avgpipe/internal/placer"
	"github.com/avgpipe/avgpipe/internal/spec"
)

// chooseTau chooses how many steps a round of a job has where its file leaves that open, for the places that it is about to get, and says why for people. A job that has committed a round keeps what it had.
func (c *Coordinator) chooseTau(o *observed, at placement, rooms []placer.Node) (placement, string) {
	s := o.spec.Admitted()
	if len(at) == 0 || !s.TauOpen() && at[0].Tau == nil {
		return at, ""
	}
	var tau *spec.Tau
	if s.TauOpen() {
		before := o.place().tau()
		if o.CommittedRound() == 0 {
			before = nil
		}
		var grounds []spec.Ground
		var links []spec.GroupLink
		if before == nil && s.Groups() > 1 && len(at) == s.Shards() {
			grounds, links = c.terrain(s, at, rooms)
		}
		tau = s.ChooseTau(grounds, links, before)
	}
	at = slices.Clone(at)
	at[0].Tau = tau
	if tau == nil {
		return at, ""
	}
	return at, tau.Why
}

// tau is how many steps a round has by a placement; nil: the job file says it.
func (p placement) tau() *spec.Tau {
	if len(p) == 0 {
		return nil
	}
	return p[0].Tau
}

// tauStatus is what status says of it.
func (p placement) tauStatus() *api.Tau {
	t := p.tau()
	if t == nil {
		return nil
	}
	return &api.Tau{Steps: t.Steps, StepS: t.Seconds, LeastS: t.Least, ComputeS: t.Compute, AverageS: t.Average, ExchangeS: t.Exchange, Why: t.Why}
}
