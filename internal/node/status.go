package node

import (
	"context"
	"sync"
	"time"

	"github.com/avgpipe/avgpipe/internal/agent"
	"github.com/avgpipe/avgpipe/internal/api"
	"github.com/avgpipe/avgpipe/internal/cluster"
	"github.com/avgpipe/avgpipe/internal/coordinator"
	"github.com/avgpipe/avgpipe/internal/server"
	"github.com/avgpipe/avgpipe/internal/worker/control"
)

// describe is the status of a job for users.
func (n *node) describe(ctx context.Context, j *cluster.Job) api.JobStatus {
	v := n.coordinator().Published().Jobs[j.ID]
	if j.State.Ended() {
		v.Status = lastOf(j, v.Status, n.lastStatus(ctx, j))
	}
	s, err := n.coordinator().Spec(j)
	if err != nil {
		s = nil // the reason says so
	}
	out := coordinator.Status(j, s, v)
	if v.Status == nil && j.State.Ended() {
		dropStale(&out)
	}
	out.Owner = server.UserName(j.Owner)
	if s != nil {
		out.Export, out.Store = n.exports.describe(j, s), n.archives.describe(j, s)
	}
	return out
}

// dropStale drops from the status of an ended job, made of its last committed round, an evaluation of an earlier round: the later one
// was in the status that is lost.
func dropStale(s *api.JobStatus) {
	if s.EvalRound < s.CommittedRound {
		s.EvalLoss, s.EvalRound, s.Metrics = nil, 0, api.Metrics{}
	}
}

// keptStatus names the last status of a job.
type keptStatus struct {
	job        string
	generation uint64
}

// foundStatus is what was found of it.
type foundStatus struct {
	status *control.Status // nil: nothing
	again  time.Time       // when it is looked for again; zero: it is the one
}

// How the last status of an ended job is looked for on other nodes.
const (
	keptWait  = 2 * time.Second // all together, for a job or for the list of all
	keptAgain = time.Minute     // after it was not found
)

// lastOf chooses the last status of an ended job: the kept one, which was asked for and written before the end was agreed on. What the
// coordinator published may be of the tick before, when the last evaluation was not done. It serves where nothing was kept of the
// job's last worker.
func lastOf(j *cluster.Job, published, kept *control.Status) *control.Status {
	if published == nil || kept != nil && kept.Generation == j.Generation {
		return kept
	}
	return published
}

// lastStatus returns the kept status of an ended job; nil where there is none. The node that led when the job ended has it, and those where it ran.
func (n *node) lastStatus(ctx context.Context, j *cluster.Job) *control.Status {
	key := keptStatus{j.ID, j.Generation}
	value, _ := n.kept.Load(key)
	if f, found := value.(foundStatus); found && (f.again.IsZero() || time.Now().Before(f.again)) {
		return f.status
	}
	f := foundStatus{status: n.agent.KeptStatus(ctx, j.ID)}
	if f.status == nil || f.status.Generation != j.Generation {
		bounded, cancel := context.WithTimeout(ctx, keptWait)
		defer cancel()
		f.status = latest(bounded, j.ID, f.status, n.asked(j))
	}
	if f.status == nil || f.status.Generation != j.Generation {
		f.again = time.Now().Add(keptAgain)
	}
	if f.again.IsZero() || ctx.Err() == nil { // else not everybody has answered
		n.kept.Store(key, f)
	}
	return f.status
}

// latest is the status of the latest generation that was kept here or by others; nil where there is none.
func latest(ctx context.Context, job string, here *control.Status, others map[string]agent.Agent) *control.Status {
	var mu sync.Mutex
	var asking sync.WaitGroup
	for _, a := range others {
		asking.Go(func() {
			s := a.KeptStatus(ctx, job)
			mu.Lock()
			defer mu.Unlock()
			if s != nil && (here == nil || s.Generation > here.Generation) {
				here = s
			}
		})
	}
	asking.Wait()
	return here
}
