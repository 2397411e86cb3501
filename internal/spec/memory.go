package spec

import (
	"fmt"
	"slices"
	"strings"

	"github.com/avgpipe/avgpipe/internal/footprint"
	"github.com/avgpipe/avgpipe/internal/words"
	"github.com/avgpipe/avgpipe/job"
	"github.com/avgpipe/avgpipe/schedule"
	"github.com/avgpipe/avgpipe/stage"
	"github.com/avgpipe/avgpipe/stage/device/emulated"
	"github.com/avgpipe/avgpipe/stage/device/ref"
	"github.com/avgpipe/avgpipe/stage/model"
	"github.com/avgpipe/avgpipe/tuner"
)

// NewSizer sizes the stages of a job on a device with memory of its own, or none, as the job's have it.
func NewSizer(m *model.Model, j *job.Job) (*footprint.Sizer, error) {
	return (&Facts{Model: m}).sizer(j)
}

// sizer is NewSizer for the model at hand.
func (f *Facts) sizer(j *job.Job) (*footprint.Sizer, error) {
	if !j.Devices.OwnMemory() && f.Model.Family != model.Python { // modules have their memory apart
		return footprint.New(f.Model, j, ref.New(), ref.New()), nil
	}
	on, err := emulated.Open(emulated.Config{})
	if j.Devices.OwnMemory() {
		return footprint.New(f.Model, j, on, on), err
	}
	return footprint.New(f.Model, j, on, ref.New()), err
}

// shortText says what is short on a device.
func shortText(s *tuner.Shortage) string {
	need := " needs"
	if len(s.Stages) > 1 {
		need = " on one device need"
	}
	return fmt.Sprintf("%s %d bytes, and the memory of its device is %d: %d bytes short", stagesText(s.Stages)+need, s.Need, s.Capacity, s.Bytes())
}

// stagesText names stages for people.
func stagesText(all []int) string {
	if len(all) == 1 {
		return fmt.Sprintf("stage %d", all[0])
	}
	return "stages " + strings.Trim(strings.ReplaceAll(fmt.Sprint(all), " ", ", "), "[]")
}

// arrangement is a job of known counts with what follows from them alone.
type arrangement struct {
	job    job.Job // with recomputation decided
	layout Layout
	plan   schedule.Plan
	why    string         // the plan is as it is
	memory []tuner.Memory // by stage; nil where the devices' memory is not known
	short  []tuner.Shortage
	// crowded: its groups find too few cores on the nodes, however much memory these have; short has an entry then too.
	crowded bool
}

// bounded reports whether the memory of the job's devices is known: that of the host, or of devices with memory of their own what the job says.
func (f *Facts) bounded(j *job.Job) bool {
	bytes, _ := Memories(j, stages(j))
	return slices.Max(bytes) > 0 || j.Devices.KeepValues() && f.hostBytes() > 0
}

// arrange decides what needs no measurement: which layers each stage has; which stages recompute their activations, where the file says
// recompute: auto; and the warm-up of afp, where the devices are emulated and have fixed times, or too little memory for a longer one.
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
	var least []tuner.Shortage // full does not always need less than block: it holds the activations of a whole stage at once
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
		if !open || !j.Devices.OwnMemory() || !a.recomputeMore() {
			a.short = least
			return a, nil
		}
	}
}

// cut gives every stage its layers, by floating-point operations.
func (f *Facts) cut(j *job.Job) (split [][2]int, err error) {
	ranges, err := stage.Split(f.Model.Costs(footprint.Size(f.Model, j, samples(j))), stages(j))
	for _, r := range ranges {
		split = append(split, [2]int{r.From, r.To})
	}
	return split, err
}

// samples of a micro-batch.
func samples(j *job.Job) int { return j.Train.Batch / int(j.MicroBatches) }

// lacking is how many bytes are short together.
func lacking(short []tuner.Shortage) (bytes int64) {
	for _, s := range short {
		bytes += s.Bytes()
	}
	return bytes
}

// recomputeMore has the stages of devices that lack memory recompute more. It reports whether any can.
func (a *arrangement) recomputeMore() (more bool) {
	for _, s := range a.short {
		for _, k := range s.Stages {
			if next := slices.Index(RecomputeKinds, a.job.Recompute[k]) + 1; next < len(RecomputeKinds) {
				a.job.Recompute[k], more = RecomputeKinds[next], true
			}
		}
	}
	return more
}

