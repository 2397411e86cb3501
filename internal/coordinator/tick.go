package coordinator

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/avgpipe/avgpipe/internal/cluster"
	"github.com/avgpipe/avgpipe/internal/gpu"
	"github.com/avgpipe/avgpipe/internal/spec"
	"github.com/avgpipe/avgpipe/job"
)

// tick decides, begins to act and publishes. It reports whether no process of a job lives and no act runs.
func (c *Coordinator) tick(state *cluster.State, stopping bool) (idle bool) {
	s := c.snapshot(state, stopping)
	free := c.free(s)
	for i, d := range decide(s) {
		o := s.jobs[i]
		if o.acting || s.now.Before(o.notBefore) {
			continue
		}
		o.note, o.notBefore = d.reason, time.Time{}
		if d.choice != wait {
			free = c.begin(o, d, free)
		}
	}
	c.publish(len(c.free(s)[c.here.Name].cores))
	for _, o := range c.jobs {
		if o.acting || o.tunes() || o.lives() {
			return false
		}
	}
	return true
}

// snapshot is what there is to decide about.
func (c *Coordinator) snapshot(state *cluster.State, stopping bool) snapshot {
	s := snapshot{
		now: time.Now(), reserved: len(c.reserved.cores(c.here.Name)), stopping: stopping, limits: c.config.Limits(),
	}
	for _, n := range c.config.Nodes {
		s.cores, s.memory = s.cores+len(n.Cores), s.memory+n.MemoryBytes
	}
	all := c.all()
	s.gpus = c.here.gpus()
	passed := min(s.now.Sub(c.ticked), longestTick)
	c.ticked = s.now
	c.forget(state)
	for _, j := range state.Jobs() {
		o := c.job(j.ID)
		if j.State.Ended() && !o.lives() && !o.tunes() && !o.acting && o.remove == "" {
			continue // most jobs, after a while
		}
		if !j.State.Ended() {
			o.remove = "" // it was resumed
		}
		admitted, err := c.Spec(j)
		if err != nil {
			o.note = err.Error()
			if o.remove == "" {
				continue
			}
			admitted = &spec.Spec{} // enough to remove it
		}
		if asked := stopping || j.Cancelling || c.excluded(j) != ""; !asked {
			o.stopSince = time.Time{}
		} else if o.stopSince.IsZero() {
			o.stopSince = s.now
		}
		if o.tunes() {
			o.tuning.silent += passed
		}
		o.Job, o.spec, o.cores, o.memory, o.exported = j, admitted, admitted.Cores(len(c.here.Cores)), admitted.HostBytes(), c.pins.holds(j)
		c.takeGPUs(o, all)
		s.jobs = append(s.jobs, o)
	}
	free := c.free(s)
	s.freeGPUs = len(free[c.here.Name].gpus)
	for _, o := range s.jobs {
		o.small = s.freeGPUs - len(c.fitting(o, free)[c.here.Name].gpus)
	}
	return s
}

// takeGPUs notes which GPUs a job takes, and how those are that it has.
func (c *Coordinator) takeGPUs(o *observed, all map[string]resources) {
	o.gpus, o.had, o.kept, o.sick, o.excluded = o.spec.GPUs(), nil, 0, "", ""
	all = c.fitting(o, all)
	o.short = o.gpus > len(all[c.here.Name].gpus)
	switch {
	case placed(o.Job):
		p := placementOf(o.Job)
		o.had, o.sick = p.gpus(c.here.Name), c.sick(p)
		o.excluded = c.excluded(o.Job)
		o.kept = len(with(nil, all, p)[c.here.Name].gpus)
	case o.tunes():
		o.sick = c.sick(o.tuning.place)
	}
}

// fitting are resources but for the GPUs that have less memory than a job may take of each: the host may have got others since it was admitted.
func (c *Coordinator) fitting(o *observed, r map[string]resources) map[string]resources {
	if o.gpus == 0 {
		return r
	}
	fit := maps.Clone(r)
	for _, n := range c.config.Nodes {
		one := fit[n.Name]
		one.gpus = nil
		for _, g := range n.usable() {
			if slices.Contains(r[n.Name].gpus, g.UUID) && g.MemoryBytes >= int64(o.spec.Job.Devices.GPU.Memory) {
				one.gpus = append(one.gpus, g.UUID)
			}
		}
		fit[n.Name] = one
	}
	return fit
}

