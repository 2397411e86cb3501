package coordinator

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/avgpipe/avgpipe/internal/ages"
	"github.com/avgpipe/avgpipe/internal/cluster"
	"github.com/avgpipe/avgpipe/internal/gpu"
	"github.com/avgpipe/avgpipe/internal/placer"
	"github.com/avgpipe/avgpipe/internal/shard"
	"github.com/avgpipe/avgpipe/internal/spec"
)

// tick decides, begins to act and publishes. It reports whether no process of a job lives and no act runs.
func (c *Coordinator) tick(state *cluster.State, stopping bool) (idle bool) {
	s := c.snapshot(state, stopping)
	c.sweep(s.now)
	c.recopy(state, s.now)
	c.measureLinks(s)
	rooms := s.rooms
	for i, d := range decide(s) {
		o := s.jobs[i]
		if o.acting || s.now.Before(o.notBefore) {
			continue
		}
		o.note, o.notBefore = d.reason, time.Time{}
		switch d.choice {
		case wait:
		case loseWorkers:
			c.lose(o, d.reason, s.now)
		case awaitPlace:
			c.awaitRoom(o, d.reason)
		default:
			rooms = c.begin(o, d, rooms)
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
		now: c.now(), stopping: stopping, limits: c.config.Limits(),
	}
	c.lookAround()
	for _, n := range c.nodes() {
		s.cores, s.memory, s.gpus = s.cores+len(n.Cores), s.memory+n.MemoryBytes, append(s.gpus, n.gpus()...)
	}
	all := c.all()
	passed := min(s.now.Sub(c.ticked), longestTick)
	first := c.ticked.IsZero()
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
		o.Job, o.exported = j, c.pins.holds(j)
		if asked := stopping || j.Cancelling || o.grow != "" || placed(j) && c.excluded(o.place()) != ""; !asked {
			o.stopSince = time.Time{}
		} else if o.stopSince.IsZero() {
			o.stopSince = s.now
		}
		if o.tunes() {
			o.tuning.silent += passed
		}
		o.noteWait(s.now, first)
		c.takeSpec(o, admitted)
		if o.State == cluster.Queued || o.waits() {
			c.lookAgain(o, s.now)
		}
		c.takeGPUs(o, all)
		c.takeNodes(o, passed)
		c.takeLoss(o, s.now)
		c.copyShards(o, s.now)
		s.jobs = append(s.jobs, o)
	}
	s.rooms, s.holders = c.rooms(s), holdersOf(s)
	c.takeGrowth(s)
	free := c.free(s)
	s.freeGPUs = gpusOf(free)
	for _, o := range s.jobs {
		o.small = s.freeGPUs - gpusOf(c.fitting(o, free))
	}
	return s
}

// takeSpec notes what a job asks for. Of one that asks for GPUs that is worked out each time: they may come and go.
func (c *Coordinator) takeSpec(o *observed, admitted *spec.Spec) {
	if o.spec != admitted {
		o.original = c.originalOf(o, admitted)
	}
	if o.spec != admitted || admitted.GPUs() > 0 {
		o.spec, o.cores, o.memory = admitted, admitted.Cores(len(c.here.Cores)), admitted.HostBytes()
		o.want = c.wanted(admitted, c.unfit(admitted))
	}
	o.want.Lacking, o.hopeless = o.lacking(), c.hopeless(o)
}

// noteWait notes when a job began to wait for room: one that was placed before does when that is first seen, unless that is in the first tick: nobody
// knows then how long it has waited, and a restart must not cost it its turn.
func (o *observed) noteWait(now time.Time, first bool) {
	switch {
	case o.State != cluster.Queued && !o.waits():
		o.since = time.Time{}
	case o.since.IsZero() && (first || o.Generation == 0):
		o.since = ages.Since(now, o.Submitted)
	case o.since.IsZero():
		o.since = now
	}
}

