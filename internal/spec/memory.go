package spec

import (
	"fmt"
	"slices"
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

// boundedMemory reports whether a job says what its devices hold: of emulated ones. What others have, the worker finds out.
func boundedMemory(j *job.Job) bool {
	return j.Devices.Kind == job.KindEmulated && slices.ContainsFunc(j.Devices.Emulated.Memory, func(b float64) bool { return b > 0 })
}

// shortage is a device whose stages do not fit.
type shortage struct {
	device      int
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

// pricer prices the stages of a job whose counts are known.
type pricer struct {
	job     *job.Job
	config  stage.Config // of any stage
	ranges  []stage.Range
	vectors int // of a stage's parameters, that averaging and evaluations keep
}

// newPricer prices a job that is cut as it is said, or by floating-point operations where split is nil.
func newPricer(m *model.Model, j *job.Job, stages int, split [][2]int) (*pricer, error) {
	method, err := elastic.NewMethod(j.Averaging.Method, elastic.Config{
		Pull: elastic.PullRule(j.Averaging.Pull), Alpha: j.Averaging.Alpha, Tau: j.Averaging.Tau, Pipelines: int(j.Pipelines),
	})
	if err != nil {
		return nil, err
	}
	everything, err := emulated.Open(emulated.Config{}) // nothing is allocated on it
	if err != nil {
		return nil, err
	}
	p := &pricer{job: j, vectors: method.Needs().Vectors(int(j.Pipelines)) + 1, config: stage.Config{
		Device: everything, Model: m, Count: stages, Samples: j.Train.Batch / int(j.MicroBatches), Sequence: sequenceOf(m, j),
		Optimizer: stage.Optimizer{Name: j.Optimizer.Name, Momentum: j.Optimizer.Momentum},
	}}
	if j.Precision == device.BF16.String() {
		p.config.Compute = device.BF16
	}
	for _, layers := range split {
		p.ranges = append(p.ranges, stage.Range{From: layers[0], To: layers[1]})
	}
	if split == nil {
		p.ranges, err = stage.Split(m.Costs(p.size()), stages)
	}
	return p, err
}

// size is that of a micro-batch.
func (p *pricer) size() layer.Size {
	return layer.Size{B: p.config.Samples, T: p.config.Sequence, Compute: p.config.Compute}
}

// sequenceOf is the length of a sample. One that is too long is refused elsewhere.
func sequenceOf(m *model.Model, j *job.Job) int {
	if n := j.Data.Sequence; n > 0 && n <= m.Sequence() {
		return n
	}
	return m.Sequence()
}

// bytes is what stage k takes of its device's memory for one pipeline. It pins so many micro-batches, of which halves are between the
// halves of their backward, and keeps so many versions of its weights.
func (p *pricer) bytes(k, slots, halves, versions int) (stage.Bytes, error) {
	c := p.config
	c.Index, c.Range, c.Slots, c.WeightSlots, c.Versions = k, p.ranges[k], slots, halves, versions
	c.Recompute = stage.Recompute(job.At(p.job.Recompute, k))
	return c.Bytes()
}

// stage is what stage k takes for all pipelines, its part of the center included.
func (p *pricer) stage(k, slots, halves, versions int) (int64, error) {
	b, err := p.bytes(k, slots, halves, versions)
	return int64(p.job.Pipelines)*b.Total() + int64(p.vectors)*b.Vector, err
}

// stages is what each stage takes by a plan.
func (p *pricer) stages(plan schedule.Plan) ([]int64, error) {
	slots, halves, versions := schedule.InFlightByStage(plan), schedule.HalvesByStage(plan), schedule.VersionsByStage(plan)
	bytes := make([]int64, plan.Stages())
	for k := range bytes {
		var err error
		if bytes[k], err = p.stage(k, slots[k], halves[k], versions[k]); err != nil {
			return nil, err
		}
	}
	return bytes, nil
}

// short lists the devices whose memory is too small.
func (p *pricer) short(plan schedule.Plan) ([]shortage, error) {
	bytes, err := p.stages(plan)
	if err != nil {
		return nil, err
	}
	on := make([]shortage, len(plan))
	for s, d := range plan.Placement() {
		on[d].stages, on[d].need = append(on[d].stages, s), on[d].need+bytes[s]
	}
	for d := range on {
		on[d].device, on[d].bytes = d, int64(job.At(p.job.Devices.Emulated.Memory, d))
	}
	return slices.DeleteFunc(on, func(s shortage) bool { return s.bytes == 0 || s.need <= s.bytes }), nil
}

// pinnable is, per device of a plan with a stage on each, how many micro-batches its memory holds, at most as many as the plan pins
// and at least as many as 1f1b does; 0 where nothing limits it.
func (p *pricer) pinnable(plan schedule.Plan, micro int) ([]int, error) {
	slots := schedule.InFlightByStage(plan)
	limits := make([]int, len(plan))
	for d := range limits {
		memory := int64(job.At(p.job.Devices.Emulated.Memory, d))
		if memory == 0 {
			continue
		}
		least := min(micro, len(plan)-d)
		for limits[d] = slots[d]; limits[d] > least; limits[d]-- {
			bytes, err := p.stage(d, limits[d], 0, 1)
			if err != nil {
				return nil, err
			}
			if bytes <= memory {
				break
			}
		}
	}
	return limits, nil
}
