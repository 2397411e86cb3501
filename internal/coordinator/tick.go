package coordinator

import (
	"context"
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
		o.note, o.notBefore = d.reason, time.Time{}
		if d.choice != wait {
			free = c.begin(o, d, free)
		}
	}
	c.publish(len(c.freeCores(s)[c.here.Name]))
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
		now: time.Now(), reserved: len(c.reserved), stopping: stopping, limits: c.config.Limits(),
	}
	for _, n := range c.config.Nodes {
		s.cores, s.memory = s.cores+len(n.Cores), s.memory+n.MemoryBytes
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
		o.Job, o.spec, o.cores, o.memory, o.exported = j, admitted, admitted.Cores(len(c.here.Cores)), admitted.HostBytes(), c.pins.holds(j)
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
func (c *Coordinator) begin(o *observed, d decision, free map[string][]int) map[string][]int {
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
		if here := free[c.here.Name]; o.cores <= len(here) {
			a.taking = placement{{Node: c.here.Name, Cores: here[:o.cores:o.cores]}}
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
	case wait, beginCommit, postCommit, dropCommit, setRunning, endJob, removeJob, resolve, probe:
	}
	c.start(o.ID, true, func(ctx context.Context) (func(*observed), error) { return acts[d.choice](&a, ctx) })
	return free
}

// placed reports whether a job has a place.
func placed(j *cluster.Job) bool { return j.State == cluster.Starting || j.State == cluster.Running }

// choosePlaces says where a job goes. One that comes back keeps its cores; after it has waited without them, it gets them again if they are
// free.
func (c *Coordinator) choosePlaces(o *observed, free map[string][]int) placement {
	from := free
	if o.hold == nil {
		from = c.allCores()
	}
	if own := placementOf(o.Job); placed(o.Job) && own.within(from) {
		return own
	}
	return placeStages(o.spec.Placement(), int(o.spec.Job.Devices.CPU.Threads), c.config.Nodes, free)
}

// allCores are the cores of each node.
func (c *Coordinator) allCores() map[string][]int {
	all := map[string][]int{}
	for _, n := range c.config.Nodes {
		all[n.Name] = n.Cores
	}
	return all
}

// freeCores lists the cores of each node that no placed job, no living process and no tuning has.
func (c *Coordinator) freeCores(s snapshot) map[string][]int {
	free := without(c.allCores(), placement{{Node: c.here.Name, Cores: c.reserved}})
	for _, o := range s.jobs {
		free = without(free, o.taking)
		if o.tunes() {
			free = without(free, placement{{Node: c.here.Name, Cores: o.tuning.cores}})
		}
		if o.lives() || placed(o.Job) && !o.waits() {
			free = without(free, placementOf(o.Job))
		}
	}
	return free
}