// takeGPUs notes which GPUs a job takes, and how those are that it has.
func (c *Coordinator) takeGPUs(o *observed, all map[string]resources) {
	o.gpus, o.had, o.kept, o.sick, o.excluded = o.spec.GPUs(), nil, 0, "", ""
	all = c.fitting(o, all)
	o.short = o.gpus > gpusOf(all)
	switch {
	case placed(o.Job):
		p := o.place()
		for _, node := range p.nodes() {
			o.had = append(o.had, p.gpus(node)...)
		}
		o.sick = c.sick(p)
		o.excluded = cmp.Or(c.excluded(p), o.grow)
		o.kept = gpusOf(with(nil, all, p))
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
	for _, n := range c.nodes() {
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
	for _, name := range p.nodes() {
		own := p.gpus(name)
		n, ok := c.node(name)
		if len(own) == 0 || !ok {
			continue
		}
		for _, g := range n.gpus() {
			if g.Health.Level == gpu.Sick && slices.Contains(own, g.UUID) {
				return fmt.Sprintf("%s is %s", g, g.Health)
			}
		}
	}
	return ""
}

// excluded says that somebody has taken one of the GPUs of a job from jobs, or drains one of its nodes; "" where nobody has.
func (c *Coordinator) excluded(p placement) string {
	for _, name := range p.nodes() {
		n, ok := c.node(name)
		if !ok {
			continue
		}
		if n.Draining {
			return fmt.Sprintf("node %s is being drained", n.Name)
		}
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
			c.litter.forget(id)
			c.laid.specs.Delete(id)
		}
	}
}

// begin starts to carry a choice out. It returns what is free after it.
func (c *Coordinator) begin(o *observed, d decision, rooms []placer.Node) []placer.Node {
	o.acting, o.choice = true, d.choice
	a := act{Coordinator: c, observed: *o, decision: d, away: c.unreached()}
	a.workers = make([]*worker, len(o.workers))
	for i, w := range o.workers {
		own := *w
		a.workers[i] = &own
	}
	switch d.choice { // what is known of processes is noted now: their end may be seen before that of the act
	case place:
		a.taking, a.why = c.choosePlaces(o, d, rooms)
		if len(a.taking) == 0 && o.hold == nil && len(c.nodes()) > 1 {
			c.awaitRoom(o, d.reason)
			return rooms
		}
		if waits := c.looking(o, a.taking, c.now()); waits != "" {
			o.acting, o.note = false, d.reason+"; "+waits
			return o.left(rooms, a.taking)
		}
		o.taking, rooms = a.taking, o.left(rooms, a.taking)
	case tune:
		a.taking = c.tuningPlaces(o, rooms)
		if waits := c.looking(o, a.taking, c.now()); len(o.spec.Remote) > 0 && waits != "" {
			o.acting, o.note = false, d.reason+"; "+waits
			return o.left(rooms, a.taking)
		}
		o.taking, rooms = a.taking, o.left(rooms, a.taking)
	case resplit:
		a.rooms = slices.Clone(rooms)
	case commitRound:
		a.durable, a.have = o.shards[d.round], map[shard.Digest][]string{}
		for digest, of := range o.copies {
			a.have[digest] = slices.Clone(of.have)
		}
	case killTune:
		o.tuning.killed = d.reason
	case killWorkers:
		o.killed = d.reason
	case abortWorkers:
		o.abort(c.now())
	case wait, loseWorkers, awaitPlace, regrow, beginCommit, postCommit, dropCommit, setRunning, endJob, removeJob, resolve, probe, awaitGPUs:
	}
	c.start(o.ID, true, func(ctx context.Context) (func(*observed), error) { return acts[d.choice](&a, ctx) })
	return rooms
}

// placed reports whether a job has a place.
func placed(j *cluster.Job) bool { return j.State == cluster.Starting || j.State == cluster.Running }

// all are the cores of each node where something new may be placed, and its GPUs that are not sick.
func (c *Coordinator) all() map[string]resources {
	all := map[string]resources{}
	for _, n := range c.open() {
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
		o.taking.takeFrom(free)
		if o.tunes() {
			o.tuning.place.takeFrom(free)
		}
		if o.lives() || placed(o.Job) && !o.waits() {
			o.place().takeFrom(free)
		}
	}
	return free
}
