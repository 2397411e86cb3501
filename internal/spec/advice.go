package spec

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/avgpipe/avgpipe/internal/words"
	"github.com/avgpipe/avgpipe/job"
	"github.com/avgpipe/avgpipe/tuner"
)

// maxMore bounds how many times as many stages, or micro-batches, are tried.
const maxMore = 8

// refuseShort refuses a job whose stages do not fit the memory of its devices, or of the host, and says what would.
func (x *resolver) refuseShort(a *arrangement) {
	advice, near := "neither recompute nor smaller micro-batches nor fewer pipelines nor more stages make it fit; use a smaller model", ""
	if fits := x.whatFits(); len(fits) > 0 {
		advice, near = strings.Join(fits, " or ")+" would fit", fits[0]
	}
	short := &a.short[0]
	if short.stages != nil {
		x.refuse("devices.emulated.memory", near, "%v; %s", short, advice)
		return
	}
	var m tuner.Memory
	for _, s := range a.memory {
		m.Weights, m.Gradients, m.State = m.Weights+s.Weights, m.Gradients+s.Gradients, m.State+s.State
		m.Activations, m.Center = m.Activations+s.Activations, m.Center+s.Center
		m.Boundaries, m.Host = m.Boundaries+s.Boundaries, m.Host+s.Host
	}
	x.refuse("model", near, "model: its %s parameters take %s of memory in %s: weights %s, gradients %s, optimizer %s, activations %s, averaging %s, messages, commits and the process %s; %s; %s",
		words.Number(parameters(x.Model)), words.Bytes(short.need), words.Count(int(x.Job.Pipelines), "pipeline"), words.Bytes(m.Weights),
		words.Bytes(m.Gradients), words.Bytes(m.State), words.Bytes(m.Activations), words.Bytes(m.Center),
		words.Bytes(m.Boundaries+m.Host), x.host(), advice)
}

// fits reports whether the job fits after a change.
func (x *resolver) fits(change func(j *job.Job)) bool {
	j := x.Job
	change(&j)
	a, err := x.arrange(&j)
	return err == nil && len(a.short) == 0
}

// whatFits lists the nearest changes of one key after which the job's stages fit; where there is none, one of several keys.
func (x *resolver) whatFits() (out []string) {
	first := func(values []int, key string, set func(j *job.Job, n job.Count)) {
		for _, n := range values {
			if x.fits(func(j *job.Job) { set(j, job.Count(n)) }) {
				out = append(out, key+": "+strconv.Itoa(n))
				return
			}
		}
	}
	for _, kind := range RecomputeKinds[1:] {
		if x.fits(func(j *job.Job) { j.Recompute = []string{kind} }) {
			out = append(out, "recompute: "+kind)
			break
		}
	}
	var fewer []int
	for n := int(x.Job.Pipelines) - 1; n > 0; n-- {
		fewer = append(fewer, n)
	}
	micros, stages := x.moreMicroBatches(), x.moreStages()
	first(micros, "micro_batches", func(j *job.Job, n job.Count) { j.MicroBatches = n })
	first(fewer, "pipelines", func(j *job.Job, n job.Count) { j.Pipelines = n })
	first(stages, "stages", func(j *job.Job, n job.Count) { j.Stages = n })
	if len(out) > 0 {
		return out
	}
	most := int(x.Job.MicroBatches)
	if len(micros) > 0 {
		most = micros[len(micros)-1]
	}
	first(append([]int{int(x.Job.Stages)}, stages...), fmt.Sprintf("recompute: auto with micro_batches: %d, pipelines: 1 and stages", most),
		func(j *job.Job, n job.Count) {
			j.Stages, j.Pipelines, j.MicroBatches, j.Recompute = n, 1, job.Count(most), []string{job.AutoRecompute}
		})
	return out
}

// moreMicroBatches are the greater divisors of the batch, the nearest first.
func (x *resolver) moreMicroBatches() (all []int) {
	if x.UserPlan != nil {
		return nil // the file says how many there are
	}
	m, batch := int(x.Job.MicroBatches), x.Job.Train.Batch
	for n := m + 1; n <= min(batch, maxMore*m); n++ {
		if batch%n == 0 {
			all = append(all, n)
		}
	}
	return all
}

// moreStages are the greater numbers of stages that the model has layers for, the nearest first.
func (x *resolver) moreStages() (all []int) {
	if x.UserPlan != nil || len(x.Job.Devices.Emulated.Memory) > 1 || len(x.Job.Recompute) > 1 {
		return nil // who knows what another device has
	}
	k := int(x.Job.Stages)
	for n := k + 1; n <= min(len(x.Model.Layers)/max(1, int(x.Job.Chunks)), maxMore*k); n++ {
		all = append(all, n)
	}
	return all
}
