package spec

import (
	"fmt"
	"slices"
	"sort"
	"strings"

	"github.com/avgpipe/avgpipe/internal/words"
	"github.com/avgpipe/avgpipe/job"
	"github.com/avgpipe/avgpipe/tuner"
)

// maxMore bounds how many times as many stages, or micro-batches, are tried.
const maxMore = 8

// refuseShort refuses a job whose stages do not fit the memory of its devices, or of the host, and says what would. first begins
// what is said of them.
func (x *resolver) refuseShort(j *job.Job, memory []tuner.Memory, short *tuner.Shortage, first string) {
	advice, near := "", ""
	if !x.brief {
		advice, near = x.WouldFit(j)
	}
	switch {
	case short.Device >= 0 && j.Devices.Kind == job.KindGPU:
		x.refuse("devices.gpu.memory", near, "%s%s (GPU %d; devices.gpu.memory is %s, of which the CUDA context takes %s); %s", first, shortText(short), short.Device,
			words.Bytes(int64(j.Devices.GPU.Memory)), words.Bytes(int64(j.Devices.GPU.Memory)-short.Capacity), advice)
		return
	case short.Device >= 0:
		x.refuse("devices.emulated.memory", near, "%s%s; %s", first, shortText(short), advice)
		return
	}
	var m tuner.Memory
	for _, s := range memory {
		m.Weights, m.Gradients, m.State = m.Weights+s.Weights, m.Gradients+s.Gradients, m.State+s.State
		m.Activations, m.Center = m.Activations+s.Activations, m.Center+s.Center
		m.Boundaries, m.Host = m.Boundaries+s.Boundaries, m.Host+s.Host
	}
	largest := ""
	if n := len(memory); n > 1 {
		largest = fmt.Sprintf("; of its %d stages, stage %d takes most, %s", n, short.Largest, words.Bytes(memory[short.Largest].Total()))
	}
	x.refuse("model", near, "%smodel: its %s parameters take %s of memory in %s: weights %s, gradients %s, optimizer %s, activations %s, averaging %s, messages, commits and the process %s%s; %s; %s",
		first, words.Number(float64(x.Model.Weights())), words.Bytes(short.Need), words.Count(int(j.Pipelines), "pipeline"), words.Bytes(m.Weights),
		words.Bytes(m.Gradients), words.Bytes(m.State), words.Bytes(m.Activations), words.Bytes(m.Center),
		words.Bytes(m.Boundaries+m.Host), largest, x.host()+x.whyUnplaced(memory, short), advice)
}

// WouldFit says which changes of a job of known counts, whose stages do not fit their memory, would make them fit: of each key the
// nearest; where no key alone does, one of several. nearest is the first of them, "" for none.
func (f *Facts) WouldFit(j *job.Job) (advice, nearest string) {
	var fit []string
	fits := func(c change) bool {
		changed := *j
		c.apply(&changed)
		a, err := f.arrange(&changed)
		return err == nil && len(a.short) == 0
	}
	first := func(changes []change) {
		if at := slices.IndexFunc(changes, fits); at >= 0 {
			fit = append(fit, changes[at].text)
		}
	}
	var recompute []change
	for _, kind := range RecomputeKinds[1:] {
		recompute = append(recompute, change{"recompute: " + kind, func(j *job.Job) { j.Recompute = []string{kind} }})
	}
	fewer := func(n int) change {
		return change{fmt.Sprintf("pipelines: %d", n), func(j *job.Job) { j.Pipelines = job.Count(n) }}
	}
	// Fewer pipelines never take more, and to try each of a thousand takes minutes.
	var pipelines []change
	if n := sort.Search(int(j.Pipelines), func(n int) bool { return n > 0 && !fits(fewer(n)) }) - 1; n > 0 {
		pipelines = []change{fewer(n)}
	}
	micros, stages, batches := f.moreMicroBatches(j), f.moreStages(j), smallerBatches(j)
	for _, changes := range [][]change{recompute, micros, pipelines, stages, batches} {
		first(changes)
	}
	if len(fit) == 0 {
		first(f.several(j, micros, stages, batches))
	}
	if len(fit) == 0 {
		return "neither recompute nor smaller micro-batches nor fewer pipelines nor more stages nor a smaller batch make it fit; use a smaller model", ""
	}
	return strings.Join(fit, " or ") + " would fit", fit[0]
}

// change is one of a job file.
type change struct {
	text  string
	apply func(j *job.Job)
}

// several are changes of all keys: the smallest micro-batches, one pipeline and recomputation, with each number of stages; and then the
// smallest batch, which leaves no smaller micro-batches.
func (f *Facts) several(j *job.Job, micros, stages, batches []change) (all []change) {
	kind := RecomputeKinds[len(RecomputeKinds)-1]
	if j.Devices.OwnMemory() {
		kind = job.AutoRecompute // by what each device holds
	}
	smallest := change{fmt.Sprintf("micro_batches: %d", j.MicroBatches), func(*job.Job) {}}
	if len(micros) > 0 {
		smallest = micros[len(micros)-1]
	}
	for _, smallest := range append([]change{smallest}, batches[max(0, len(batches)-1):]...) {
		for _, more := range append([]change{{fmt.Sprintf("stages: %d", j.Stages), func(*job.Job) {}}}, stages...) {
			all = append(all, change{fmt.Sprintf("recompute: %s with %s, pipelines: 1 and %s", kind, smallest.text, more.text), func(j *job.Job) {
				smallest.apply(j)
				more.apply(j)
				j.Pipelines, j.Recompute = 1, []string{kind}
			}})
		}
	}
	return all
}

// smallerBatches are the batch halved again and again, while the micro-batches divide it.
func smallerBatches(j *job.Job) (all []change) {
	for n := j.Train.Batch / 2; n > 0 && n%int(j.MicroBatches) == 0; n /= 2 {
		all = append(all, change{fmt.Sprintf("train.batch: %d", n), func(j *job.Job) { j.Train.Batch = n }})
	}
	return all
}

// moreMicroBatches are the greater divisors of the batch, the nearest first.
func (f *Facts) moreMicroBatches(j *job.Job) (all []change) {
	if f.UserPlan != nil {
		return nil // the file says how many there are
	}
	for n := j.MicroBatches + 1; n <= min(job.Count(j.Train.Batch), maxMore*j.MicroBatches); n++ {
		if j.Train.Batch%int(n) == 0 {
			all = append(all, change{fmt.Sprintf("micro_batches: %d", n), func(j *job.Job) { j.MicroBatches = n }})
		}
	}
	return all
}

// moreStages are the greater numbers of stages that the model has layers for, the nearest first.
func (f *Facts) moreStages(j *job.Job) (all []change) {
	if f.UserPlan != nil || len(j.Devices.Emulated.Memory) > 1 || len(j.Recompute) > 1 {
		return nil // a list has no entry for another device
	}
	for n := j.Stages + 1; n <= min(job.Count(len(f.Model.Layers)/max(1, int(j.Chunks))), maxMore*j.Stages); n++ {
		all = append(all, change{fmt.Sprintf("stages: %d", n), func(j *job.Job) { j.Stages = n }})
	}
	return all
}
