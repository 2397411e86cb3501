package tuner

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"github.com/avgpipe/avgpipe/schedule"
)

// Target is one way to use the devices: a pipeline over the first Devices of the profile's.
type Target struct {
	Devices int // devices that a pipeline is laid over
	Threads int // of each; 0 where devices are no processor cores
	Profile *Profile
}

// layout is a candidate with what its prediction is computed from.
type layout struct {
	Candidate
	profile  *Profile
	samples  int // in a micro-batch
	space    *Space
	plan     schedule.Plan
	homes    []int // per stage: its device
	shortage *Shortage
}

// homesOf is the device of each stage where chunks stages lie on each of so many devices: stage s on device s mod K, but in
// the V of zb-v, where device d has stages d and 2K-1-d (Qi et al. 2024, "Pipeline Parallelism with Controllable Memory").
func homesOf(name string, devices, chunks int) []int {
	homes := make([]int, devices*chunks)
	for s := range homes {
		homes[s] = s % devices
		if name == "zb-v" && s >= devices {
			homes[s] = 2*devices - 1 - s
		}
	}
	return homes
}

// recomputes reports whether a stage runs its forwards twice.
func recomputes(recompute string) bool { return recompute != "" && recompute != "none" }

// message is the link that stage s hands its output to, and the bytes of one message.
func (l *layout) message(s int) (Link, int64) {
	bytes := int64(math.Round(l.profile.Layers[l.Split[s][1]-1].OutputBytes * float64(l.samples)))
	return l.profile.between(l.homes[s], l.homes[s+1]), bytes
}

// between is the path between two devices: nothing within one, the measured one between neighbours, else the slowest of all.
func (p *Profile) between(a, b int) Link {
	if a > b {
		a, b = b, a
	}
	switch {
	case a == b || len(p.Links) == 0:
		return Link{}
	case a+1 == b && a < len(p.Links):
		return p.Links[a]
	}
	var worst Link
	for _, l := range p.Links {
		worst.LatencySeconds = max(worst.LatencySeconds, l.LatencySeconds)
		worst.SecondsPerByte = max(worst.SecondsPerByte, l.SecondsPerByte)
	}
	return worst
}

// price fills Costs from the split.
func (l *layout) price() {
	stages := len(l.Split)
	c := schedule.Costs{
		Forward: make([]float64, stages), Backward: make([]float64, stages),
		BackwardInput: make([]float64, stages), BackwardWeight: make([]float64, stages),
		Update: make([]float64, stages), Average: make([]float64, stages),
		Link: make([]float64, stages-1), Bandwidth: make([]float64, stages-1), MessageBytes: make([]int64, stages-1),
	}
	for s, run := range l.Split {
		for _, one := range l.profile.Layers[run[0]:run[1]] {
			c.Forward[s] += one.Forward.At(l.samples)
			c.Backward[s] += one.Backward.At(l.samples)
			c.BackwardInput[s] += one.BackwardInput.At(l.samples)
			c.BackwardWeight[s] += one.BackwardWeight.At(l.samples)
			c.Update[s] += one.Optimizer
			if l.Pipelines > 1 {
				c.Average[s] += one.Average / float64(max(l.space.AverageEvery, 1))
			}
		}
		slow := l.profile.Devices[l.homes[s]].Slowdown
		l.profile.applyFixed(&c, s, slow)
		if recomputes(l.Recompute[s]) {
			c.Backward[s] += c.Forward[s]
			c.BackwardInput[s] += c.Forward[s]
		}
		passes, optimizer := l.profile.contention(l.Pipelines, l.samples)
		for _, ops := range [][]float64{c.Forward, c.Backward, c.BackwardInput, c.BackwardWeight} {
			ops[s] = (ops[s]*passes + l.profile.DispatchLatency) * slow
		}
		c.Update[s] *= slow * optimizer
		c.Average[s] *= slow
		if s+1 < stages {
			link, bytes := l.message(s)
			c.Link[s], c.MessageBytes[s] = link.LatencySeconds, bytes
			if link.SecondsPerByte > 0 {
				c.Bandwidth[s] = 1 / link.SecondsPerByte
			}
		}
	}
	l.Costs = c
}

