package coordinator

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"

	"go.uber.org/zap"

	"github.com/avgpipe/avgpipe/internal/cluster"
	"github.com/avgpipe/avgpipe/internal/placer"
	"github.com/avgpipe/avgpipe/internal/spec"
)

// triedCuts bounds how many cuts of a job are tried by simulation once its nodes are chosen, in some tenths of a second for the largest plans that are simulated.
const triedCuts = 60

// lay cuts and plans a job for the nodes that it is about to get, where it gets several, and says so for people. Where that cannot be, or the nodes do not have
// the memory for it, the job stays as it was admitted; so does one of several groups of pipelines, whose nodes differ and whose cut does not.
func (c *Coordinator) lay(o *observed, at placement, rooms []placer.Node) (placement, string) {
	if len(at.nodes()) < 2 || o.spec.Groups() > 1 {
		return at, ""
	}
	var laid *spec.Laid
	survey, err := o.spec.Survey()
	if err == nil {
		laid, err = survey.Lay(ground(at, o.spec.Placement(), rooms, c.links()), triedCuts)
	}
	if err != nil {
		c.log.Debug("a job keeps its cut", zap.String("job", o.ID), zap.Error(err))
		return at, ""
	}
	over := o.spec.Over(laid)
	bytes := over.StageBytes()
	for k, m := range over.Memory() {
		laid.Predicted.Stages[k].Memory = m
	}
	for _, node := range at.nodes() {
		need := int64(0)
		for k, s := range at {
			if s.Node == node && k < len(bytes) {
				need += bytes[k]
			}
		}
		if room := roomOf(rooms, node); room.All.Bytes > 0 && need > room.Bytes {
			return at, "; its cut stays, since a better one needs more memory than " + node + " has"
		}
	}
	at = slices.Clone(at)
	at[0].Laid = laid
	return at, cutText(laid.Layout.Split, o.spec.Split())
}

// ground is what a placement puts under the devices of a plan, of which stage k has the one of[k].
func ground(at placement, of []int, rooms []placer.Node, links placer.Links) (g spec.Ground) {
	nodes := make([]string, slices.Max(of)+1)
	for k, device := range of {
		nodes[device] = at[k].Node
	}
	for d, name := range nodes {
		speed := roomOf(rooms, name).Speed
		if speed <= 0 {
			speed = 1
		}
		g.Speeds = append(g.Speeds, speed)
		if d > 0 {
			var l placer.Link
			if nodes[d-1] != name {
				l = links.Between(nodes[d-1], name)
			}
			g.Links = append(g.Links, l)
		}
	}
	return g
}

// cutText says which layers stages have, where they are others than before.
func cutText(split, before [][2]int) string {
	if slices.Equal(split, before) {
		return ""
	}
	var layers []string
	for _, run := range split {
		layers = append(layers, fmt.Sprintf("%d-%d", run[0], run[1]-1))
	}
	return "; the stages have layers " + strings.Join(layers, ", ") + ", by the speed of the nodes and their links"
}

// laid is how the stages of a placement are cut and planned; nil: as the job was admitted.
func (p placement) laid() *spec.Laid {
	if len(p) == 0 {
		return nil
	}
	return p[0].Laid
}

// over is the spec of a job as a placement has it.
func (p placement) over(s *spec.Spec) *spec.Spec {
	s = s.Admitted()
	tau := p.tau()
	if !s.TauOpen() {
		tau = nil
	}
	if laid := p.laid(); laid != nil && len(laid.Layout.Split) == s.Stages() && len(p) == s.Stages() {
		s = s.Over(laid)
	} else if late := p.late(); late != nil && s.LateOpen() {
		s = s.WithLate(late)
	}
	if tau != nil {
		s = s.WithTau(tau)
	}
	return s
}

// laidSpecs keeps the specs of placed jobs, so that each placement is decoded once. Its methods may be called concurrently.
type laidSpecs struct{ specs sync.Map } // laidSpec, by job

// laidSpec is a spec, and what it was made of.
type laidSpec struct {
	admitted  *spec.Spec
	placement json.RawMessage
	spec      *spec.Spec
}

// over is the spec of a placed job.
func (l *laidSpecs) over(j *cluster.Job, admitted *spec.Spec) *spec.Spec {
	value, _ := l.specs.Load(j.ID)
	if old, found := value.(laidSpec); found && old.admitted == admitted && slices.Equal(old.placement, j.Placement) {
		return old.spec
	}
	s := placementOf(j).over(admitted)
	l.specs.Store(j.ID, laidSpec{admitted, j.Placement, s})
	return s
}

// lie lays the job as its placement has it. A round whose shards do not say which layers they have is restored by the cut that it was written with.
func (a *act) lie(from *cluster.Manifest) {
	if from != nil && slices.ContainsFunc(from.Shards, func(s cluster.ShardRef) bool { return s.Layers[1] == 0 }) && a.taking.laid() != nil {
		a.taking = slices.Clone(a.taking)
		a.taking[0].Laid = nil
	}
	a.spec = a.taking.over(a.spec)
}
