package spec

import (
	"fmt"
	"math"
	"strings"

	"github.com/avgpipe/avgpipe/internal/footprint"
	"github.com/avgpipe/avgpipe/internal/words"
	"github.com/avgpipe/avgpipe/job"
	"github.com/avgpipe/avgpipe/schedule"
	"github.com/avgpipe/avgpipe/stage"
	"github.com/avgpipe/avgpipe/stage/device"
	"github.com/avgpipe/avgpipe/stage/layer"
	"github.com/avgpipe/avgpipe/stage/model"
	"github.com/avgpipe/avgpipe/tuner"
)

// mostOperations bounds a step of a job whose sizes are added up in integers: no layer keeps more values than it computes operations. At
// 10^12 a second, a step of so many takes 20 hours.
const mostOperations = 1 << 56

// reserve is the part of the host's memory that no job is planned into: the daemon, commits, buffers of files, other processes.
const reserve = 0.1

// HostMemory is how much of this host's memory jobs may take; 0 when the system does not say.
func HostMemory() int64 { return int64((1 - reserve) * float64(device.HostTotal())) }

// parameters counts the trainable values of a model, in floating point: a model that nobody has memory for can have more than an
// integer holds.
func parameters(m *model.Model) float64 {
	n := 0.0
	for _, p := range m.Params() {
		if p.TiedTo != "" || p.Running != 0 {
			continue
		}
		size := 1.0
		for _, d := range p.Shape {
			size *= float64(d)
		}
		n += size
	}
	return n
}

// checkSize refuses a model whose weights, gradients and optimizer state alone, of one pipeline, are more than the host has. It reports
// whether the rest of the job can be priced.
func (a *admission) checkSize(m *model.Model) bool {
	n := parameters(m)
	state := stage.Optimizer{Name: a.job.Optimizer.Name, Momentum: a.job.Optimizer.Momentum}.StateVectors()
	if a.job.Devices.Kind == job.KindEmulated || a.memory == 0 {
		return true // emulated devices hold no values
	}
	need := n * float64(4*(2+state))
	if need <= float64(a.memory) {
		return a.checkOperations(m)
	}
	a.refuse("model", "", "model: it has %s parameters; weights, gradients and the %d vectors of %s take %s, and %s; use a smaller model",
		words.Number(n), state, a.job.Optimizer.Name, words.Bytes(whole(need)), a.host())
	return false
}

// checkOperations refuses steps that nobody waits for, which are also those whose sizes an integer may not hold.
func (a *admission) checkOperations(m *model.Model) bool {
	tokens := footprint.Sequence(m, a.job)
	step := float64(a.job.Train.Batch) * float64(max(1, a.job.Pipelines))
	operations := 0.0
	for _, cost := range m.Costs(layer.Size{B: 1, T: tokens}) {
		operations += cost * step
	}
	if operations < mostOperations && step*float64(tokens) < math.MaxInt32 {
		return true
	}
	a.refuse("train.batch", "", "train.batch: %d samples of %d tokens, in each pipeline, take %s floating-point operations a step in this model; "+
		"use a smaller batch, shorter samples or a smaller model", a.job.Train.Batch, tokens, words.Number(operations))
	return false
}

// whole is a number of bytes, at most the largest integer.
func whole(bytes float64) int64 {
	if bytes >= math.MaxInt64 {
		return math.MaxInt64
	}
	return int64(bytes)
}

// host says what this node gives to jobs.
func (a *admission) host() string {
	return fmt.Sprintf("this node has %s for jobs", words.Bytes(a.memory))
}

// hostNeeds is what a job takes of the host's memory, by what it is for: of all stages and pipelines, the center, and the worker.
func (p *pricer) hostNeeds(plan schedule.Plan) (sum tuner.Memory, err error) {
	all, err := p.memories(plan)
	for _, m := range all {
		sum.Weights += m.Weights
		sum.Gradients += m.Gradients
		sum.State += m.State
		sum.Activations += m.Activations
		sum.Boundaries += m.Boundaries
		sum.Center += m.Center
		sum.Host += m.Host
	}
	return sum, err
}

// checkHost refuses a job that does not fit the host's memory, with the numbers, and says what would.
func (a *admission) checkHost(plan schedule.Plan) {
	if a.job.Devices.Kind == job.KindEmulated || a.memory == 0 || a.job.Open() {
		return // emulated devices hold no values; a tuning looks for what fits
	}
	p, err := newPricer(a.model, a.job, a.Spec.Stages(), nil)
	if err != nil {
		return // what is wrong was refused before
	}
	parts, err := p.hostNeeds(plan)
	need := parts.Total()
	if err != nil || need <= a.memory {
		return
	}
	fits := a.whatFits(a.fitsHost)
	advice, near := "use a smaller model", ""
	if len(fits) > 0 {
		advice, near = strings.Join(fits, " or ")+" would fit", fits[0]
	}
	a.refuse("model", near, "model: its %s parameters take %s of memory in %s: weights %s, gradients %s, optimizer %s, activations %s, averaging %s, messages, commits and the process %s; %s; %s",
		words.Number(parameters(a.model)), words.Bytes(need), words.Count(int(a.job.Pipelines), "pipeline"), words.Bytes(parts.Weights),
		words.Bytes(parts.Gradients), words.Bytes(parts.State), words.Bytes(parts.Activations), words.Bytes(parts.Center),
		words.Bytes(parts.Boundaries+parts.Host), a.host(), advice)
}

// fitsHost reports whether the job fits the host's memory after a change.
func (a *admission) fitsHost(change func(j *job.Job)) bool {
	s := a.Spec
	s.Job = *a.job
	change(&s.Job)
	if short, err := s.settle(a.model); err != nil || short != nil {
		return false
	}
	plan, _, err := s.Plan()
	if err != nil {
		return false
	}
	p, err := newPricer(a.model, &s.Job, s.Stages(), nil)
	if err != nil {
		return false
	}
	need, err := p.hostNeeds(plan)
	return err == nil && need.Total() <= a.memory
}