// applyFixed replaces what the layers of stage s take by what the profile fixes, which is said of the stage wherever it lives: of a
// device so slow, on one of speed 1.
func (p *Profile) applyFixed(c *schedule.Costs, s int, slow float64) {
	if len(p.Fixed) == 0 {
		return
	}
	t := p.Fixed[min(s, len(p.Fixed)-1)]
	for _, one := range []struct {
		of   []float64
		time float64
	}{
		{c.Forward, t.Forward}, {c.Backward, t.Backward}, {c.BackwardInput, t.Backward / 2}, {c.BackwardWeight, t.Backward / 2}, {c.Update, t.Update},
	} {
		if one.time > 0 {
			one.of[s] = one.time / slow
		}
	}
}

// Predict fills in what a candidate of a space is predicted to take by a plan, where nothing is left to choose: its counts, Split and
// Recompute are given.
func Predict(s Space, c *Candidate, plan schedule.Plan) error {
	l := &layout{Candidate: *c, profile: s.Targets[0].Profile, space: &s, samples: s.Batch / c.MicroBatches, homes: plan.Placement(), plan: plan}
	l.Warmup = schedule.Warmup(plan)
	l.price()
	if err := l.memory(); err != nil {
		return err
	}
	if err := l.simulate(); err != nil {
		return err
	}
	*c = l.Candidate
	return nil
}

// generate makes the plan from the costs.
func (l *layout) generate() error {
	plan, _, err := Plan(&l.Candidate)
	if err != nil {
		return err
	}
	if homes := plan.Placement(); !slices.Equal(homes, l.homes) {
		return fmt.Errorf("schedule %s places stages on devices %v, expected %v", l.Schedule, homes, l.homes)
	}
	l.plan = plan
	l.Warmup = schedule.Warmup(plan)
	return nil
}

// Plan makes a candidate's plan, and says why it looks as it does.
func Plan(c *Candidate) (schedule.Plan, string, error) {
	return schedule.Generate(c.Schedule, schedule.Request{
		Devices: c.Devices, Chunks: c.Chunks, MicroBatches: c.MicroBatches, RoundBatches: c.RoundBatches, Costs: &c.Costs, InFlightLimit: c.InFlightLimit,
	})
}

// How a simulation finds the period of a plan.
const (
	MostSimulated = 1 << 15 // ops that one simulation runs, so that a search over hundreds of candidates ends within seconds
	filling       = 2       // runs of the plan in which pipelines fill
	watched       = 4       // runs after them, of which the period is the mean
)

// Pipelines that share devices are simulated for more batches, and with ops whose times vary by jitter. Otherwise they stay in the
// lockstep in which they begin, and all of them wait for one device at a time. On a quiet host the quartiles of one pass lie 2 to 10%
// apart; 0.02 to 0.1 give the same predictions.
const (
	sharing = 40
	jitter  = 0.05
)

// simulate predicts the time of the plan: N pipelines on shared devices, each batch after batch, of which an optimizer step
// and the averaging are a part. Pipelines that wait for each other do so once in as many batches as lie between averagings.
func (l *layout) simulate() error {
	load := schedule.Load{Pipelines: l.Pipelines, MicroBatches: l.MicroBatches, AverageEvery: 1, ExchangeNorm: l.space.ExchangeNorm, Shares: l.shares()}
	period, err := Period(l.plan, l.Costs, load)
	if err == nil && l.space.AwaitRound && l.Pipelines > 1 {
		var waiting float64
		load.AwaitRound = true
		waiting, err = Period(l.plan, l.Costs, load)
		period += (waiting - period) * float64(l.plan.Batches(l.MicroBatches)) / float64(max(l.space.AverageEvery, 1))
	}
	if err != nil {
		return err
	}
	for _, held := range l.terms() {
		period = max(period, held)
	}
	l.Predicted.BatchSeconds = period
	l.Predicted.SamplesPerSecond = float64(l.Pipelines*l.samples*l.MicroBatches) / period
	for s := range l.Split {
		t := &l.Predicted.Stages[s]
		held := l.held(t.Device)
		t.WaitSeconds, t.Busy = period-held, held/period
	}
	return nil
}

