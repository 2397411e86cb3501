package spec

import (
	"fmt"
	"slices"
	"strings"

	"github.com/avgpipe/avgpipe/internal/footprint"
	"github.com/avgpipe/avgpipe/job"
	"github.com/avgpipe/avgpipe/schedule"
	"github.com/avgpipe/avgpipe/stage"
	"github.com/avgpipe/avgpipe/stage/device/emulated"
	"github.com/avgpipe/avgpipe/stage/model"
	"github.com/avgpipe/avgpipe/tuner"
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
	job    *job.Job
	model  *model.Model
	sizer  *footprint.Sizer
	ranges []stage.Range
}

// newPricer prices a job that is cut as it is said, or by floating-point operations where split is nil.
func newPricer(m *model.Model, j *job.Job, stages int, split [][2]int) (*pricer, error) {
	everything, err := emulated.Open(emulated.Config{}) // nothing is allocated on it
	if err != nil {
		return nil, err
	}
	p := &pricer{job: j, model: m, sizer: footprint.New(m, j, everything, j.Devices.Kind != job.KindEmulated)}
	for _, layers := range split {
		p.ranges = append(p.ranges, stage.Range{From: layers[0], To: layers[1]})
	}
	if split == nil {
		p.ranges, err = stage.Split(m.Costs(p.sizer.Size(p.samples())), stages)
	}
	return p, err
}

// samples is how many are in a micro-batch.
func (p *pricer) samples() int { return p.job.Train.Batch / int(p.job.MicroBatches) }

// stage is what stage k takes for all pipelines, its part of the center included. Slots micro-batches are in flight, of which halves are
// between the halves of their backward, and so many versions of the weights are kept.
func (p *pricer) stage(k, slots, halves, versions int) (tuner.Memory, error) {
	return p.sizer.Stage(tuner.StageSpec{
		From: p.ranges[k].From, To: p.ranges[k].To, Samples: p.samples(), Slots: slots, WeightSlots: halves, Versions: versions,
		Recompute: job.At(p.job.Recompute, k), Pipelines: int(p.job.Pipelines),
	})
}

// stages is what each stage takes of its device's memory by a plan.
func (p *pricer) stages(plan schedule.Plan) (bytes []int64, err error) {
	all, err := p.memories(plan)
	for _, m := range all {
		bytes = append(bytes, m.OnDevice())
	}
	return bytes, err
}

// memories is what each stage takes by a plan.
func (p *pricer) memories(plan schedule.Plan) ([]tuner.Memory, error) {
	slots, halves, versions := schedule.InFlightByStage(plan), schedule.HalvesByStage(plan), schedule.VersionsByStage(plan)
	all := make([]tuner.Memory, plan.Stages())
	for k := range all {
		var err error
		if all[k], err = p.stage(k, slots[k], halves[k], versions[k]); err != nil {
			return nil, err
		}
	}
	return all, nil
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

// roomFor is, per device of a plan with a stage on each, how many micro-batches its memory holds, at most as many as the plan has in flight
// and at least as many as 1f1b does; 0 where nothing limits it.
func (p *pricer) roomFor(plan schedule.Plan, micro int) ([]int, error) {
	slots := schedule.InFlightByStage(plan)
	limits := make([]int, len(plan))
	for d := range limits {
		memory := int64(job.At(p.job.Devices.Emulated.Memory, d))
		if memory == 0 {
			continue
		}
		least := min(micro, len(plan)-d)
		for limits[d] = slots[d]; limits[d] > least; limits[d]-- {
			m, err := p.stage(d, limits[d], 0, 1)
			if err != nil {
				return nil, err
			}
			if m.OnDevice() <= memory {
				break
			}
		}
	}
	return limits, nil
}
