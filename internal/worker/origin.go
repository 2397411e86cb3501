package worker

import (
	"github.com/avgpipe/avgpipe/internal/worker/control"
	"github.com/avgpipe/avgpipe/job"
)

// origin is where a generation begins. Rounds and steps count on from those of the round that is restored, whatever the number of pipelines
// was; the samples that all pipelines had consumed by then are the position that their data go on from.
type origin struct {
	round, step, samples uint64
	batch                uint64 // samples that a step of all pipelines consumes
	tau                  uint64 // steps in a round
}

func originOf(a *control.Assignment) origin {
	o := origin{batch: uint64(a.Spec.Job.Train.Batch) * uint64(a.Spec.Job.Pipelines), tau: uint64(a.Spec.Job.Averaging.Tau)}
	if r := a.Restore; r != nil {
		o.round, o.step, o.samples = r.Round, r.Round*o.tau, r.SamplesSeen
	}
	return o
}

// seen is how many samples all pipelines have consumed by the end of a round.
func (o origin) seen(round uint64) uint64 { return o.samples + (round-o.round)*o.tau*o.batch }

// final is the round where a budget is used up: whole rounds, as job.Budget counts them.
func (o origin) final(b *job.Budget) uint64 {
	if b.Samples <= o.samples {
		return o.round
	}
	round := o.tau * o.batch
	return o.round + (b.Samples-o.samples+round-1)/round
}

// scheduled is the step of the learning rate's schedule at a step: that of a job which had as many pipelines from its start and has consumed
// as many samples.
func (o origin) scheduled(step uint64) uint64 { return o.samples/o.batch + step - o.step }

// unscheduled is the step at which the schedule is at a step of its own; at least the first step that follows.
func (o origin) unscheduled(scheduled uint64) uint64 {
	return max(scheduled+o.step, o.samples/o.batch) - o.samples/o.batch
}
