package spec

import (
	"fmt"
	"slices"
	"strings"

	"github.com/avgpipe/avgpipe/internal/footprint"
	"github.com/avgpipe/avgpipe/job"
	"github.com/avgpipe/avgpipe/schedule"
	"github.com/avgpipe/avgpipe/stage"
	"github.com/avgpipe/avgpipe/stage/device"
	"github.com/avgpipe/avgpipe/stage/device/emulated"
	"github.com/avgpipe/avgpipe/stage/layer"
	"github.com/avgpipe/avgpipe/stage/model"
	"github.com/avgpipe/avgpipe/tuner"
)

// sizer sizes stages on a device that holds as much as is asked for.
func (f *Facts) sizer(j *job.Job) (*footprint.Sizer, error) {
	on, err := emulated.Open(emulated.Config{})
	return footprint.New(f.Model, j, on, j.Devices.Kind != job.KindEmulated), err
}

// compute is the type in which products take their operands.
func compute(j *job.Job) device.Type {
	if j.Precision == device.BF16.String() {
		return device.BF16
	}
	return device.F32
}

// shortage is a device whose stages do not fit, or the host.
type shortage struct {
	stages      []int // of the device; none: of the host
	need, bytes int64
}

func (s *shortage) Error() string {
	stages := fmt.Sprintf("stages %s on one device need", strings.Trim(strings.ReplaceAll(fmt.Sprint(s.stages), " ", ", "), "[]"))
	if len(s.stages) == 1 {
		stages = fmt.Sprintf("stage %d needs", s.stages[0])
	}
	return fmt.Sprintf("%s %d bytes, and the memory of its device is %d: %d bytes short", stages, s.need, s.bytes, s.need-s.bytes)
}

// arrangement is a job of known counts with what follows from them alone.
type arrangement struct {
	job    job.Job // with what is computed again decided
	layout Layout
	plan   schedule.Plan
	why    string         // the plan is that one
	memory []tuner.Memory // by stage; nil where nobody says what there is
	short  []shortage
}

// bounded reports whether it is known what the job's devices hold: of emulated ones, if the job says, else of the host's memory.
func (f *Facts) bounded(j *job.Job) bool {
	if j.Devices.Kind != job.KindEmulated { // which hold no values
		return f.MemoryBytes > 0
	}
	return slices.ContainsFunc(j.Devices.Emulated.Memory, func(b float64) bool { return b > 0 })
}

// arrange decides what nobody measures about a job: the cut; what is computed again, where the file leaves that open; and the warm-up
// of afp, where emulated devices have fixed times or a memory that is too small for more.
func (f *Facts) arrange(j *job.Job) (*arrangement, error) {
	a := &arrangement{job: *j}
	open := j.RecomputeOpen()
	if open {
		a.job.Recompute = slices.Repeat(RecomputeKinds[:1], stages(j))
	}
	p, err := f.sizer(&a.job)
	if err != nil {
		return nil, err
	}
	if a.layout.Split, err = f.cut(j); err != nil {
		return nil, err
	}
	var least []shortage // full is not always less than block: it computes a whole stage again at once
	for {
		if err := f.warm(a, p); err != nil {
			return nil, err
		}
		if len(a.short) == 0 {
			a.job.Recompute = oneForAll(a.job.Recompute)
			return a, nil
		}
		if least == nil || lacking(a.short) < lacking(least) {
			least = a.short
		}
		if !open || j.Devices.Kind != job.KindEmulated || !a.recomputeMore() {
			a.short = least
			return a, nil
		}
	}
}

// cut gives every stage its layers, by floating-point operations.
func (f *Facts) cut(j *job.Job) (split [][2]int, err error) {
	ranges, err := stage.Split(f.Model.Costs(microBatch(j, f.Model)), stages(j))
	for _, r := range ranges {
		split = append(split, [2]int{r.From, r.To})
	}
	return split, err
}

// microBatch is the size of one.
func microBatch(j *job.Job, m *model.Model) layer.Size {
	return layer.Size{B: j.Train.Batch / int(j.MicroBatches), T: footprint.Sequence(m, j), Compute: compute(j)}
}

// lacking is how many bytes are short together.
func lacking(short []shortage) (bytes int64) {
	for _, s := range short {
		bytes += s.need - s.bytes
	}
	return bytes
}

// recomputeMore has the stages of devices that are short compute more again. It reports whether any can.
func (a *arrangement) recomputeMore() (more bool) {
	for _, s := range a.short {
		for _, k := range s.stages {
			if next := slices.Index(RecomputeKinds, a.job.Recompute[k]) + 1; next < len(RecomputeKinds) {
				a.job.Recompute[k], more = RecomputeKinds[next], true
			}
		}
	}
	return more
}

