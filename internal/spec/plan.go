package spec

import (
	"strconv"

	"github.com/avgpipe/avgpipe/job"
	"github.com/avgpipe/avgpipe/schedule"
)

const (
	// maxPlan bounds stages times micro-batches: a plan is generated at every placement and sent to the worker as text, and this
	// one takes 16 MB.
	maxPlan = 1 << 20
	// maxPlanFileBytes bounds a plan that a user wrote: the replicated log keeps it. 64 stages of 512 micro-batches fit.
	maxPlanFileBytes = 1 << 19
)

// checkLayout finds how many stages lie on each device, and reads the plan if it is the user's own. It reports whether the counts
// can be resolved.
func (a *admission) checkLayout() bool {
	if a.job.Schedule == job.AutoSchedule && !a.job.Open() {
		a.job.Schedule = job.Default().Schedule
	}
	switch path := a.job.PlanFile(); {
	case path != "":
		if !a.readPlan(path) {
			return false
		}
	case a.job.Schedule != job.AutoSchedule:
		chunks, err := schedule.Chunks(a.job.Schedule, int(a.job.Chunks))
		if err != nil {
			usual, _ := schedule.Chunks(a.job.Schedule, 0) // the name is known
			a.refuse("chunks", strconv.Itoa(usual), "chunks: %v", err)
			return false
		}
		a.job.Chunks = job.Count(chunks)
	}
	layers, stages, chunks := len(a.model.Layers), int(a.job.Stages), max(1, int(a.job.Chunks))
	most := layers / chunks
	switch {
	case most == 0:
		a.refuse("chunks", strconv.Itoa(layers), "%d chunks for a model of %d layers; every chunk needs a layer, so at most %d fit, on one device", chunks, layers, layers)
	case stages > most && chunks == 1:
		a.refuse("stages", strconv.Itoa(most), "%d stages for a model of %d layers; every stage needs a layer, so at most %d fit", stages, layers, most)
	case stages > most:
		a.refuse("stages", strconv.Itoa(most), "%d stages of %d chunks for a model of %d layers; every chunk needs a layer, so at most %d fit, or %d without chunks",
			stages, chunks, layers, most, layers)
	default:
		return true
	}
	return false
}

// readPlan reads the plan that the user wrote, proves it, and takes the counts from it.
func (a *admission) readPlan(path string) bool {
	text, err := a.access.ReadFile(path, maxPlanFileBytes)
	if err != nil {
		a.refuse("schedule", "", "schedule: %v", err)
		return false
	}
	plan, err := schedule.Prove(string(text))
	if err != nil {
		a.refuse("schedule", "", "%s: %v", path, err)
		return false
	}
	agrees := true
	for _, c := range []struct {
		key   string
		count *job.Count
		found int
	}{
		{"stages", &a.job.Stages, len(plan)},
		{"chunks", &a.job.Chunks, plan.Stages() / len(plan)},
		{"micro_batches", &a.job.MicroBatches, plan.MicroBatches()},
	} {
		if *c.count != job.Auto && int(*c.count) != c.found {
			a.refuse(c.key, strconv.Itoa(c.found), "%s is %d, and the plan in %s has %d; leave the key out, or write that", c.key, *c.count, path, c.found)
			agrees = false
		}
		*c.count = job.Count(c.found)
	}
	if below, above := job.NearestDivisors(a.job.Train.Batch, plan.MicroBatches()); agrees && below != above {
		a.refuse("train.batch", strconv.Itoa(plan.MicroBatches()*max(1, a.job.Train.Batch/plan.MicroBatches())),
			"train.batch is %d, and the %d micro-batches of the plan in %s do not divide it", a.job.Train.Batch, plan.MicroBatches(), path)
		agrees = false
	}
	a.Spec.UserPlan = plan
	return agrees
}

// checkPlan generates and proves the plan, and warns of the bubble that few micro-batches cost.
func (a *admission) checkPlan(c job.Counts) {
	chunks := max(1, int(a.job.Chunks))
	if most := maxPlan / (c.Stages * chunks); c.MicroBatches > most {
		below, _ := job.NearestDivisors(a.job.Train.Batch, most)
		a.refuse("micro_batches", strconv.Itoa(below), "micro_batches is %d; with %d stages at most %d", c.MicroBatches, c.Stages*chunks, most)
		return
	}
	if key, problem := a.job.CheckEntries(c.Stages*chunks, c.Devices); key != "" {
		a.refuse(key, "", "%s", problem)
		return
	}
	if !a.job.Open() && !a.settle() {
		return
	}
	a.Spec.Job = *a.job
	plan, why, err := a.Spec.Plan()
	if err == nil {
		err = schedule.Check(plan, c.MicroBatches, schedule.Limits{})
	}
	if err != nil {
		a.refuse("schedule", "", "%v", err)
		return
	}
	if !a.job.Open() { // else the costs that will be measured shape it
		a.Spec.Why = append(a.Spec.Why, "schedule "+a.job.Schedule+": "+why)
	}
	if plan.Updates() > 0 {
		a.checkUpdates(plan)
	}
	a.checkHost(plan)
	if c.MicroBatches >= c.Stages {
		return
	}
	// A backward costs about twice a forward: two matrix products for each one.
	timed, err := schedule.Simulate(plan, schedule.Uniform(plan.Stages(), 1, 2, 0))
	if err != nil {
		a.refuse("schedule", "", "%v", err)
		return
	}
	a.warn("micro_batches is %d, fewer than the %d stages: %.0f%% of a pipeline's time is bubble; other pipelines fill a part of it",
		c.MicroBatches, c.Stages, 100*timed.Bubble)
}

// settle decides what nobody measures, and reports whether there is a plan.
func (a *admission) settle() bool {
	open := a.job.RecomputeOpen()
	s := a.Spec
	s.Job = *a.job
	short, err := s.settle(a.model)
	switch {
	case err != nil:
		a.refuse("schedule", "", "%v", err)
		return false
	case short != nil:
		a.checkMemory(short)
		return false
	}
	a.job.Recompute, a.Spec.Layout = s.Job.Recompute, s.Layout
	if open {
		a.Spec.Why = append(a.Spec.Why, s.whyRecompute())
	}
	return true
}

// checkUpdates refuses what needs all stages to wait for each other at every optimizer step, which those inside of a batch do not.
func (a *admission) checkUpdates(plan schedule.Plan) {
	if clip := a.job.Optimizer.ClipNorm; clip > 0 {
		a.refuse("optimizer.clip_norm", "0", "optimizer.clip_norm is %v, and the schedule %s steps the optimizer inside of a batch, where no stage waits for the gradients "+
			"of the others; use 0, or a schedule that steps after the batch, such as afp", clip, a.job.Schedule)
	}
	for _, p := range a.model.Params() {
		if p.TiedTo != "" && plan.Stages() > 1 {
			a.refuse("schedule", "afp", "the schedule %s steps the optimizer inside of a batch, where no stage waits for the gradients of the others, "+
				"but %s is tied to %s; untie them in model.config, or use a schedule that steps after the batch, such as afp", a.job.Schedule, p.Name, p.TiedTo)
			return
		}
	}
}
