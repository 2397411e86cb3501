package node

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/avgpipe/avgpipe/elastic"
	"github.com/avgpipe/avgpipe/job"
	"github.com/avgpipe/avgpipe/schedule"
	"github.com/avgpipe/avgpipe/stage"
	"github.com/avgpipe/avgpipe/stage/device"
	"github.com/avgpipe/avgpipe/stage/device/emulated"
	"github.com/avgpipe/avgpipe/stage/layer"
	"github.com/avgpipe/avgpipe/stage/model"
)

// checkMemory refuses a job whose stages do not fit the memory that it gives its emulated devices. What other devices have,
// the worker finds out.
func (a *admission) checkMemory(plan schedule.Plan) {
	memory := a.job.Devices.Emulated.Memory
	if a.job.Devices.Kind != job.KindEmulated || !slices.ContainsFunc(memory, func(b float64) bool { return b > 0 }) {
		return
	}
	short, err := shortOf(a.model, a.job, plan)
	if err != nil {
		a.refuse("devices.emulated.memory", "", "what the stages need cannot be found out: %v", err)
		return
	}
	if short == nil {
		return
	}
	fits := a.whatFits()
	advice := "neither recompute nor smaller micro-batches nor more stages make it fit; use fewer pipelines or a smaller model"
	near := ""
	if len(fits) > 0 {
		advice, near = strings.Join(fits, " or ")+" would fit", fits[0]
	}
	a.refuse("devices.emulated.memory", near, "%v; %s", short, advice)
}

// shortage is a device whose stages do not fit.
type shortage struct {
	stages      []int // of the device
	need, bytes int64
}

func (s *shortage) Error() string {
	return fmt.Sprintf("%s %d bytes, and the memory of its device is %d: %d bytes short", needs(s.stages), s.need, s.bytes, s.need-s.bytes)
}

func needs(stages []int) string {
	if len(stages) == 1 {
		return fmt.Sprintf("stage %d needs", stages[0])
	}
	return fmt.Sprintf("stages %s on one device need", strings.Trim(strings.ReplaceAll(fmt.Sprint(stages), " ", ", "), "[]"))
}

// shortOf finds the first device whose memory is too small; nil when there is none.
func shortOf(m *model.Model, j *job.Job, plan schedule.Plan) (*shortage, error) {
	bytes, err := stageBytes(m, j, plan)
	if err != nil {
		return nil, err
	}
	on := make([]shortage, len(plan))
	for s, d := range plan.Placement() {
		on[d].stages, on[d].need = append(on[d].stages, s), on[d].need+bytes[s]
	}
	for d := range on {
		if on[d].bytes = int64(job.At(j.Devices.Emulated.Memory, d)); on[d].bytes > 0 && on[d].need > on[d].bytes {
			return &on[d], nil
		}
	}
	return nil, nil //nolint:nilnil // Nothing is short.
}

// stageBytes is what each stage takes of its device's memory for all pipelines, its part of the center included. It makes the
// stages on devices that hold everything and store nothing.
func stageBytes(m *model.Model, j *job.Job, plan schedule.Plan) ([]int64, error) {
	method, err := elastic.NewMethod(j.Averaging.Method, elastic.Config{
		Pull: elastic.Pull(j.Averaging.Pull), Alpha: j.Averaging.Alpha, Tau: j.Averaging.Tau, Pipelines: int(j.Pipelines),
	})
	if err != nil {
		return nil, err
	}
	c := stage.Config{
		Model: m, Count: plan.Stages(), Samples: j.Train.Batch / int(j.MicroBatches), Sequence: j.Data.Sequence,
		Optimizer: stage.Optimizer{Name: j.Optimizer.Name, Momentum: j.Optimizer.Momentum},
	}
	if j.Precision == device.BF16.String() {
		c.Compute = device.BF16
	}
	if c.Sequence == 0 || c.Sequence > m.Sequence() { // that is refused elsewhere
		c.Sequence = m.Sequence()
	}
	ranges, err := stage.Split(m.Costs(layer.Size{B: c.Samples, T: c.Sequence, Compute: c.Compute}), plan.Stages())
	if err != nil {
		return nil, err
	}
	slots, halves, versions := schedule.PinnedByStage(plan), schedule.HalvesByStage(plan), schedule.VersionsByStage(plan)
	bytes := make([]int64, plan.Stages())
	for k := range bytes {
		c.Index, c.Range, c.Slots, c.WeightSlots, c.Versions = k, ranges[k], slots[k], halves[k], versions[k]
		c.Recompute = stage.Recompute(job.At(j.Recompute, k))
		one, vector, err := holds(c)
		if err != nil {
			return nil, err
		}
		bytes[k] = int64(j.Pipelines)*one + int64(method.Needs().Vectors(int(j.Pipelines))+1)*vector // and that of evaluations
	}
	return bytes, nil
}

// holds is what a stage of one pipeline takes of a device's memory, and a vector of its parameters.
func holds(c stage.Config) (bytes, vector int64, err error) {
	dev, err := emulated.Open(emulated.Config{})
	if err != nil {
		return 0, 0, err
	}
	defer func() { err = errors.Join(err, dev.Close()) }()
	c.Device = dev
	s, err := stage.New(c)
	if err != nil {
		return 0, 0, err
	}
	bytes = dev.Held()
	if _, err := s.NewVector(); err != nil {
		return 0, 0, err
	}
	return bytes, dev.Held() - bytes, s.Close()
}

// maxMore bounds how many times as many stages, or micro-batches, are tried.
const maxMore = 8

// whatFits lists the nearest changes of one key after which the job's stages fit.
func (a *admission) whatFits() []string {
	var out []string
	try := func(change string, set func(j *job.Job)) bool {
		s := a.spec
		s.Job = *a.job
		set(&s.Job)
		plan, _, err := s.plan()
		if err != nil {
			return false
		}
		short, err := shortOf(a.model, &s.Job, plan)
		if err != nil || short != nil {
			return false
		}
		out = append(out, change)
		return true
	}
	for _, r := range []stage.Recompute{stage.RecomputeBlock, stage.RecomputeFull} {
		if try("recompute: "+string(r), func(j *job.Job) { j.Recompute = []string{string(r)} }) {
			break
		}
	}
	m := int(a.job.MicroBatches)
	for n := m + 1; n <= min(a.job.Train.Batch, maxMore*m); n++ {
		if a.job.Train.Batch%n == 0 && try("micro_batches: "+strconv.Itoa(n), func(j *job.Job) { j.MicroBatches = job.Count(n) }) {
			break
		}
	}
	if len(a.job.Devices.Emulated.Memory) > 1 || len(a.job.Recompute) > 1 {
		return out // who knows what another device has
	}
	k := int(a.job.Stages)
	for n := k + 1; n <= min(len(a.model.Layers), maxMore*k); n++ {
		if try("stages: "+strconv.Itoa(n), func(j *job.Job) { j.Stages = job.Count(n) }) {
			break
		}
	}
	return out
}
