package spec

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/avgpipe/avgpipe/job"
	"github.com/avgpipe/avgpipe/schedule"
	"github.com/avgpipe/avgpipe/stage"
	"github.com/avgpipe/avgpipe/stage/layer"
	"github.com/avgpipe/avgpipe/stage/model"
)

// kinds of recomputation, the cheapest first.
var kinds = []string{string(stage.RecomputeNone), string(stage.RecomputeBlock), string(stage.RecomputeFull)}

// settle decides what nobody measures about a job whose counts are known: the warm-up of afp, where emulated devices have dictated
// times or a memory that is too small for more; and what is computed again, where the file leaves that open. It returns the device
// that holds its stages by no such choice; nil when all do.
func (s *Spec) settle(m *model.Model) (*shortage, error) {
	open := s.Job.RecomputeOpen()
	if s.Job.Devices.Kind != job.KindEmulated { // which alone say what they take and hold
		if open {
			s.Job.Recompute = kinds[:1:1]
		}
		return nil, nil //nolint:nilnil // Nothing is short.
	}
	if open {
		s.Job.Recompute = slices.Repeat(kinds[:1], s.Stages())
	}
	var nearest []shortage // full is not always less than block: it computes a whole stage again at once
	for {
		short, err := s.warm(m)
		if len(short) == 0 || err != nil {
			s.Job.Recompute = oneForAll(s.Job.Recompute)
			return nil, err //nolint:nilnil // Nothing is short.
		}
		if nearest == nil || lacking(short) < lacking(nearest) {
			nearest = short
		}
		if !open || !s.recomputeMore(short) {
			return &nearest[0], nil
		}
	}
}

// lacking is how many bytes are short together.
func lacking(short []shortage) (bytes int64) {
	for _, device := range short {
		bytes += device.need - device.bytes
	}
	return bytes
}

// recomputeMore has the stages of devices that are short compute more again. It reports whether any can.
func (s *Spec) recomputeMore(short []shortage) (more bool) {
	for _, device := range short {
		for _, k := range device.stages {
			if next := slices.Index(kinds, s.Job.Recompute[k]) + 1; next < len(kinds) {
				s.Job.Recompute[k], more = kinds[next], true
			}
		}
	}
	return more
}

// warm lays the job out for what it computes again. It lists the devices that are short whatever the warm-up.
func (s *Spec) warm(m *model.Model) ([]shortage, error) {
	s.Layout = nil
	p, err := newPricer(m, &s.Job, s.Stages(), nil)
	if err != nil {
		return nil, err
	}
	afp := s.UserPlan == nil && s.Job.Schedule == "afp"
	if costs := p.dictated(); costs != nil && afp {
		s.Layout = &Layout{Costs: *costs}
	}
	plan, _, err := s.Plan()
	if err != nil || !boundedMemory(&s.Job) {
		return nil, err
	}
	short, err := p.short(plan)
	if err != nil || len(short) == 0 || !afp {
		return short, err
	}
	limits, err := p.roomFor(plan, int(s.Job.MicroBatches))
	if err != nil {
		return nil, err
	}
	if s.Layout == nil {
		s.Layout = &Layout{}
	}
	s.Layout.PinnedLimit = limits
	if plan, _, err = s.Plan(); err != nil {
		return nil, err
	}
	return p.short(plan)
}

// dictated are the costs of stages whose times the job says, in seconds; nil where it leaves one to operations. A device has one of
// the stages.
func (p *pricer) dictated() *schedule.Costs {
	e, stages := p.job.Devices.Emulated, len(p.ranges)
	if stages != int(p.job.Stages) {
		return nil
	}
	c := schedule.Costs{
		Forward: make([]float64, stages), Backward: make([]float64, stages), Update: make([]float64, stages),
		Link: make([]float64, stages-1), Bandwidth: make([]float64, stages-1), MessageBytes: make([]int64, stages-1),
	}
	seconds := func(list []time.Duration, k int) float64 { return job.At(list, k).Seconds() }
	for k := range stages {
		c.Forward[k], c.Backward[k], c.Update[k] = seconds(e.Forward, k), seconds(e.Backward, k), seconds(e.Step, k)
		if c.Forward[k] == 0 {
			return nil
		}
		if c.Backward[k] == 0 {
			c.Backward[k] = 2 * c.Forward[k] // as the devices take it
		}
		if job.At(p.job.Recompute, k) != kinds[0] {
			c.Backward[k] += c.Forward[k]
		}
		if k+1 < stages {
			_, out := p.model.Layers[p.ranges[k].To-1].Ports(p.sizer.Size(p.samples()))
			c.Link[k], c.Bandwidth[k], c.MessageBytes[k] = seconds(e.Link.Latency, k), job.At(e.Link.Bandwidth, k), int64(4*layer.Words(out))
		}
	}
	return &c
}

