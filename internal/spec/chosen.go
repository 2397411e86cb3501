package spec

import (
	"fmt"
	"slices"

	"github.com/avgpipe/avgpipe/job"
	"github.com/avgpipe/avgpipe/schedule"
	"github.com/avgpipe/avgpipe/tuner"
)

// take resolves the job to what a tuning chose. A choice may come from a cache, and whoever filled that may count otherwise.
func (x *resolver) take(c *tuner.Candidate) {
	if err := agrees(&x.Job, c); err != nil {
		x.refuse("tuning", "", "%v", err)
		return
	}
	given, open := int(x.Job.Offered()), x.Job.RecomputeOpen()
	x.Job = With(&x.Job, c)
	layers := c.Devices
	if n := len(c.Split); n > 0 {
		layers = max(layers, c.Split[n-1][1])
	}
	x.count(x.Cores, layers, max(given, c.Devices))
	x.because(fmt.Sprintf("stages %d, pipelines %d, micro-batches %d: %s", c.Devices, c.Pipelines, c.MicroBatches, tunedBy(x.report)))
	a := &arrangement{job: x.Job, layout: Layout{Costs: c.Costs, InFlightLimit: c.InFlightLimit, Split: c.Split}}
	if err := x.hold(a); err != nil {
		x.refuse("tuning", "", "the plan that tuning chose: %v", err)
		return
	}
	x.adopt(a, open)
	x.decideBudget()
}

// hold proves what was chosen, and checks that lists fit it and that the devices hold it.
func (x *resolver) hold(a *arrangement) error {
	p, err := x.sizer(&a.job)
	if err == nil {
		err = x.price(a, p)
	}
	if err == nil {
		err = schedule.Check(a.plan, int(a.job.MicroBatches))
	}
	if err != nil {
		return err
	}
	if key, problem := a.job.CheckEntries(a.plan.Stages(), int(a.job.Devices.CPU.Count)); key != "" {
		return fmt.Errorf("%s", problem)
	}
	if len(a.short) > 0 {
		return fmt.Errorf("%s; submit it again with --retune", shortText(&a.short[0]))
	}
	return nil
}

// With is a job with the counts of a candidate, to run it or to make them the job's.
func With(j *job.Job, c *tuner.Candidate) job.Job {
	out := *j
	out.Stages, out.Pipelines, out.MicroBatches = job.Count(c.Devices), job.Count(c.Pipelines), job.Count(c.MicroBatches)
	out.Schedule, out.Chunks = c.Schedule, job.Count(max(1, c.Chunks))
	if len(c.Recompute) > 0 {
		out.Recompute = oneForAll(c.Recompute)
	} else if out.RecomputeOpen() {
		out.Recompute = RecomputeKinds[:1:1]
	}
	out.Devices.CPU.Count, out.Devices.GPU.Count = max(out.Devices.CPU.Count, out.Stages), min(out.Devices.GPU.Count, out.Stages)
	if c.Threads > 0 {
		out.Devices.CPU.Threads = job.Count(c.Threads)
	}
	return out
}

// agrees checks that a choice keeps to what the job's file gives.
func agrees(j *job.Job, c *tuner.Candidate) error {
	for _, k := range []struct {
		key           string
		given, chosen int
	}{
		{"stages", int(j.Stages), c.Devices}, {"chunks", int(j.Chunks), max(1, c.Chunks)}, {"pipelines", int(j.Pipelines), c.Pipelines}, {"micro_batches", int(j.MicroBatches), c.MicroBatches},
	} {
		if k.chosen < 1 || k.given > 0 && k.given != k.chosen {
			return fmt.Errorf("tuning chose %s %d, the job file says %d", k.key, k.chosen, k.given)
		}
	}
	if j.Schedule != job.AutoSchedule && j.Schedule != c.Schedule {
		return fmt.Errorf("tuning chose the schedule %s, the job file says %s", c.Schedule, j.Schedule)
	}
	return nil
}

// oneForAll is a list, or its one word when all are the same.
func oneForAll(words []string) []string {
	if len(slices.Compact(slices.Clone(words))) == 1 {
		return words[:1:1]
	}
	return slices.Clone(words)
}

// tunedBy says what a choice rests on.
func tunedBy(r *tuner.Report) string {
	text := fmt.Sprintf("the fastest of %d candidates, by a profile", r.Considered)
	if m := r.Chosen.Measured; m != nil {
		text = fmt.Sprintf("the fastest of %d candidates, %.4g samples/s in a short run", r.Considered, m.SamplesPerSecond)
	}
	if r.Cached {
		text += " of an earlier tuning"
	}
	return text
}

// cutHint says how a user's modules become more.
func (x *resolver) cutHint() string {
	if x.Job.Model.Python == "" {
		return ""
	}
	return "; model.cut says where one module is cut"
}
