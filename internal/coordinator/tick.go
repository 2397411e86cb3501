package coordinator

import (
	"context"
	"slices"
	"time"

	"github.com/avgpipe/avgpipe/internal/cluster"
	"github.com/avgpipe/avgpipe/internal/spec"
)

// tick decides, begins to act and publishes. It reports whether no process of a job lives and no act runs.
func (c *Coordinator) tick(state *cluster.State, stopping bool) (idle bool) {
	s := c.snapshot(state, stopping)
	free := c.freeCores(s)
	for i, d := range decide(s) {
		o := s.jobs[i]
		if o.acting || s.now.Before(o.notBefore) {
			continue
		}
		o.note = d.reason
		if d.choice != wait {
			free = c.begin(o, d, free)
		}
	}
	c.publish(c.freeCores(s))
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
		now: time.Now(), cores: len(c.config.Cores), memory: c.config.MemoryBytes, reserved: len(c.reserved), stopping: stopping, limits: c.config.Limits(),
	}
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
		if asked := stopping || j.Cancelling; !asked {
			o.stopSince = time.Time{}
		} else if o.stopSince.IsZero() {
			o.stopSince = s.now
		}
		if o.tunes() {
			o.tuning.silent += passed
		}
		o.Job, o.spec, o.cores, o.memory, o.exported = j, admitted, admitted.Cores(s.cores), admitted.HostBytes(), c.pins.holds(j)
		s.jobs = append(s.jobs, o)
	}
	return s
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

// begin starts to carry a choice out. It returns the cores that are free after it.
func (c *Coordinator) begin(o *observed, d decision, free []int) []int {
	o.acting, o.choice = true, d.choice
	a := act{Coordinator: c, observed: *o, decision: d}
	switch d.choice { // what is known of a process is noted now: its end may be seen before that of the act
	case place, tune:
		switch own := c.coresOf(o.Job); {
		case len(own) == o.cores && o.hold == nil: // a job that comes back keeps its cores
			a.taking = own
		case len(own) == o.cores && subset(own, free): // or gets them again
			a.taking, free = own, slices.DeleteFunc(slices.Clone(free), func(core int) bool { return slices.Contains(own, core) })
		case o.cores <= len(free):
			a.taking, free = free[:o.cores:o.cores], free[o.cores:]
		}
		o.taking = a.taking
	case commitRound:
		a.durable = o.shards[d.round]
	case killTune:
		o.tuning.killed = d.reason
	case killWorker:
		o.killed = d.reason
	case abortWorker:
		o.phase, o.abortedAt = aborted, time.Now()
	case wait, beginCommit, postCommit, dropCommit, setRunning, endJob, removeJob, resolve, probe:
	}
	c.start(o.ID, true, func(ctx context.Context) (func(*observed), error) { return acts[d.choice](&a, ctx) })
	return free
}

// coresOf returns the cores that a placed job is pinned to.
func (c *Coordinator) coresOf(j *cluster.Job) []int {
	if j.State != cluster.Starting && j.State != cluster.Running {
		return nil
	}
	p, err := readPlacement(j)
	if cores := p.cores(c.config.Node); err == nil && subset(cores, c.config.Cores) {
		return cores
	}
	return nil
}

// freeCores lists the cores that no placed job, no living process and no tuning has.
func (c *Coordinator) freeCores(s snapshot) []int {
	taken := slices.Clone(c.reserved)
	for _, o := range s.jobs {
		taken = append(taken, o.taking...)
		if o.tunes() {
			taken = append(taken, o.tuning.cores...)
		}
		placed := (o.State == cluster.Starting || o.State == cluster.Running) && !o.waits()
		if o.lives() || placed {
			if p, err := readPlacement(o.Job); err == nil {
				taken = append(taken, p.cores(c.config.Node)...)
			}
		}
	}
	return slices.DeleteFunc(slices.Clone(c.config.Cores), func(core int) bool { return slices.Contains(taken, core) })
}

func subset(a, b []int) bool {
	return !slices.ContainsFunc(a, func(x int) bool { return !slices.Contains(b, x) })
}
