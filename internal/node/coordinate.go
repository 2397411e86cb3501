package node

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
	"go.uber.org/zap"

	"github.com/avgpipe/avgpipe/internal/agent"
	"github.com/avgpipe/avgpipe/internal/cluster"
	"github.com/avgpipe/avgpipe/internal/obstacle"
	"github.com/avgpipe/avgpipe/internal/spec"
)

const (
	round     = 100 * time.Millisecond // the longest pause between two looks; most of what matters wakes the coordinator
	afterFail = time.Second            // until a choice that could not be carried out is made again

	longestLook = time.Second // between two looks while this process runs; a longer time is one in which it was stopped
)

// outcome is how an act ended.
type outcome struct {
	job    string
	change func(*observed) // what it changed; nil: nothing
	err    error
}

// coordinate observes, decides and acts until ctx has ended and nothing is left to do, or Raft has failed. Acts run under beside.
func (n *node) coordinate(ctx, beside context.Context) {
	ticker := time.NewTicker(round)
	defer ticker.Stop()
	asked := ctx.Done()
	for {
		n.beat.Store(time.Now().UnixNano())
		state, changed := n.raft.Changed()
		idle := n.turn(beside, state, ctx.Err() != nil)
		if idle && ctx.Err() != nil {
			return
		}
		select {
		case <-changed:
		case <-n.raft.Failed():
			n.stop()
			return
		case <-ticker.C:
		case <-asked:
			asked = nil
			n.beginStop()
		case e := <-n.events:
			n.observe(e)
		case o := <-n.outcomes:
			n.conclude(o)
		}
		n.drain()
	}
}

// beginStop makes known that the daemon ends, and to systemd how long it may take.
func (n *node) beginStop() {
	n.mu.Lock()
	n.stopping = true
	bound := time.Duration(0)
	for _, o := range n.jobs {
		bound = max(bound, o.stopBound()+abortGrace)
	}
	n.mu.Unlock()
	n.stop()
	n.log.Info("stopping: jobs commit the round they are in", zap.Duration("bound", bound))
	n.notify(fmt.Sprintf("%s\nEXTEND_TIMEOUT_USEC=%d", daemon.SdNotifyStopping, (bound + 10*time.Second).Microseconds()))
}

// drain takes in what has come together meanwhile.
func (n *node) drain() {
	for {
		select {
		case e := <-n.events:
			n.observe(e)
		case o := <-n.outcomes:
			n.conclude(o)
		default:
			return
		}
	}
}

// observe notes what was seen of a process, unless it has been replaced.
func (n *node) observe(e agent.Event) {
	n.mu.Lock()
	defer n.mu.Unlock()
	o, now := n.job(e.Process.Job), time.Now()
	switch t := o.tuning; {
	case o.worker == e.Process:
		n.observeWorker(o, e, now)
	case t != nil && t.process == e.Process:
		n.observeTuning(o, e, now)
	}
}

func (n *node) observeWorker(o *observed, e agent.Event, now time.Time) {
	before, deaths := o.hold, o.deaths
	o.take(e, now)
	if o.deaths > deaths {
		n.counts.deaths.Add(1)
	}
	n.sayHold(e.Process.Job, before, o.hold)
	if j, err := n.raft.State().Job(e.Process.Job); err == nil && e.Status != nil {
		n.watchDrift(j, o, now)
	}
	if e.Exit != nil {
		n.log.Info("a worker ended", zap.Stringer("worker", e.Process), zap.Uint64("generation", e.Process.Generation),
			zap.String("how", e.Exit.How), zap.String("cause", o.cause))
	}
}

func (n *node) observeTuning(o *observed, e agent.Event, now time.Time) {
	t, id := o.tuning, e.Process.Job
	switch {
	case e.Tuning != nil:
		if t.take(e.Tuning, now) {
			n.say(id, "tuning", zap.Int("done", t.progress.Done), zap.Int("total", t.progress.Total), zap.String("step", t.progress.Text))
		}
		return
	case e.Exit == nil:
		return
	}
	t.end(e.Exit)
	before := o.hold
	o.hold = nil
	switch {
	case t.cause != "" && t.obstacle != nil:
		o.hold = before // pauses grow
		o.waitFor(t.obstacle, now)
	case t.cause != "":
		o.die(now)
	}
	n.sayHold(id, before, o.hold)
	n.log.Info("a tuning ended", zap.Stringer("tuning", e.Process), zap.String("how", e.Exit.How),
		zap.Bool("chosen", t.report != nil), zap.String("failure", t.failure), zap.String("cause", t.cause))
}

// conclude notes how an act ended. What could not be done is decided about again a little later.
func (n *node) conclude(c outcome) {
	n.mu.Lock()
	defer n.mu.Unlock()
	o := n.job(c.job)
	o.acting, o.taking = false, nil
	if c.change != nil {
		c.change(o)
	}
	if c.err == nil {
		return
	}
	o.note = c.err.Error()
	o.quiet = time.Now().Add(afterFail)
	n.log.Error("could not act", zap.String("job", c.job), zap.Error(c.err))
	if what := obstacle.Of(c.err); what != nil && (o.choice == place || o.choice == tune) {
		before := o.hold
		o.waitFor(what, time.Now())
		o.note, o.quiet = what.String(), time.Time{}
		n.sayHold(c.job, before, o.hold)
	}
}

// sayHold says that a job begins to wait for something else than before, or goes on.
func (n *node) sayHold(job string, before, now *hold) {
	switch {
	case before == now:
	case now == nil:
		n.say(job, "going on", zap.String("over", before.obstacle.String()))
	case before == nil || before.obstacle.String() != now.obstacle.String():
		n.say(job, "waiting", zap.String("for", now.obstacle.String()), zap.String("error", now.obstacle.Text))
	}
}