// warm generates the plan for the recomputation at hand and finds what memory is short, with the warm-up of afp shortened where that helps.
func (f *Facts) warm(a *arrangement, p *footprint.Sizer) (err error) {
	a.layout = Layout{Split: a.layout.Split}
	afp := f.UserPlan == nil && a.job.Schedule == "afp"
	if afp && a.job.Devices.Kind == job.KindEmulated {
		a.layout.Costs = f.fixedCosts(a)
	}
	if err = f.price(a, p); err != nil || len(a.short) == 0 || !afp || a.short[0].Device < 0 {
		return err
	}
	j := &a.job
	_, in := Memories(j, len(a.plan))
	a.layout.InFlightLimit, err = tuner.InFlightLimits(p, a.plan, in, a.layout.Split, samples(j), j.Shared(), j.Recompute, rowMemory(j, len(a.plan)))
	if err != nil {
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
	_, in := Memories(&a.job, len(a.plan))
	a.memory, err = tuner.Memories(p, a.plan, in, a.layout.Split, samples(&a.job), a.job.Shared(), a.job.Recompute)
	if err != nil {
		return err
	}
	host := f.hostBytes()
	if !a.job.Devices.KeepValues() || f.spreads() {
		host = 0
	}
	devices, homes := a.homes()
	a.short = tuner.Shortages(a.memory, homes, devices, host)
	if a.job.Devices.OwnMemory() && a.job.Devices.InHost() { // all of it is there, whatever the devices may hold
		a.short = append(tuner.Shortages(a.memory, homes, devices, 0), tuner.Shortages(a.memory, homes, make([]int64, len(devices)), host)...)
	}
	if f.spreads() && a.job.Devices.KeepValues() {
		if short := f.unplaced(a, inHost(&a.job, a.memory)); short != nil {
			a.short = append(a.short, *short)
		}
	}
	return nil
}

// homes are the memories of the devices, and of each stage, in which it is.
func (a *arrangement) homes() (devices []int64, homes []int) {
	devices, of := Memories(&a.job, len(a.plan))
	for _, row := range a.plan.Placement() {
		homes = append(homes, of[row])
	}
	return devices, homes
}

// whyMemory says what the job takes of the memory of its GPUs and of the host's, as predicted.
func (a *arrangement) whyMemory() string {
	devices, homes := a.homes()
	on, in, host := make([]int64, len(devices)), make([][]int, len(devices)), int64(0)
	for s, m := range a.memory {
		at := homes[s]
		on[at], in[at], host = on[at]+m.OnDevice(), append(in[at], s), host+m.Total()-m.OnDevice()
	}
	var text strings.Builder
	text.WriteString("memory, as predicted:")
	for d := range devices {
		all := int64(a.job.Devices.GPU.Memory)
		fmt.Fprintf(&text, " GPU %d %s of %s, with %s;", d, words.Bytes(on[d]+all-devices[d]), words.Bytes(all), stagesText(in[d]))
	}
	return text.String() + " the host " + words.Bytes(host)
}

// Fixed are the times that a job gives to stages of emulated devices, the last entry standing for all further stages; none where
// operations say what they take.
func Fixed(j *job.Job) (all []tuner.FixedCosts) {
	e := j.Devices.Emulated
	if j.Devices.Kind != job.KindEmulated || job.At(e.Forward, 0) == 0 {
		return nil
	}
	for k := range max(len(e.Forward), len(e.Backward), len(e.Step)) {
		t := tuner.FixedCosts{Forward: job.At(e.Forward, k).Seconds(), Backward: job.At(e.Backward, k).Seconds(), Update: job.At(e.Step, k).Seconds()}
		if t.Backward == 0 {
			t.Backward = 2 * t.Forward // as the devices take it
		}
		all = append(all, t)
	}
	return all
}

// fixedCosts are the costs of stages whose times the job says, in seconds; none where it leaves one to operations. A device has one of
// the stages.
func (f *Facts) fixedCosts(a *arrangement) (c schedule.Costs) {
	fixed, link, n := Fixed(&a.job), a.job.Devices.Emulated.Link, len(a.layout.Split)
	for k := range n {
		t := job.At(fixed, k)
		if t.Forward == 0 || n != int(a.job.Stages) {
			return schedule.Costs{}
		}
		if job.At(a.job.Recompute, k) != RecomputeKinds[0] {
			t.Backward += t.Forward
		}
		c.Forward, c.Backward, c.Update = append(c.Forward, t.Forward), append(c.Backward, t.Backward), append(c.Update, t.Update)
		if k+1 < n {
			last, size := f.Model.Layers[a.layout.Split[k][1]-1], footprint.Size(f.Model, &a.job, samples(&a.job))
			c.Link = append(c.Link, job.At(link.Latency, k).Seconds())
			c.Bandwidth = append(c.Bandwidth, job.At(link.Bandwidth, k))
			c.MessageBytes = append(c.MessageBytes, int64(footprint.OutputBytes(last, &a.job, size)))
		}
	}
	return c
}
