package spec

import (
	"cmp"
	"fmt"
	"slices"
	"sync"

	"github.com/avgpipe/avgpipe/elastic"
	"github.com/avgpipe/avgpipe/internal/placer"
	"github.com/avgpipe/avgpipe/internal/words"
	"github.com/avgpipe/avgpipe/job"
	"github.com/avgpipe/avgpipe/schedule"
	"github.com/avgpipe/avgpipe/stage/layer"
	"github.com/avgpipe/avgpipe/tuner"
)

// Late is how many layers of a job take gradients late, where its file leaves that open: as it was chosen for the nodes that its groups are on. It is kept with the placement.
type Late struct {
	Layers   int     `json:"layers"`           // from the input
	Seconds  float64 `json:"seconds"`          // that a step is expected to take
	None     float64 `json:"none_seconds"`     // that it would without late layers
	All      float64 `json:"all_seconds"`      // and with all of them late
	Compute  float64 `json:"compute_seconds"`  // and without exchanges
	Exchange float64 `json:"exchange_seconds"` // that the busiest link takes to carry all layers once
	Why      string  `json:"why"`
}

// GroupLink is what lies between the nodes that have one stage of each group.
type GroupLink struct {
	Name string      // stages of one name share it
	Link placer.Link // the slowest between two of the groups
}

// LateOpen reports whether it is left to the program how many layers are late, and is to be chosen where the job is placed: with one group nothing is exchanged over a network, and none is.
func (s *Spec) LateOpen() bool { return s.late == nil && lateOpen(&s.Job) && s.Groups() > 1 }

func lateOpen(j *job.Job) bool {
	return j.Averaging.StaleLayers == job.Auto && slices.Contains(elastic.Settings()[j.Averaging.Method], "stale_layers")
}

// ChooseLate chooses how many layers are late, by where each group lies and what lies between them, stage by stage. What the job had before stays unless a step gains more by more late layers than
// measurements scatter, or takes hardly longer with fewer. Where nobody knows what the layers take, none is late.
func (s *Spec) ChooseLate(grounds []Ground, links []GroupLink, before *Late) *Late {
	s = s.Admitted()
	step, measured, err := s.step(grounds, links)
	if err != nil {
		return &Late{Why: "stale_layers 0: " + err.Error()}
	}
	chosen, seconds := elastic.StaleLayers(step)
	kept := ""
	if before != nil && before.Layers != chosen && before.Layers <= len(step.Layers) {
		as, limit := step.Seconds(before.Layers), seconds*(1+elastic.Tie)
		if chosen < before.Layers { // fewer, which are better for what is learnt, unless they nearly cost a tie
			limit = seconds / (1 + elastic.Tie/2)
		}
		if as <= limit {
			chosen, seconds = before.Layers, as
			kept = ", as before, since another number gains no more than measurements scatter"
		}
	}
	l := &Late{
		Layers: chosen, Seconds: seconds, None: step.Seconds(0), All: step.Seconds(len(step.Layers)), Compute: step.Compute, Exchange: step.Exchange(),
	}
	basis := basisOf(measured)
	slowest := slowestLink(links)
	l.Why = fmt.Sprintf("stale_layers %d of %d%s: a step takes %s, %s with none late and %s with all; it computes for %s (%s), and the gradients of all layers take %s over the link %s with %v",
		chosen, len(step.Layers), kept, words.Seconds(seconds), words.Seconds(l.None), words.Seconds(l.All), words.Seconds(l.Compute), basis, words.Seconds(l.Exchange), slowest.Name, slowest.Link)
	return l
}

// basisOf says where the times of a step are from.
func basisOf(measured bool) string {
	if measured {
		return "as measured by its tuning"
	}
	return "estimated from floating-point operations"
}

// slowestLink is the first of the slowest.
func slowestLink(links []GroupLink) GroupLink {
	return slices.MinFunc(links, func(a, b GroupLink) int { return cmp.Compare(a.Link.BitsPerSecond, b.Link.BitsPerSecond) })
}

// WithLate is the spec of a job with what was chosen for a placement.
func (s *Spec) WithLate(l *Late) *Spec {
	s = s.Admitted()
	out := *s
	out.base, out.late = s, l
	out.Job.Averaging.StaleLayers = job.Count(l.Layers)
	out.Why = append(slices.Clip(s.Why), "averaging."+l.Why)
	placed := &out
	placed.memory = sync.OnceValue(placed.predict)
	return placed
}

