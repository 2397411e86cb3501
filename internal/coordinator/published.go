package coordinator

import (
	"time"

	"github.com/avgpipe/avgpipe/internal/api"
	"github.com/avgpipe/avgpipe/internal/worker/control"
)

// Published is what the coordinator knew at the end of a tick. Nothing in it changes afterwards.
type Published struct {
	Tick      time.Time
	Jobs      map[string]View // by id; a job that is missing has not been looked at yet
	FreeCores int
}

// View is what the coordinator knows of a job beside the replicated state.
type View struct {
	Status   *control.Status // the last of the current, or the last, worker; nil: none was heard
	Note     string          // what the coordinator is at with the job, for people
	Failing  bool            // the last choice could not be carried out
	Lives    bool            // a worker runs
	Trains   bool            // and has begun to
	Finished bool            // and has reached its final round
	Waits    bool            // for an obstacle to pass
	Drift    *api.Drift
	Tuning   *api.TuneProgress
}

// Published returns what the last tick published.
func (c *Coordinator) Published() *Published { return c.published.Load() }

// publish makes known what the coordinator knows.
func (c *Coordinator) publish(free []int) {
	p := &Published{Tick: c.ticked, Jobs: make(map[string]View, len(c.jobs)), FreeCores: len(free)}
	for id, o := range c.jobs {
		v := View{
			Status: o.status, Note: o.note, Failing: !o.notBefore.IsZero(), Lives: o.lives(), Waits: o.waits(), Drift: o.drift.Now,
			Trains: o.phase == training || o.phase == finished, Finished: o.phase == finished,
		}
		if o.tuning != nil {
			v.Tuning = o.tuning.show()
		}
		p.Jobs[id] = v
	}
	c.published.Store(p)
}
