package coordinator

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/avgpipe/avgpipe/internal/agent"
	"github.com/avgpipe/avgpipe/internal/cluster"
)

// How the processes of nodes are looked at.
const (
	sweepBound = 3 * time.Second  // for a node to list its processes: each worker is asked for its status meanwhile
	sweepAgain = time.Second      // after a node did not answer, or had something that could not be judged yet
	sweepEvery = 30 * time.Second // where nothing calls for it: what a leader that is gone started late is found then
)

// Adopt takes over the processes that an earlier coordinator left, of all nodes at once. Workers of a job's current generation are
// watched from here on; those of an older one are killed: nothing that they compute can be committed any more. So are tunings, whose
// reader is gone. A node that does not answer holds nothing up: its part of a job is unseen until it answers or is given up. An error is
// of the coordinator's own node. It comes before Run.
func (c *Coordinator) Adopt(ctx context.Context) error {
	state := c.raft.State()
	now := c.now()
	c.lookAround()
	for _, j := range state.Jobs() {
		if !placed(j) {
			continue
		}
		o := c.job(j.ID)
		o.generation = newGeneration()
		for _, node := range placementOf(j).nodes() {
			o.workers = append(o.workers, &worker{process: agent.Process{Job: j.ID, Node: node, Generation: j.Generation}, phase: unseen, cut: now, why: "it has not answered yet"})
		}
	}
	nodes := c.nodes()
	found, all := make([]func() error, len(nodes)), make([]func(), len(nodes))
	for i, n := range nodes {
		c.sight(n.Name).sweeping = true
		all[i] = func() { found[i] = c.list(ctx, n) }
	}
	c.together(all)
	for i, n := range nodes {
		if err := found[i](); err != nil && n.Name == c.here.Name {
			return fmt.Errorf("adopt workers: %w", err)
		}
	}
	return nil
}

// list lists the processes of a node, and returns what is to be done with them by the coordinator's goroutine.
func (c *Coordinator) list(ctx context.Context, n Node) func() error {
	bounded, cancel := context.WithTimeout(ctx, sweepBound)
	defer cancel()
	running, err := n.Agent.Processes(bounded)
	return func() error { //nolint:contextcheck // what follows a process outlives the look
		s := c.sight(n.Name)
		s.sweeping = false
		if err != nil {
			c.hearsNot(n.Name, err)
			s.sweepAt = c.now().Add(sweepAgain)
			return err
		}
		c.hears(n.Name)
		s.sweepAt = c.now().Add(sweepEvery)
		if !c.judge(n, running) {
			s.sweepAt = c.now().Add(sweepAgain)
		}
		return nil
	}
}

// sweep looks at the processes of nodes that are due, in the background.
func (c *Coordinator) sweep(now time.Time) {
	nodes := c.nodes()
	for _, n := range nodes {
		if s := c.sight(n.Name); !s.sweeping && !now.Before(s.sweepAt) {
			s.sweeping = true
			c.spawn(func() {
				done := c.list(c.background, n)
				c.call(func() { _ = done() }) // why is noted
			})
		}
	}
	for name := range c.seen {
		if _, member := c.node(name); !member {
			delete(c.seen, name)
		}
	}
}

// judge says of each process of a node whether it goes on. It reports whether all could be judged.
func (c *Coordinator) judge(n Node, running []agent.Running) (all bool) {
	state := c.raft.State()
	all = true
	for _, r := range running {
		j, err := state.Job(r.Process.Job)
		if err != nil {
			j = nil
		}
		switch c.verdict(j, r) {
		case adoptIt:
			c.adopt(c.job(r.Process.Job), r)
		case killIt:
			c.log.Warn("killing a process that no job needs", zap.Stringer("process", r.Process), zap.Uint64("generation", r.Process.Generation))
			c.spawn(func() {
				ctx, cancel := context.WithTimeout(c.background, sweepBound)
				defer cancel()
				if err := n.Agent.Kill(ctx, r.Process); err != nil {
					c.log.Warn("kill a process that no job needs", zap.Stringer("process", r.Process), zap.Error(err)) // it is found again
				}
			})
			all = false
		case later:
			all = false
		case known:
		}
	}
	for id, o := range c.jobs {
		w := o.unseenOn(n.Name)
		switch {
		case w == nil:
		case slices.ContainsFunc(running, func(r agent.Running) bool { return r.Process.Job == id && c.mayAnswer(o, r) }):
			w.why = "the worker there does not answer"
		default:
			o.missed(w, c.now())
		}
	}
	return all
}

// mayAnswer reports whether a process of a job that says nothing of itself may be the one that is unseen there. The host may be busy, or another worker have
// taken all of the time to ask them: it is asked again, and lives until the unseen one is given up, or for response_timeout.
func (c *Coordinator) mayAnswer(o *observed, r agent.Running) bool {
	w := o.unseenOn(r.Process.Node)
	return r.Status == nil && w != nil && c.now().Sub(w.cut) < c.config.Limits().ResponseTimeout
}