// step is what a step of the job takes and sends where its groups lie so and are joined so, stage by stage; and whether its times were measured.
func (s *Spec) step(grounds []Ground, links []GroupLink) (step elastic.Step, measured bool, err error) {
	v, err := s.Survey()
	if err != nil {
		return step, false, err
	}
	plan, _, err := s.Plan()
	if err != nil {
		return step, false, err
	}
	costs, measured, _ := s.Price()
	split, homes := v.split, s.Placement()
	if len(split) != len(links) || len(homes) != len(split) || len(costs.Forward) != len(split) || len(grounds) == 0 {
		return step, false, fmt.Errorf("what a step of job %s takes: %d links of %d groups for %d stages", s.Job.Name, len(links), len(grounds), len(split))
	}
	slow := slowest(v.profile, grounds)
	pipelines := s.Job.Shared()
	load := schedule.Load{Pipelines: pipelines, MicroBatches: int(s.Job.MicroBatches), AverageEvery: 1}
	costs = s.grounded(costs, v.profile, grounds, slow, measured)
	if step.Compute, err = tuner.Period(plan, costs, load); err == nil && s.TauOpen() {
		with := step.Compute
		load.AverageEvery = 0
		step.Compute, err = tuner.Period(plan, costs, load)
		step.Average = max(0, with-step.Compute)
	}
	if err != nil {
		return step, false, fmt.Errorf("what a step of job %s takes: %w", s.Job.Name, err)
	}
	at := map[string]int{}
	for k, run := range split {
		of := links[k]
		i, known := at[of.Name]
		if !known {
			i, at[of.Name] = len(step.Links), len(step.Links)
			step.Links = append(step.Links, elastic.LinkStep{})
		}
		link := &step.Links[i]
		link.SecondsPerByte, link.Latency = max(link.SecondsPerByte, 8/of.Link.BitsPerSecond), max(link.Latency, of.Link.RoundTrip.Seconds()/2)
		sends := exchanged(v.layers[run[0]:run[1]])
		for j, one := range v.profile.Layers[run[0]:run[1]] {
			n := samples(&s.Job)
			step.Layers = append(step.Layers, elastic.LayerStep{
				Forward: one.Forward.At(n) * slow[homes[k]], Backward: one.Backward.At(n) * slow[homes[k]], Link: i,
				Bytes: elastic.Sends(elastic.Precision(s.Job.Averaging.Precision), sends[j], pipelines, s.Groups()),
			})
		}
	}
	return step, measured, nil
}

// exchanged is of how many elements of each layer of a stage groups of pipelines send something: of what is trained, and of tied tensors in one stage once.
func exchanged(layers []layer.Layer) (elements []int) {
	here := map[string]bool{}
	for _, p := range layer.Params(layers...) {
		here[p.Name] = true
	}
	for _, l := range layers {
		n := 0
		for _, p := range layer.Params(l) {
			if !p.Frozen && !here[p.TiedTo] {
				n += p.Len()
			}
		}
		elements = append(elements, n)
	}
	return elements
}

// slowest is how many times as long everything takes on each device as on one of speed 1, where that is the slowest of all groups.
func slowest(p *tuner.Profile, grounds []Ground) (slow []float64) {
	for d, one := range p.Devices {
		most := 0.0
		for _, g := range grounds {
			if d < len(g.Speeds) {
				most = max(most, one.Slowdown/g.Speeds[d])
			}
		}
		slow = append(slow, most)
	}
	return slow
}

// grounded are the costs of the stages of the slowest group: on devices so slow, with the links between its own nodes where each device has one stage.
func (s *Spec) grounded(c schedule.Costs, p *tuner.Profile, grounds []Ground, slow []float64, measured bool) schedule.Costs {
	homes := s.Placement()
	for _, list := range []*[]float64{&c.Forward, &c.Backward, &c.BackwardInput, &c.BackwardWeight, &c.Update, &c.Average} {
		*list = slices.Clone(*list)
		for k := range *list {
			by := slow[homes[k]]
			if measured { // on devices of other speeds, as the profile has them
				by /= p.Devices[homes[k]].Slowdown
			}
			(*list)[k] *= by
		}
	}
	if len(c.MessageBytes) != len(homes)-1 || len(homes) != int(s.Job.Stages) {
		c.MessageBytes = nil
		return c
	}
	for d := range c.MessageBytes {
		latency, each := 0.0, 0.0 // seconds; seconds a byte
		for _, g := range grounds {
			if d < len(g.Links) {
				l := s.link(d, g.Links[d])
				latency, each = max(latency, l.LatencySeconds), max(each, l.SecondsPerByte)
			}
		}
		bandwidth := 0.0
		if each > 0 {
			bandwidth = 1 / each
		}
		c.Link, c.Bandwidth = append(c.Link, latency), append(c.Bandwidth, bandwidth)
	}
	return c
}
