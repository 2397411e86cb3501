package coordinator

import (
	"slices"
	"time"

	"github.com/avgpipe/avgpipe/internal/cluster"
	"github.com/avgpipe/avgpipe/internal/spec"
)

// tick decides, begins to act and publishes. It reports whether no process of a job lives and no act runs.
func (c *Coordinator) tick(state *cluster.State, stopping bool) (idle bool) {
	s, jobs := c.snapshot(state, stopping)
	free := c.freeCores(jobs)
	for _, d := range decide(s) {
		o := c.job(d.job)
		if o.acting || s.now.Before(o.notBefore) {
			continue
		}
		o.note = d.reason
		if d.choice != wait {
			free = c.begin(jobs[d.job], o, d, free)
		}
	}
	c.publish(c.freeCores(jobs))
	for _, o := range c.jobs {
		if o.acting || o.tunes() || o.lives() {
			return false
		}
	}
	return true
}

// snapshot is what there is to decide about, and the jobs in it by id.
func (c *Coordinator) snapshot(state *cluster.State, stopping bool) (snapshot, map[string]*cluster.Job) {
	limits := c.config.Limits()
	s := snapshot{now: time.Now(), cores: len(c.config.Cores), memory: c.config.MemoryBytes, reserved: len(c.reserved), stopping: stopping, limits: limits}
	passed := min(s.now.Sub(c.ticked), longestTick)
	c.ticked = s.now
	jobs := map[string]*cluster.Job{}
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
		jobs[j.ID] = j
		v := o.view(j, admitted, &s)
		v.exported = c.pins.holds(j)
		s.jobs = append(s.jobs, v)
	}
	return s, jobs
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
func (c *Coordinator) begin(j *cluster.Job, o *observed, d decision, free []int) []int {
	o.acting, o.choice = true, d.choice
	admitted, _ := c.Spec(j) // a job without a spec is removed at most, which needs none
	a := act{Coordinator: c, job: j, spec: admitted, decision: d, worker: o.process, last: o.status}
	switch d.choice {
	case place, tune:
		need := a.spec.Cores(len(c.config.Cores))
		switch own := c.coresOf(j); {
		case len(own) == need && o.hold == nil: // a job that comes back keeps its cores
			a.cores = own
		case len(own) == need && subset(own, free): // or gets them again
			a.cores, free = own, slices.DeleteFunc(slices.Clone(free), func(core int) bool { return slices.Contains(own, core) })
		case need <= len(free):
			a.cores, free = free[:need:need], free[need:]
		}
		o.taking = a.cores
	case commitRound:
		a.shards, a.reached = o.shards[d.round], o.reached
	case resolve:
		a.report = o.tuning.report
	case killTune:
		a.worker, o.tuning.killed = o.tuning.process, d.reason
	case probe:
		a.hold = o.hold
	case killWorker:
		o.killed = d.reason // before its end can be noticed
	case abortWorker:
		o.phase, o.abortedAt = aborted, time.Now() // before its end can be noticed
	case wait, beginCommit, postCommit, dropCommit, setRunning, endJob, removeJob:
	}
	c.start(j.ID, true, a.run)
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
func (c *Coordinator) freeCores(jobs map[string]*cluster.Job) []int {
	taken := slices.Clone(c.reserved)
	for id, j := range jobs {
		o := c.jobs[id]
		taken = append(taken, o.taking...)
		if o.tunes() {
			taken = append(taken, o.tuning.cores...)
		}
		placed := (j.State == cluster.Starting || j.State == cluster.Running) && !o.waits()
		if o.lives() || placed {
			if p, err := readPlacement(j); err == nil {
				taken = append(taken, p.cores(c.config.Node)...)
			}
		}
	}
	return slices.DeleteFunc(slices.Clone(c.config.Cores), func(core int) bool { return slices.Contains(taken, core) })
}

func subset(a, b []int) bool {
	return !slices.ContainsFunc(a, func(x int) bool { return !slices.Contains(b, x) })
}