// whyRecompute says what decided what is computed again, where the file left it open.
func (s *Spec) whyRecompute() string {
	all := s.Job.Recompute
	text := "recompute " + all[0]
	if len(all) > 1 {
		text = fmt.Sprintf("recompute [%s]", strings.Join(all, ", "))
	}
	switch {
	case len(all) > 1 || all[0] != kinds[0]:
		return text + ": the least that the memory of the devices allows"
	case boundedMemory(&s.Job) || s.Report != nil:
		return text + ": the devices hold everything"
	}
	return text + ": what the devices hold is not known before they are measured (tuning: profile)"
}

// maxMore bounds how many times as many stages, or micro-batches, are tried.
const maxMore = 8

// checkMemory refuses a job whose stages do not fit the memory that it gives its emulated devices, and says what would.
func (a *admission) checkMemory(short *shortage) {
	fits := a.whatFits(a.fitting)
	advice := "neither recompute nor smaller micro-batches nor fewer pipelines nor more stages make it fit; use a smaller model"
	near := ""
	if len(fits) > 0 {
		advice, near = strings.Join(fits, " or ")+" would fit", fits[0]
	}
	a.refuse("devices.emulated.memory", near, "%v; %s", short, advice)
}

// fitting reports whether the job fits after a change.
func (a *admission) fitting(change func(j *job.Job)) bool {
	s := a.Spec
	s.Job = *a.job
	change(&s.Job)
	short, err := s.settle(a.model)
	return err == nil && short == nil
}

// whatFits lists the nearest changes of one key after which the job's stages fit; where there is none, one of several keys.
func (a *admission) whatFits(fitting func(change func(j *job.Job)) bool) []string {
	var out []string
	first := func(values []int, key string, set func(j *job.Job, n job.Count)) {
		for _, n := range values {
			if fitting(func(j *job.Job) { set(j, job.Count(n)) }) {
				out = append(out, key+": "+strconv.Itoa(n))
				return
			}
		}
	}
	for _, kind := range kinds[1:] {
		if fitting(func(j *job.Job) { j.Recompute = []string{kind} }) {
			out = append(out, "recompute: "+kind)
			break
		}
	}
	micros, stages := a.moreMicroBatches(), a.moreStages()
	first(micros, "micro_batches", func(j *job.Job, n job.Count) { j.MicroBatches = n })
	first(fewer(int(a.job.Pipelines)), "pipelines", func(j *job.Job, n job.Count) { j.Pipelines = n })
	first(stages, "stages", func(j *job.Job, n job.Count) { j.Stages = n })
	if len(out) > 0 {
		return out
	}
	micro := append([]int{int(a.job.MicroBatches)}, micros...)
	all := func(j *job.Job, n job.Count) {
		j.Stages, j.Pipelines, j.MicroBatches, j.Recompute = n, 1, job.Count(micro[len(micro)-1]), []string{job.AutoRecompute}
	}
	first(append([]int{int(a.job.Stages)}, stages...),
		fmt.Sprintf("recompute: auto with micro_batches: %d, pipelines: 1 and stages", micro[len(micro)-1]), all)
	return out
}

// fewer are the counts below n, the nearest first.
func fewer(n int) (all []int) {
	for n--; n > 0; n-- {
		all = append(all, n)
	}
	return all
}

// moreMicroBatches are the greater divisors of the batch, the nearest first.
func (a *admission) moreMicroBatches() (all []int) {
	if a.Spec.UserPlan != nil {
		return nil // the file says how many there are
	}
	m, batch := int(a.job.MicroBatches), a.job.Train.Batch
	for n := m + 1; n <= min(batch, maxMore*m); n++ {
		if batch%n == 0 {
			all = append(all, n)
		}
	}
	return all
}

// moreStages are the greater numbers of stages that the model has layers for, the nearest first.
func (a *admission) moreStages() (all []int) {
	if a.Spec.UserPlan != nil || len(a.job.Devices.Emulated.Memory) > 1 || len(a.job.Recompute) > 1 {
		return nil // who knows what another device has
	}
	k := int(a.job.Stages)
	for n := k + 1; n <= min(len(a.model.Layers)/max(1, int(a.job.Chunks)), maxMore*k); n++ {
		all = append(all, n)
	}
	return all
}
