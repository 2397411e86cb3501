package coordinator

import (
	"context"
	"errors"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/avgpipe/avgpipe/internal/agent"
	"github.com/avgpipe/avgpipe/internal/cluster"
	"github.com/avgpipe/avgpipe/internal/drift"
	"github.com/avgpipe/avgpipe/internal/obstacle"
)

// observe notes what was seen of a process, unless it has been replaced.
func (c *Coordinator) observe(e agent.Event) {
	o, now := c.job(e.Process.Job), c.now()
	w := o.find(e.Process)
	switch t := o.tuning; {
	case w != nil:
		c.observeWorker(o, w, e, now)
	case t != nil && t.process == e.Process:
		c.observeTuning(o, e, now)
	}
}

func (c *Coordinator) observeWorker(o *observed, w *worker, e agent.Event, now time.Time) {
	before, deaths := o.hold, o.deaths
	c.hears(w.process.Node)
	if e.Worker != nil && e.Worker.Shard != nil && (o.Job == nil || e.Worker.Round <= o.CommittedRound()) {
		return // nothing can be decided about the job, as nobody can read its spec; or it was said before the connection broke
	}
	o.take(w, e, now)
	if o.deaths > deaths {
		c.Counts.Deaths.Add(1)
	}
	c.sayHold(e.Process.Job, before, o.hold)
	if j, err := c.raft.State().Job(e.Process.Job); err == nil && e.Status != nil {
		c.noteTraffic(o.placeOf(j), o.status.Progress.LinkStatus)
		c.watchDrift(j, o, w.process, now)
	}
	if e.Exit != nil {
		c.log.Info("a worker ended", zap.Stringer("worker", e.Process), zap.Uint64("generation", e.Process.Generation),
			zap.String("how", e.Exit.How), zap.String("cause", w.cause))
	}
}

func (c *Coordinator) observeTuning(o *observed, e agent.Event, now time.Time) {
	t, id := o.tuning, e.Process.Job
	switch {
	case e.Tuning != nil:
		if t.take(e.Tuning, now) {
			c.Say(id, "tuning", zap.Int("done", t.progress.Done), zap.Int("total", t.progress.Total), zap.String("step", t.progress.Text))
		}
		return
	case e.Exit == nil:
		return
	}
	t.end(e.Exit)
	before := o.hold
	switch {
	case t.cause != "" && t.obstacle != nil:
		o.waitFor(t.obstacle, t.process.Node, now)
	case t.cause != "" && o.sick == "":
		o.die(now)
		fallthrough
	default:
		o.hold = nil
	}
	c.sayHold(id, before, o.hold)
	c.log.Info("a tuning ended", zap.Stringer("tuning", e.Process), zap.String("how", e.Exit.How),
		zap.Bool("chosen", t.report != nil), zap.String("failure", t.failure), zap.String("cause", t.cause))
}

// conclude notes how something in the background, such as an act of a job, ended. What could not be done is decided about again a little
// later.
func (c *Coordinator) conclude(job string, act bool, change func(*observed), err error) {
	o := c.job(job)
	before := o.hold
	if act {
		o.acting, o.taking = false, nil
	}
	if change != nil {
		change(o)
	}
	defer func() { c.sayHold(job, before, o.hold) }()
	if act && o.ended() { // one that ended by itself cannot be told to any more
		o.notBefore = time.Time{}
		if err != nil {
			c.log.Info("a worker had ended when it was told to", zap.String("job", job), zap.Error(err))
		}
		return
	}
	if err == nil {
		if act {
			o.failing, o.alarmed = time.Time{}, false
		}
		return
	}
	o.note = err.Error()
	o.notBefore = c.now().Add(afterFail)
	c.log.Log(o.failed(c.now()), "could not act; it is decided about again", zap.String("job", job), zap.Error(err))
	if what := obstacle.Of(err); what != nil && (o.choice == place || o.choice == tune) {
		o.note, o.notBefore = what.String(), time.Time{}
		if o.hold == before && !o.lives() {
			node := ""
			if at, ok := errors.AsType[*nodeError](err); ok {
				node = at.node
			}
			o.waitFor(what, node, c.now())
			o.hold.named = node != ""
			o.note = o.hold.String()
		}
	}
}

// failed notes that a choice could not be carried out, and returns the level of that in the log. A worker or a node that is about to be found dead, or a leader that changes,
// is no error: that nothing can be done for a job for a minute is one, once.
func (o *observed) failed(now time.Time) zapcore.Level {
	if o.failing.IsZero() {
		o.failing = now
	}
	if now.Sub(o.failing) < alarmAfter || o.alarmed {
		return zapcore.WarnLevel
	}
	o.alarmed = true
	return zapcore.ErrorLevel
}

// sayHold says that a job begins to wait for something else than before, or goes on.
func (c *Coordinator) sayHold(job string, before, now *hold) {
	switch {
	case before == now:
	case now == nil:
		c.Say(job, "going on", zap.String("over", before.String()))
	case before == nil || before.String() != now.String():
		c.Say(job, "waiting", zap.String("for", now.String()), zap.String("error", now.obstacle.Text))
	}
}

// watchDrift compares what a tuned job's workers have just said with what its tuning found, in the background: it simulates. One of them,
// of, names their generation.
func (c *Coordinator) watchDrift(j *cluster.Job, o *observed, of agent.Process, now time.Time) {
	s, err := c.Spec(j)
	if err != nil || s.Report == nil || o.phase() != training || j.State != cluster.Running || o.comparing {
		return
	}
	status := o.status.Progress
	status.Pipelines, status.MicroBatches = int(s.Job.Pipelines), int(s.Job.MicroBatches)
	m := drift.Measured(&status, s.Placement(), s.Job.Train.Batch)
	if m == nil {
		return
	}
	o.comparing = true
	watch := o.drift
	watch.Hold = c.config.DriftHold
	c.start(j.ID, false, func(context.Context) (func(*observed), error) {
		turned := watch.See(now, drift.Chosen{Candidate: &s.Report.Chosen, ExchangeNorm: s.Job.Optimizer.ClipNorm > 0}, m, s.Report.Bound)
		return func(o *observed) {
			if o.find(of) == nil {
				return
			}
			o.comparing, o.drift = false, watch
			if d := watch.Now; turned && d != nil {
				c.Say(j.ID, "the batch time has left its prediction", zap.String("what", d.Text), zap.Float64("bound", s.Report.Bound))
			} else if turned {
				c.Say(j.ID, "the batch time is back at its prediction", zap.Float64("seconds", m.BatchSeconds))
			}
		}, nil
	})
}