// sick says why one of the GPUs of a placement must not be used any more; "" where none is sick.
func (c *Coordinator) sick(p placement) string {
	for _, n := range c.config.Nodes {
		for _, g := range n.gpus() {
			if g.Health.Level == gpu.Sick && slices.Contains(p.gpus(n.Name), g.UUID) {
				return fmt.Sprintf("%s is %s", g, g.Health)
			}
		}
	}
	return ""
}

// excluded says that somebody has taken one of the GPUs of a job from jobs; "" where nobody has.
func (c *Coordinator) excluded(j *cluster.Job) string {
	if !placed(j) {
		return ""
	}
	p := placementOf(j)
	for _, n := range c.config.Nodes {
		for _, uuid := range p.gpus(n.Name) {
			if n.Excludes != nil && n.Excludes(uuid) {
				return fmt.Sprintf("jobs may not use GPU %s any more, by gpus of the configuration or CUDA_VISIBLE_DEVICES", uuid)
			}
		}
	}
	return ""
}

// forget drops what was observed of jobs that were removed.
func (c *Coordinator) forget(state *cluster.State) {
	for id, o := range c.jobs {
		if _, err := state.Job(id); err != nil && !o.acting {
			delete(c.jobs, id)
			c.specs.Forget(id)
		}
	}
}

// begin starts to carry a choice out. It returns the resources that are free after it.
func (c *Coordinator) begin(o *observed, d decision, free map[string]resources) map[string]resources {
	o.acting, o.choice = true, d.choice
	a := act{Coordinator: c, observed: *o, decision: d}
	a.workers = make([]*worker, len(o.workers))
	for i, w := range o.workers {
		own := *w
		a.workers[i] = &own
	}
	switch d.choice { // what is known of processes is noted now: their end may be seen before that of the act
	case place:
		a.taking = c.choosePlaces(o, free)
		o.taking, free = a.taking, without(free, a.taking)
	case tune:
		if here := c.fitting(o, free)[c.here.Name]; o.cores <= len(here.cores) && o.gpus <= len(here.gpus) {
			a.taking = tuningPlace(c.here.Name, here, o.cores, o.gpus)
		}
		o.taking, free = a.taking, without(free, a.taking)
	case commitRound:
		a.durable = o.shards[d.round]
	case killTune:
		o.tuning.killed = d.reason
	case killWorkers:
		o.killed = d.reason
	case abortWorkers:
		o.abort(time.Now())
	case wait, beginCommit, postCommit, dropCommit, setRunning, endJob, removeJob, resolve, probe, awaitGPUs:
	}
	c.start(o.ID, true, func(ctx context.Context) (func(*observed), error) { return acts[d.choice](&a, ctx) })
	return free
}

// placed reports whether a job has a place.
func placed(j *cluster.Job) bool { return j.State == cluster.Starting || j.State == cluster.Running }

// choosePlaces says where a job goes. One that comes back keeps its cores and GPUs, of which those that are sick are replaced; after it has
// waited without them, it gets them again if they are free.
func (c *Coordinator) choosePlaces(o *observed, free map[string]resources) placement {
	all := c.fitting(o, c.all())
	free = c.fitting(o, free)
	from := free
	if o.hold == nil {
		from = all
	}
	if placed(o.Job) {
		own := placementOf(o.Job)
		if own.within(from) {
			return own
		}
		if o.hold == nil {
			free = with(free, all, own)
		}
	}
	d := o.spec.Job.Devices
	return placeStages(o.spec.Placement(), int(d.CPU.Threads), job.GPU{Count: job.Count(o.spec.GPUs())}, c.config.Nodes, free)
}

// all are the cores of each node, and its GPUs that are not sick.
func (c *Coordinator) all() map[string]resources {
	all := map[string]resources{}
	for _, n := range c.config.Nodes {
		r := resources{cores: n.Cores}
		for _, g := range n.usable() {
			r.gpus = append(r.gpus, g.UUID)
		}
		all[n.Name] = r
	}
	return all
}

// free lists what each node has that no placed job, no living process and no tuning has.
func (c *Coordinator) free(s snapshot) map[string]resources {
	free := without(c.all(), c.reserved)
	for _, o := range s.jobs {
		free = without(free, o.taking)
		if o.tunes() {
			free = without(free, o.tuning.place)
		}
		if o.lives() || placed(o.Job) && !o.waits() {
			free = without(free, placementOf(o.Job))
		}
	}
	return free
}
