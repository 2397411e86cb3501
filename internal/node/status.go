package node

import (
	"context"

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

// lastOf chooses the last status of an ended job: the kept one, which was asked for and written before the end was agreed on. What the
// coordinator published may be of the tick before, when the last evaluation was not done. It serves where nothing was kept of the
// job's last worker.
func lastOf(j *cluster.Job, published, kept *control.Status) *control.Status {
	if published == nil || kept != nil && kept.Generation == j.Generation {
		return kept
	}
	return published
}

// lastStatus returns the kept status of an ended job; nil where there is none.
func (n *node) lastStatus(ctx context.Context, j *cluster.Job) *control.Status {
	key := keptStatus{j.ID, j.Generation}
	value, _ := n.kept.Load(key)
	s, found := value.(*control.Status)
	if !found {
		s = n.agent.KeptStatus(ctx, j.ID)
		n.kept.Store(key, s)
	}
	return s
}
