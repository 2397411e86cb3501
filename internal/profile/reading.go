package profile

import (
	"fmt"
	"slices"

	"github.com/avgpipe/avgpipe/internal/spec"
	"github.com/avgpipe/avgpipe/internal/worker"
	"github.com/avgpipe/avgpipe/schedule"
	"github.com/avgpipe/avgpipe/stage"
	"github.com/avgpipe/avgpipe/tuner"
)

// shareOut gives each device of a target a run of layers, by their floating-point operations.
func (s *subject) shareOut(target tuner.Target) ([]stage.Range, error) {
	return stage.Split(s.Model.Costs(s.size()), target.Devices)
}

// kind is what a run of a profile is for.
type kind string

const (
	layered   kind = "layers"
	merged    kind = "stages"
	contended kind = "stages that share devices"
)

// reading is one run of a profile.
type reading struct {
	kind      kind
	samples   int
	pipelines int
	homes     []int // by stage: its device
	trial     worker.TrialConfig
}

// layeredSizes are those of layered runs: none where the job fixes what a stage takes, whichever layers it has.
func (s *subject) layeredSizes(sizes []int) []int {
	if spec.Fixed(&s.request.Spec.Job) != nil {
		return nil
	}
	return sizes
}

// layered lays out a run in which each layer is a stage. At the middle size there is more to learn from it.
func (s *subject) layered(target tuner.Target, shares []stage.Range, samples int, middle bool) reading {
	micros := max(fewMicros, target.Devices)
	if middle {
		micros = max(layeredMicros, target.Devices)
	}
	r := s.reading(layered, target, samples, 1, micros)
	r.trial.Plan = profilePlan(shares, micros)
	for d, share := range shares {
		for i := share.From; i < share.To; i++ {
			r.homes = append(r.homes, d)
			r.trial.Split = append(r.trial.Split, [2]int{i, i + 1})
		}
	}
	return r
}

// orders are the schedules in whose order stages are measured, where the job has one of them; the others split backwards or stages. Passes
// take longer where more activations are in flight.
var orders = []string{"gpipe", "afp"}

// merged lays out a run as training is, with whole batches of the job: in the job's own order, or by 1f1b.
func (s *subject) merged(target tuner.Target, shares []stage.Range, samples, pipelines int) reading {
	micros := s.request.Spec.Job.Train.Batch / samples
	r := s.reading(merged, target, samples, pipelines, micros)
	order := "1f1b"
	if slices.Contains(orders, s.request.Spec.Job.Schedule) {
		order = s.request.Spec.Job.Schedule
	}
	r.trial.Plan = generate(order, target.Devices, micros)
	for d, share := range shares {
		r.homes = append(r.homes, d)
		r.trial.Split = append(r.trial.Split, [2]int{share.From, share.To})
	}
	return r
}

// contended lays out a run of two pipelines, each as merged.
func (s *subject) contended(target tuner.Target, shares []stage.Range, samples int) reading {
	r := s.merged(target, shares, samples, 2)
	r.kind = contended
	return r
}

// reading is what the kinds of run have in common.
func (s *subject) reading(k kind, target tuner.Target, samples, pipelines, micros int) reading {
	j := spec.With(&s.request.Spec.Job, &tuner.Candidate{
		Devices: target.Devices, Threads: max(target.Threads, 1), Pipelines: pipelines, MicroBatches: micros, Recompute: spec.RecomputeKinds[:1],
	})
	j.Train.Batch = samples * micros
	return reading{kind: k, samples: samples, pipelines: pipelines, trial: worker.TrialConfig{
		Job: j, Cores: s.request.Cores, WarmUp: warmUp(pipelines), Batches: profileBatches,
	}}
}

// several reports whether a second pipeline is possible: the job allows it, and it takes no more than half of the memory.
func (s *subject) several(target tuner.Target) bool {
	if s.request.Spec.Job.Pipelines == 1 {
		return false
	}
	const model = 6 // times the weights: gradients, state of adam, center and messages
	weights, frozen := 0, 0
	for _, p := range s.Model.Params() {
		if p.Frozen {
			frozen += 4 * p.Len()
		} else {
			weights += 4 * p.Len()
		}
	}
	held, capacity := int64(2*model*weights+frozen), s.MemoryBytes
	own, _ := spec.Memories(&s.request.Spec.Job, target.Devices)
	if own[0] > 0 {
		capacity = own[0] * int64(len(own))
	}
	return capacity == 0 || held <= capacity/2
}

// profilePlan runs every layer as a stage, in the order of 1f1b over the devices: a device goes through all of its layers for one
// micro-batch before it turns to another. Every other micro-batch has its backward split.
func profilePlan(layers []stage.Range, micros int) schedule.Plan {
	plan := generate("1f1b", len(layers), micros)
	for d, run := range layers {
		var ops []schedule.Op
		for _, op := range plan[d] {
			kinds := []schedule.Kind{op.Kind}
			if op.Kind == schedule.Backward && op.Micro%2 == 1 {
				kinds = []schedule.Kind{schedule.BackwardInput, schedule.BackwardWeight}
			}
			for i := run.From; i < run.To; i++ {
				op.Stage = i
				if op.Kind != schedule.Forward { // from the last to the first
					op.Stage = run.From + run.To - 1 - i
				}
				for _, kind := range kinds {
					ops = append(ops, schedule.Op{Kind: kind, Stage: op.Stage, Micro: op.Micro})
				}
			}
		}
		plan[d] = ops
	}
	return plan
}

// generate makes a plan by a schedule that has one for any number of devices and micro-batches.
func generate(name string, devices, micros int) schedule.Plan {
	plan, _, err := schedule.Generate(name, schedule.Request{Devices: devices, MicroBatches: micros})
	if err != nil {
		panic(fmt.Sprintf("a plan of %d stages and %d micro-batches: %v", devices, micros, err))
	}
	return plan
}
