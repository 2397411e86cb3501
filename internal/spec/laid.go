package spec

import (
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/avgpipe/avgpipe/internal/placer"
	"github.com/avgpipe/avgpipe/job"
	"github.com/avgpipe/avgpipe/stage/layer"
	"github.com/avgpipe/avgpipe/tuner"
)

// Ground is where the devices of a job are: on nodes of different speed, with links between them.
type Ground struct {
	Speeds []float64     // of each device of the plan, as a multiple of those that the job's costs are of
	Links  []placer.Link // between each device and the next; without a bandwidth: they share a node
}

// Laid is how a job's stages lie on a ground. It is kept with the placement, so that who leads next generates the same plan.
type Laid struct {
	Layout    Layout           `json:"layout"`
	Predicted tuner.Prediction `json:"predicted"`
}

// Survey is what is known of a job's layers, from which it is laid over nodes.
type Survey struct {
	spec    *Spec
	layers  []layer.Layer
	space   tuner.Space
	profile *tuner.Profile
	split   [][2]int
}

// Survey says what the layers of a job take on devices of speed 1: what its stages were measured to take by its tuning, or are estimated to, shared out among the layers
// of each.
func (s *Spec) Survey() (*Survey, error) {
	s = s.Admitted()
	if s.Job.Open() || s.UserPlan != nil {
		return nil, fmt.Errorf("lay job %s over nodes: its counts are open, or its plan is the user's", s.Job.Name)
	}
	m, err := s.BuildModel()
	if err != nil {
		return nil, fmt.Errorf("lay job %s over nodes: %w", s.Job.Name, err)
	}
	f := Facts{Model: m}
	z, err := f.sizer(&s.Job)
	if err != nil {
		return nil, fmt.Errorf("lay job %s over nodes: %w", s.Job.Name, err)
	}
	c := Candidates{Facts: f, Job: &s.Job, Sizer: z}
	v := &Survey{spec: s, layers: m.Layers}
	if v.space, err = c.Space(); err == nil {
		target := tuner.Target{Devices: int(s.Job.Stages), Threads: int(s.Job.Devices.CPU.Threads)}
		v.profile = c.Guess(target, Price{FLOPs: assumedFLOPs * float64(max(1, target.Threads))})
		if !s.Job.Devices.OwnMemory() {
			v.profile.Sizer = unsized{}
		}
		v.space.Targets = []tuner.Target{target}
		err = s.calibrate(v.profile, &f)
	}
	if err == nil {
		v.split, err = s.splitBy(&f)
	}
	if err != nil {
		return nil, fmt.Errorf("lay job %s over nodes: %w", s.Job.Name, err)
	}
	return v, nil
}

// unsized are stages in the memory of hosts, which is looked at once a cut is chosen: sizing takes longer than simulating.
type unsized struct{}

func (unsized) Stage(tuner.StageSpec) (m tuner.Memory, err error) { return m, nil }

// Lay cuts the job's model for the ground that it gets: slower devices get fewer layers, and slow links are crossed where little crosses them. The counts, the
// schedule and what is recomputed stay. The plan is made for the links, too: afp runs as many forwards ahead as hide them.
//
// From a cut whose slowest stage or message is as fast as can be, up to so many others are tried by simulation.
func (v *Survey) Lay(g Ground, tries int) (*Laid, error) {
	s, space, target, profile := v.spec, v.space, v.space.Targets[0], *v.profile
	if len(g.Speeds) != target.Devices || len(g.Links) != target.Devices-1 {
		return nil, fmt.Errorf("lay job %s over nodes: %d devices with %d links for %d stages", s.Job.Name, len(g.Speeds), len(g.Links), s.Job.Stages)
	}
	profile.Devices, profile.Links = slices.Clone(profile.Devices), slices.Clone(profile.Links)
	for d, speed := range g.Speeds {
		profile.Devices[d].Slowdown /= speed
	}
	for d, l := range g.Links {
		profile.Links[d] = s.link(d, l)
	}
	target.Profile = &profile
	space.Targets = []tuner.Target{target}
	found, err := space.Lay(tries)
	if err != nil {
		return nil, fmt.Errorf("lay job %s over nodes: %w", s.Job.Name, err)
	}
	return &Laid{Layout{Costs: found.Costs, InFlightLimit: found.InFlightLimit, Split: found.Split}, found.Predicted}, nil
}

// Over is the spec of a job whose stages lie as a placement has them: what was tuned stays the report's, but what it expects of a batch is what was predicted for
// the nodes that the job has.
func (s *Spec) Over(l *Laid) *Spec {
	s = s.Admitted()
	out := *s
	out.base, out.laid, out.Layout = s, true, &l.Layout
	if s.Report != nil {
		report := *s.Report
		c := &report.Chosen
		c.Costs, c.InFlightLimit, c.Split, c.Predicted, c.Measured = l.Layout.Costs, l.Layout.InFlightLimit, l.Layout.Split, l.Predicted, nil
		out.Report = &report
	}
	placed := &out
	placed.placement, placed.memory = sync.OnceValue(placed.place), sync.OnceValue(placed.predict)
	return placed
}

