package coordinator

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/avgpipe/avgpipe/internal/api"
	"github.com/avgpipe/avgpipe/internal/placer"
	"github.com/avgpipe/avgpipe/internal/spec"
)

// chooseLate chooses how many layers of a job are late where its file leaves that open, for the places that it is about to get, and says why for people. A job that comes back keeps what it had unless
// the links gain by another number by now.
func (c *Coordinator) chooseLate(o *observed, at placement, rooms []placer.Node) (placement, string) {
	if len(at) == 0 {
		return at, ""
	}
	var late *spec.Late
	if s := o.spec.Admitted(); s.LateOpen() && len(at) == s.Shards() {
		grounds, links := c.terrain(s, at, rooms)
		late = s.ChooseLate(grounds, links, o.place().late())
	}
	if late == nil && at[0].Late == nil {
		return at, ""
	}
	at = slices.Clone(at)
	at[0].Late = late
	if late == nil {
		return at, ""
	}
	return at, late.Why
}

// terrain is what a placement puts under each group of a job, and between the groups, stage by stage. The stages of a group that share a node share its link.
func (c *Coordinator) terrain(s *spec.Spec, at placement, rooms []placer.Node) (grounds []spec.Ground, links []spec.GroupLink) {
	stages, known := s.Stages(), c.links()
	for g := range s.Groups() {
		grounds = append(grounds, ground(at[g*stages:(g+1)*stages], s.Placement(), rooms, known))
	}
	for k := range stages {
		var l spec.GroupLink
		for g := range s.Groups() {
			for h := range g {
				a, b := at[h*stages+k].Node, at[g*stages+k].Node
				if between := known.Between(a, b); l.Name == "" || between.BitsPerSecond < l.Link.BitsPerSecond {
					l = spec.GroupLink{Name: a + "-" + b, Link: between}
				}
			}
		}
		if earlier := slices.IndexFunc(at[:k], func(before stagePlace) bool { return sharesNode(at, stages, before.Stage, k) }); earlier >= 0 {
			l.Name = links[earlier].Name
		}
		links = append(links, l)
	}
	return grounds, links
}

// sharesNode reports whether two stages are on one node in any group.
func sharesNode(at placement, stages, a, b int) bool {
	for g := 0; g+stages <= len(at); g += stages {
		if at[g+a].Node == at[g+b].Node {
			return true
		}
	}
	return false
}

// late is how many layers are late by a placement; nil: the job file says it.
func (p placement) late() *spec.Late {
	if len(p) == 0 {
		return nil
	}
	return p[0].Late
}

// lateStatus is what status says of it.
func (p placement) lateStatus() *api.StaleLayers {
	l := p.late()
	if l == nil {
		return nil
	}
	return &api.StaleLayers{
		Layers: l.Layers, StepS: l.Seconds, NoneS: l.None, AllS: l.All, ComputeS: l.Compute, ExchangeS: l.Exchange, Why: l.Why,
	}
}

// PreviewChoices says what would be chosen of a job where it would be placed if nobody had anything: how many layers are late, and how many steps a round has; nothing where the file says it, or nothing is exchanged.
func (c *Coordinator) PreviewChoices(ctx context.Context, s *spec.Spec) (why []string, err error) {
	if s.Job.Open() || !s.LateOpen() && (!s.TauOpen() || s.Groups() == 1) {
		return nil, nil
	}
	err = c.ask(ctx, func() {
		o := &observed{spec: s, want: c.wanted(s, c.unfit(s))}
		rooms, all := c.rooms(snapshot{}), c.all()
		for i := range rooms {
			rooms[i].Cores = all[rooms[i].Name].cores
		}
		want := o.want.Fitted(rooms)
		p, found := placer.Place(o.priced(want), rooms, c.links())
		if found != nil {
			for key, open := range map[string]bool{"stale_layers": s.LateOpen(), "tau": s.TauOpen()} {
				if open {
					why = append(why, fmt.Sprintf("averaging.%s is chosen once the job is placed, which it could not be now: %v", key, found))
				}
			}
			slices.Sort(why)
			return
		}
		grounds, links := c.terrain(s, taken(want, p), rooms)
		on := "; on " + strings.Join(p.Nodes, ", ")
		if s.LateOpen() {
			why = append(why, "averaging."+s.ChooseLate(grounds, links, nil).Why+on)
		}
		if s.TauOpen() {
			why = append(why, "averaging."+s.ChooseTau(grounds, links, nil).Why+on)
		}
	})
	return why, err
}