// Period is what a batch more takes by a plan, the mean of a few: pipelines fill and drain once in both of two simulations, or, by a plan that runs
// on across batches, as often as it is run. Where the load averages more often than that plan drains, it averages as much where it does.
func Period(plan schedule.Plan, costs schedule.Costs, load schedule.Load) (float64, error) {
	across := plan.Batches(load.MicroBatches)
	if often := load.AverageEvery; often > 0 && often < across {
		load.AverageEvery, costs.Average = across, slices.Clone(costs.Average)
		for s := range costs.Average {
			costs.Average[s] *= float64(across) / float64(often)
		}
	}
	more := watched
	if load.Pipelines > 1 {
		load.Jitter, more = jitter, sharing
	}
	more = max(1, min(more, MostSimulated/max(1, plan.Ops()*load.Pipelines)))
	var makespan [2]float64
	for i, runs := range []int{filling, filling + more} {
		load.Batches = runs * across
		r, err := schedule.SimulateMany(plan, costs, load)
		if err != nil {
			return 0, err
		}
		makespan[i] = r.Makespan
	}
	return (makespan[1] - makespan[0]) / float64(more*across), nil
}

// shares is, of each device, the one whose time it takes: devices that share a memory are rows on one GPU. Nil: each keeps its own.
func (l *layout) shares() []int {
	of := l.profile.memories()[:l.Devices]
	if !slices.ContainsFunc(l.profile.Devices[:l.Devices], func(d Device) bool { return d.Shares > 0 }) {
		return nil
	}
	return of
}

// held is how long all pipelines together hold a device for one batch of each, with the devices that take its time.
func (l *layout) held(device int) float64 {
	sum := 0.0
	for _, t := range l.Predicted.Stages {
		if l.profile.memory(t.Device) == l.profile.memory(device) {
			sum += t.ComputeSeconds + t.OptimizerSeconds + t.AverageSeconds
		}
	}
	return float64(l.Pipelines) * sum
}

// terms says where the time of one pipeline goes, and returns how long all of them hold each device.
func (l *layout) terms() []float64 {
	m, c, halves := float64(l.MicroBatches), l.Costs, splits(l.plan)
	updates := float64(max(l.plan.Updates(), 1)) / float64(l.plan.Batches(l.MicroBatches))
	for s := range l.Split {
		t := &l.Predicted.Stages[s]
		t.ComputeSeconds = m * (c.Forward[s] + c.Backward[s])
		if halves {
			t.ComputeSeconds = m * (c.Forward[s] + c.BackwardInput[s] + c.BackwardWeight[s])
		}
		t.OptimizerSeconds, t.AverageSeconds = c.Update[s]*updates, c.Average[s]
	}
	l.Predicted.Links = nil
	for s := range l.Split[1:] {
		link, bytes := l.message(s)
		l.Predicted.Links = append(l.Predicted.Links, LinkTerms{
			Bytes: 2 * int64(l.MicroBatches) * bytes, MessageSeconds: link.LatencySeconds + link.SecondsPerByte*float64(bytes),
		})
	}
	held := make([]float64, l.Devices)
	for d := range held {
		held[d] = l.held(d)
	}
	return held
}

// splits reports whether a plan runs backwards in halves.
func splits(p schedule.Plan) bool {
	return slices.ContainsFunc(p, func(ops []schedule.Op) bool {
		return slices.ContainsFunc(ops, func(o schedule.Op) bool { return o.Kind == schedule.BackwardWeight })
	})
}

// memory prices every stage and finds out whether the devices hold them:
//
//	Mem_s = N (W_versions + G + O + slots A + boundaries) + vectors W + host
//
// with the versions of weights W that a plan reads, gradients G, optimizer state O, the activations A of a micro-batch, the vectors that averaging keeps,
// and what the worker process holds beside all of that.
func (l *layout) memory() error {
	all, err := Memories(l.profile.Sizer, l.plan, l.profile.memories(), l.Split, l.samples, l.Pipelines, l.Recompute)
	if err != nil {
		return err
	}
	l.Predicted.Stages = make([]StageTerms, len(all))
	for s, m := range all {
		l.Predicted.Stages[s] = StageTerms{Device: l.homes[s], Memory: m}
	}
	devices, homes := make([]int64, l.Devices), make([]int, len(all))
	for d := range devices {
		devices[d] = l.profile.Devices[d].CapacityBytes
	}
	for s := range homes {
		homes[s] = l.profile.memory(l.homes[s])
	}
	l.shortage = nil
	if short := Shortages(all, homes, devices, l.profile.HostBytes); len(short) > 0 {
		worst := slices.MaxFunc(short, func(a, b Shortage) int { return cmp.Compare(a.Bytes(), b.Bytes()) })
		l.shortage = &worst
	}
	return nil
}