// verdict is what becomes of a process that was found.
type verdict uint8

const (
	known   verdict = iota // it is watched, or somebody is starting it
	adoptIt                // it is of the current generation
	killIt                 // it is of no use
	later                  // nobody can say yet
)

// verdict judges a process of a job; nil: of none that is known.
func (c *Coordinator) verdict(j *cluster.Job, r agent.Running) verdict {
	p := r.Process
	o := c.jobs[p.Job]
	if j == nil || o == nil {
		return killIt
	}
	same := func(w *worker) bool { return w.process.Node == p.Node && w.process.ID == p.ID && w.lives() }
	switch {
	case slices.ContainsFunc(o.workers, same), o.tunes() && o.tuning.process.ID == p.ID:
		return known
	case o.placing(), c.mayAnswer(o, r):
		return later
	case r.Status != nil && p.Generation > j.Generation: // the state is behind
		return later
	case r.Status != nil && p.Generation == j.Generation && placed(j) && o.unseenOn(p.Node) != nil:
		return adoptIt
	}
	return killIt
}

// unseenOn is the worker of a job that is unseen on a node; nil: none is.
func (o *observed) unseenOn(node string) *worker {
	for _, w := range o.workers {
		if w.process.Node == node && w.phase == unseen {
			return w
		}
	}
	return nil
}

// adopt takes over a worker that has been unseen.
func (c *Coordinator) adopt(o *observed, r agent.Running) {
	w := o.unseenOn(r.Process.Node)
	*w = worker{process: r.Process, phase: loading}
	c.Say(r.Process.Job, "adopted the worker of an earlier coordinator", zap.Int("process", r.Process.ID.PID), zap.Uint64("generation", r.Process.Generation))
	c.observe(agent.Event{Process: r.Process, Status: r.Status})
	c.follow(w)
}

// noWorker is why a worker is gone that a new coordinator does not find.
const noWorker = "the daemon was restarted and found no worker"

// missed notes that a node has no worker of a job that should have one there. Where none of a generation was ever seen, it is as if
// there had been none.
func (o *observed) missed(w *worker, now time.Time) {
	w.phase, w.cut, w.ended, w.cause = exited, time.Time{}, now, noWorker
	if len(o.with(func(w *worker) bool { return w.phase != exited || w.cause != noWorker })) == 0 {
		o.generation = newGeneration()
		return
	}
	if !o.lives() {
		o.settle(now)
	}
}

// follow passes the events of a worker's process on until it has ended. Where its node stops to answer, they are asked for again.
func (c *Coordinator) follow(w *worker) {
	ctx, cancel := context.WithCancel(c.background)
	w.unfollow, w.heard = cancel, c.now()
	p := w.process
	c.spawn(func() {
		defer cancel()
		c.followProcess(ctx, p)
	})
}

// Pauses between two tries to ask for events.
const (
	firstAsk   = 100 * time.Millisecond
	longestAsk = time.Second
)

func (c *Coordinator) followProcess(ctx context.Context, p agent.Process) {
	pause := firstAsk
	for ctx.Err() == nil {
		exited := false
		err := c.at(p).Events(ctx, p, func(e agent.Event) {
			pause, exited = firstAsk, exited || e.Exit != nil
			c.call(func() { c.observe(e) })
		})
		switch {
		case ctx.Err() != nil || err == nil:
			return
		case exited:
			c.log.Warn("after a process", zap.Stringer("process", p), zap.Error(err))
			return
		case errors.Is(err, agent.ErrNoProcess):
			c.call(func() {
				c.observe(agent.Event{Process: p, Exit: &agent.Exit{Code: -1, How: "nobody saw how"}})
			})
			return
		}
		c.call(func() { c.cut(p, err) })
		c.pause(ctx, pause)
		pause = min(2*pause, longestAsk)
	}
}

// cut notes that a worker's node has stopped to answer.
func (c *Coordinator) cut(p agent.Process, why error) {
	o := c.job(p.Job)
	w := o.find(p)
	if w == nil || !w.lives() {
		return
	}
	if w.cut.IsZero() {
		w.cut, w.why = c.now(), why.Error()
		c.sayAt(zap.WarnLevel, p.Job, "a worker is not heard any more", zap.Stringer("process", p), zap.Error(why))
	}
	if errors.Is(why, agent.ErrUnreachable) {
		c.hearsNot(p.Node, why)
	}
}

// followTuning passes the events of a tuning on until it has ended. It is on the coordinator's own node.
func (c *Coordinator) followTuning(p agent.Process) {
	c.spawn(func() {
		err := c.at(p).Events(c.background, p, func(e agent.Event) { c.call(func() { c.observe(e) }) })
		if err != nil && c.background.Err() == nil {
			c.log.Error("a process is not watched any more", zap.Stringer("process", p), zap.Error(err))
		}
	})
}