// Laid reports whether it is.
func (s *Spec) Laid() bool { return s.laid }

// Admitted is the spec as it was before it was laid over nodes, or late layers or a tau were chosen for them.
func (s *Spec) Admitted() *Spec {
	if s.base != nil {
		return s.base
	}
	return s
}

// link is the one behind a device: what lies between the nodes, and the line that a job says of emulated devices.
func (s *Spec) link(device int, l placer.Link) (out tuner.Link) {
	if l.BitsPerSecond > 0 {
		out = tuner.Link{LatencySeconds: l.RoundTrip.Seconds() / 2, SecondsPerByte: 8 / l.BitsPerSecond}
	}
	if line := s.Job.Devices.Emulated.Link; s.Job.Devices.Kind == job.KindEmulated {
		out.LatencySeconds += job.At(line.Latency, device).Seconds()
		if bytes := job.At(line.Bandwidth, device); bytes > 0 {
			out.SecondsPerByte += 1 / bytes
		}
	}
	return out
}

// calibrate makes the layers of each stage take together what the stage takes, in the shares that they were measured to have, or else have in the profile.
func (s *Spec) calibrate(p *tuner.Profile, f *Facts) error {
	costs, measured, ok := s.Price()
	homes := s.Placement()
	split, err := s.splitBy(f)
	if err != nil {
		return err
	}
	if !ok || len(costs.Forward) != len(split) || len(homes) != len(split) {
		return errors.New("what its stages take is not known")
	}
	n := samples(&s.Job)
	forward, backward, own := make([]float64, len(p.Layers)), make([]float64, len(p.Layers)), make([]float64, len(p.Layers))
	for i := range p.Layers {
		one := &p.Layers[i]
		forward[i], backward[i], own[i] = one.Forward.At(n), one.Backward.At(n), float64(one.Parameters)
		if r := s.Report; r != nil && len(r.Profile.Layers) == len(p.Layers) {
			l := &r.Profile.Layers[i]
			forward[i], backward[i] = l.ForwardSeconds, l.BackwardInputSeconds+l.BackwardWeightSeconds
		}
	}
	for k, run := range split {
		slow := 1.0
		if measured {
			slow = p.Devices[homes[k]].Slowdown
		}
		stage := stageCosts{k, slow}
		again := 0.0 // that its backwards run forwards for
		if kind := job.At(s.Job.Recompute, k); kind != "" && kind != RecomputeKinds[0] {
			again = stage.of(costs.Forward, 0)
		}
		whole := max(stage.of(costs.Backward, 0)-again, 0)
		input, weight := max(stage.of(costs.BackwardInput, whole/2+again)-again, 0), stage.of(costs.BackwardWeight, whole/2)
		for i := run[0]; i < run[1]; i++ {
			one := &p.Layers[i]
			a, b, c := shareOf(forward, run, i), shareOf(backward, run, i), shareOf(own, run, i)
			at := func(seconds float64) tuner.Curve { return tuner.Curve{Samples: []int{n}, Values: []float64{seconds}} }
			one.Forward, one.Backward = at(a*stage.of(costs.Forward, 0)), at(b*whole)
			one.BackwardInput, one.BackwardWeight = at(b*input), at(b*weight)
			one.Optimizer, one.Average = c*stage.of(costs.Update, 0), c*stage.of(costs.Average, 0)*float64(s.Job.Averaging.Tau)
		}
	}
	p.Samples = []int{n}
	return nil
}

// splitBy is Split, by operations too.
func (s *Spec) splitBy(f *Facts) ([][2]int, error) {
	if split := s.Split(); split != nil {
		return split, nil
	}
	return f.cut(&s.Job)
}

// stageCosts are those of a stage, on a device that is so slow.
type stageCosts struct {
	stage int
	slow  float64
}

// of is one of them on a device of speed 1; otherwise where costs do not have it.
func (c stageCosts) of(list []float64, otherwise float64) float64 {
	if c.stage >= len(list) {
		return otherwise
	}
	return list[c.stage] / c.slow
}

// shareOf is what a layer has of the sum over a run; the same for all where that is 0.
func shareOf(of []float64, run [2]int, layer int) float64 {
	sum := 0.0
	for _, v := range of[run[0]:run[1]] {
		sum += v
	}
	if sum <= 0 {
		return 1 / float64(run[1]-run[0])
	}
	return of[layer] / sum
}