// warm generates the plan for what is computed again, and finds what is short whatever the warm-up.
func (f *Facts) warm(a *arrangement, p *footprint.Sizer) (err error) {
	a.layout = Layout{Split: a.layout.Split}
	afp := f.UserPlan == nil && a.job.Schedule == "afp"
	if afp && a.job.Devices.Kind == job.KindEmulated {
		a.layout.Costs = f.fixedCosts(a)
	}
	if err = f.price(a, p); err != nil || len(a.short) == 0 || !afp || a.short[0].stages == nil {
		return err
	}
	if a.layout.InFlightLimit, err = a.inFlight(p); err != nil {
		return err
	}
	return f.price(a, p)
}

// price generates the plan, prices its stages, and finds what is short.
func (f *Facts) price(a *arrangement, p *footprint.Sizer) (err error) {
	a.plan, a.why, a.short = f.UserPlan, userPlan, nil
	if f.UserPlan == nil {
		if a.plan, a.why, err = generate(&a.job, &a.layout); err != nil {
			return err
		}
	}
	if !f.bounded(&a.job) {
		return nil
	}
	a.memory, err = tuner.Memories(p, a.plan, a.layout.Split, a.job.Train.Batch/int(a.job.MicroBatches), int(a.job.Pipelines), a.job.Recompute)
	if err != nil {
		return err
	}
	a.short = f.lacks(a)
	return nil
}

// lacks lists what is short.
func (f *Facts) lacks(a *arrangement) []shortage {
	on := []shortage{{bytes: f.MemoryBytes}}
	place := make([]int, len(a.memory))
	if a.job.Devices.Kind == job.KindEmulated {
		on, place = make([]shortage, len(a.plan)), a.plan.Placement()
		for d := range on {
			on[d].bytes = int64(job.At(a.job.Devices.Emulated.Memory, d))
		}
	}
	for k, d := range place {
		if a.job.Devices.Kind == job.KindEmulated {
			on[d].need, on[d].stages = on[d].need+a.memory[k].OnDevice(), append(on[d].stages, k)
		} else {
			on[d].need += a.memory[k].Total()
		}
	}
	return slices.DeleteFunc(on, func(s shortage) bool { return s.bytes == 0 || s.need <= s.bytes })
}

// inFlight is, per device of a plan with a stage on each, how many micro-batches its memory holds, at most as many as the plan has in
// flight and at least as many as 1f1b does; 0 where nothing limits it.
func (a *arrangement) inFlight(p *footprint.Sizer) ([]int, error) {
	slots, micros, limits := schedule.InFlightByStage(a.plan), int(a.job.MicroBatches), make([]int, len(a.plan))
	for d := range limits {
		memory := int64(job.At(a.job.Devices.Emulated.Memory, d))
		if memory == 0 {
			continue
		}
		least := min(micros, len(a.plan)-d)
		for limits[d] = slots[d]; limits[d] > least; limits[d]-- {
			m, err := p.Stage(tuner.StageSpec{
				From: a.layout.Split[d][0], To: a.layout.Split[d][1], Samples: a.job.Train.Batch / micros, Slots: limits[d], Versions: 1,
				Recompute: job.At(a.job.Recompute, d), Pipelines: int(a.job.Pipelines),
			})
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

// fixedCosts are the costs of stages whose times the job says, in seconds; none where it leaves one to operations. A device has one of
// the stages.
func (f *Facts) fixedCosts(a *arrangement) (c schedule.Costs) {
	e, n := a.job.Devices.Emulated, len(a.layout.Split)
	for k := range n {
		forward, backward := job.At(e.Forward, k).Seconds(), job.At(e.Backward, k).Seconds()
		if forward == 0 || n != int(a.job.Stages) {
			return schedule.Costs{}
		}
		if backward == 0 {
			backward = 2 * forward // as the devices take it
		}
		if job.At(a.job.Recompute, k) != RecomputeKinds[0] {
			backward += forward
		}
		c.Forward, c.Backward = append(c.Forward, forward), append(c.Backward, backward)
		c.Update = append(c.Update, job.At(e.Step, k).Seconds())
		if k+1 < n {
			_, out := f.Model.Layers[a.layout.Split[k][1]-1].Ports(microBatch(&a.job, f.Model))
			c.Link = append(c.Link, job.At(e.Link.Latency, k).Seconds())
			c.Bandwidth = append(c.Bandwidth, job.At(e.Link.Bandwidth, k))
			c.MessageBytes = append(c.MessageBytes, int64(4*layer.Words(out)))
		}
	}
	return c
}
