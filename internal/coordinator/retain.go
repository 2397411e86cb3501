package coordinator

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/avgpipe/avgpipe/internal/ages"
	"github.com/avgpipe/avgpipe/internal/cluster"
)

// Retention bounds what ended jobs take: their entries in the replicated state, and their directories. The oldest go first, by
// when they ended. A job whose model was not exported counts as any other. 0: no bound of that kind.
type Retention struct {
	Jobs  int           // ended jobs that are kept
	Age   time.Duration // since a job ended
	Bytes int64         // of the directories of all ended jobs; the job that ended last stays, whatever it takes
	Share float64       // the same, as a share of the file system
}

// keptJob is an ended job as the policy sees it.
type keptJob struct {
	id    string
	ended time.Time
	bytes int64
	old   bool // it ended longer than Age ago, and has for a while
}

// surplus says which ended jobs go, and why. It is a pure function. disk is the size of the file system, in bytes.
func (r Retention) surplus(jobs []keptJob, disk int64) map[string]string {
	limit := r.Bytes
	if share := int64(r.Share * float64(disk)); share > 0 && (limit == 0 || share < limit) {
		limit = share
	}
	jobs = slices.SortedFunc(slices.Values(jobs), func(a, b keptJob) int { return cmp.Or(a.ended.Compare(b.ended), cmp.Compare(a.id, b.id)) })
	total := int64(0)
	for _, j := range jobs {
		total += j.bytes
	}
	gone := map[string]string{}
	for i, j := range jobs {
		left := len(jobs) - i
		switch {
		case r.Jobs > 0 && left > r.Jobs:
			gone[j.id] = fmt.Sprintf("there are %d ended jobs, keep_ended_jobs is %d", left, r.Jobs)
		case j.old:
			gone[j.id] = fmt.Sprintf("it ended at %s, keep_ended_age is %v", j.ended.Format(time.DateTime), r.Age)
		case limit > 0 && total > limit && left > 1:
			gone[j.id] = fmt.Sprintf("ended jobs take %d bytes, keep_ended_bytes allows %d", total, limit)
		default:
			continue // jobs end by the clocks of several nodes, so a later one may be too old
		}
		total -= j.bytes
	}
	return gone
}

// retainEvery is how often the ages of ended jobs are looked at. Whenever the state changes their number is.
const retainEvery = time.Minute

// RetainJobs has ended jobs beyond the configured bounds removed, until the coordinator has stopped.
func (c *Coordinator) RetainJobs(ctx context.Context) {
	sizes := map[string]keptJob{} // of ended jobs, whose directories no longer grow
	var old ages.Ledger
	ticker := time.NewTicker(retainEvery)
	defer ticker.Stop()
	for {
		state, changed := c.raft.Changed()
		jobs := c.measure(ctx, state, sizes)
		_, disk, err := c.here.Agent.Disk(ctx)
		if err != nil {
			c.log.Warn("how large the disk of the state directory is", zap.Error(err))
		}
		retain := c.config.Limits().Retain
		if retain.Age > 0 {
			began := map[string]time.Time{}
			for _, j := range jobs {
				began[j.id] = j.ended
			}
			past := old.Past(c.now(), retain.Age, began)
			for i := range jobs {
				jobs[i].old = past[jobs[i].id]
			}
		}
		for id, why := range retain.surplus(jobs, disk) {
			_ = c.Remove(ctx, id, why) // fails only once the coordinator has stopped
		}
		select {
		case <-changed:
		case <-ticker.C:
		case <-c.background.Done():
			return
		case <-ctx.Done():
			return
		}
	}
}

// measure lists the ended jobs with what they take. It remembers sizes in known.
func (c *Coordinator) measure(ctx context.Context, state *cluster.State, known map[string]keptJob) []keptJob {
	var jobs []keptJob
	for _, j := range state.Jobs() {
		if !j.State.Ended() || c.config.Spare != nil && c.config.Spare(j) {
			continue
		}
		k, ok := known[j.ID]
		if !ok || !k.ended.Equal(*j.Ended) {
			k = keptJob{id: j.ID, ended: *j.Ended, bytes: c.here.Agent.Usage(ctx, j.ID)}
		}
		jobs = append(jobs, k)
	}
	clear(known)
	for _, k := range jobs {
		known[k.id] = k
	}
	return jobs
}