// turn decides and begins to act. It reports whether no process of a job lives and no act runs.
func (n *node) turn(beside context.Context, state *cluster.State, stopping bool) (idle bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	w, jobs := n.world(state, stopping)
	free := n.freeCores(jobs)
	for _, d := range decide(w) {
		o := n.job(d.job)
		if o.acting || w.now.Before(o.quiet) {
			continue
		}
		o.note = d.reason
		if d.choice != wait {
			free = n.begin(beside, jobs[d.job], o, d, free)
		}
	}
	return n.idle()
}

// world is what there is to decide about, and the jobs in it by id. The caller holds the lock.
func (n *node) world(state *cluster.State, stopping bool) (world, map[string]*cluster.Job) {
	w := world{now: time.Now(), cores: len(n.config.Cores), lent: len(n.lent), stopping: stopping, rules: n.config.Limits().rules()}
	passed := min(w.now.Sub(n.looked), longestLook)
	n.looked = w.now
	jobs := map[string]*cluster.Job{}
	n.forget(state)
	for _, j := range state.Jobs() {
		o := n.job(j.ID)
		if j.State.Ended() && !o.lives() && !o.tunes() && !o.acting && o.remove == "" {
			continue // most jobs, after a while
		}
		if !j.State.Ended() {
			o.remove = "" // it was resumed
		}
		s, err := n.Spec(j)
		if err != nil {
			o.note = err.Error()
			if o.remove == "" {
				continue
			}
			s = &spec.Spec{} // enough to remove it
		}
		if asked := stopping || j.Cancelling; !asked {
			o.stopSince = time.Time{}
		} else if o.stopSince.IsZero() {
			o.stopSince = w.now
		}
		if o.tunes() {
			o.tuning.silent += passed
		}
		jobs[j.ID] = j
		v := o.view(j, s, &w)
		v.exported = slices.ContainsFunc(j.Committed, func(m *cluster.Manifest) bool { return n.pins[m.Shards[0].Digest] > 0 })
		w.jobs = append(w.jobs, v)
	}
	return w, jobs
}

// forget drops what was observed of jobs that were removed. The caller holds the lock.
func (n *node) forget(state *cluster.State) {
	for id, o := range n.jobs {
		if _, err := state.Job(id); err != nil && !o.acting {
			delete(n.jobs, id)
			delete(n.specs, id)
		}
	}
}

// idle reports whether no process of a job lives and no act runs. The caller holds the lock.
func (n *node) idle() bool {
	for _, o := range n.jobs {
		if o.acting || o.tunes() || o.lives() {
			return false
		}
	}
	return true
}

// begin starts to carry a choice out. It returns the cores that are free after it. The caller holds the lock.
func (n *node) begin(beside context.Context, j *cluster.Job, o *observed, d decision, free []int) []int {
	o.acting, o.choice = true, d.choice
	a := act{node: n, job: j, Spec: n.specs[j.ID], decision: d, worker: o.worker}
	switch d.choice {
	case place, tune:
		need := a.Spec.Cores(len(n.config.Cores))
		switch own := n.coresOf(j); {
		case len(own) == need && o.hold == nil: // a job that comes back keeps its cores
			a.cores = own
		case len(own) == need && subset(own, free): // or gets them again
			a.cores, free = own, slices.DeleteFunc(slices.Clone(free), func(c int) bool { return slices.Contains(own, c) })
		case need <= len(free):
			a.cores, free = free[:need:need], free[need:]
		}
		o.taking = a.cores
	case commitRound:
		a.shards = o.shards[d.round]
		a.reached = o.reached
	case resolve:
		a.report = o.tuning.report
	case killTune:
		a.tuning, o.tuning.killed = o.tuning.process, d.reason
	case probe:
		a.hold = o.hold
	case killWorker:
		o.killed = d.reason // before its end can be noticed
	case wait, beginCommit, postCommit, dropCommit, setRunning, abortWorker, endJob, removeJob:
	}
	n.acts.Go(func() {
		change, err := a.run(beside)
		select {
		case n.outcomes <- outcome{job: j.ID, change: change, err: err}:
		case <-beside.Done():
		}
	})
	return free
}

// coresOf returns the cores that a placed job is pinned to.
func (n *node) coresOf(j *cluster.Job) []int {
	if j.State != cluster.Starting && j.State != cluster.Running {
		return nil
	}
	p, err := readPlacement(j)
	if err != nil || p.Node != n.id || !subset(p.Cores, n.config.Cores) {
		return nil
	}
	return p.Cores
}

// freeCores lists the cores that no placed job, no living process and no tuning has. The caller holds the lock.
func (n *node) freeCores(jobs map[string]*cluster.Job) []int {
	taken := slices.Clone(n.lent)
	for id, j := range jobs {
		o := n.jobs[id]
		taken = append(taken, o.taking...)
		if o.tunes() {
			taken = append(taken, o.tuning.cores...)
		}
		placed := (j.State == cluster.Starting || j.State == cluster.Running) && !o.waits()
		if o.lives() || placed {
			if p, err := readPlacement(j); err == nil {
				taken = append(taken, p.Cores...)
			}
		}
	}
	return slices.DeleteFunc(slices.Clone(n.config.Cores), func(c int) bool { return slices.Contains(taken, c) })
}

func subset(a, b []int) bool {
	return !slices.ContainsFunc(a, func(x int) bool { return !slices.Contains(b, x) })
}
