package coordinator

import (
	"cmp"
	"fmt"
	"time"

	"github.com/avgpipe/avgpipe/internal/agent"
	"github.com/avgpipe/avgpipe/internal/api"
	"github.com/avgpipe/avgpipe/internal/cluster"
	"github.com/avgpipe/avgpipe/internal/obstacle"
	"github.com/avgpipe/avgpipe/internal/worker/control"
	"github.com/avgpipe/avgpipe/tuner"
)

// How a tuning is bounded. One message is a step of work, so steps that have been seen tell how long the next may take.
const (
	leastSilence  = 5 * time.Minute // that any step is allowed, since the first ones read the data
	silenceFactor = 10              // times the longest step yet
)

// tuning is what was seen of a tune process.
type tuning struct {
	process  agent.Process
	place    placement
	live     bool
	began    time.Time
	silent   time.Duration // since the last message; time in which this daemon was stopped does not count
	heard    time.Time
	longest  time.Duration // between two messages
	progress api.TuneProgress
	report   *tuner.Report
	failure  string             // what it said at last instead of a report, of the job
	trouble  string             // the same, of the host
	obstacle *obstacle.Obstacle // and what of the host it was; nil: unknown
	cause    string             // why it ended without a report or a failure
	killed   string             // why it was killed here
}

func newTuning(p agent.Process, at placement, now time.Time) *tuning {
	return &tuning{process: p, place: at, live: true, began: now, heard: now}
}

// tunes reports whether a tune process of the job lives.
func (o *observed) tunes() bool { return o.tuning != nil && o.tuning.live }

// take notes a message. It reports whether a new step of work has begun.
func (t *tuning) take(m *control.TuneMessage, now time.Time) (step bool) {
	t.longest = max(t.longest, now.Sub(t.heard))
	t.heard, t.silent = now, 0
	switch {
	case m.Progress != nil:
		step = m.Progress.Text != t.progress.Text
		t.progress = *m.Progress
	case m.Report != nil:
		t.report = m.Report
	case m.Permanent:
		t.failure = m.Error
	case m.Error != "":
		t.trouble, t.obstacle = m.Error, m.Obstacle
	}
	return step
}

// end notes how the process ended.
func (t *tuning) end(e *agent.Exit) {
	t.live = false
	if t.report != nil && e.Code != 0 && t.killed == "" {
		t.report = nil // it did not end as one does that has said all
	}
	switch {
	case t.report != nil || t.failure != "":
	case t.killed != "":
		t.cause = t.killed
	case t.trouble != "":
		t.cause = t.trouble
	default:
		t.cause = e.Cause("tuning", t.process)
	}
}

// silence is how long the process may say nothing.
func (t *tuning) silence() time.Duration { return max(leastSilence, silenceFactor*t.longest) }

// show is how far it is, for the API.
func (t *tuning) show() *api.TuneProgress {
	p := t.progress
	p.ElapsedS = t.heard.Sub(t.began).Seconds()
	return &p
}

// text says how far it is, for people.
func (t *tuning) text() string {
	if t.progress.Total == 0 {
		return "tuning: starting"
	}
	return fmt.Sprintf("tuning, step %d of %d: %s", min(t.progress.Done+1, t.progress.Total), t.progress.Total, t.progress.Text)
}

// decideTuning looks after a job whose counts are being measured. Nothing of a tuning outlives its process or its daemon: it
// begins again.
func decideTuning(w snapshot, j *observed) decision {
	t, retryAt := cmp.Or(j.tuning, &tuning{}), j.diedAt.Add(w.limits.pause(j.deaths))
	if t.live {
		switch why := stopReason(w, j); {
		case why != "":
			return decision{choice: killTune, reason: why + " before the job was tuned"}
		case j.sick != "":
			return decision{choice: killTune, reason: j.sick}
		case t.silent > t.silence():
			return decision{choice: killTune, reason: fmt.Sprintf("the tuning has said nothing for %v, which is more than it may, %v; it was at: %s",
				t.silent.Round(time.Second), t.silence().Round(time.Second), t.text())}
		}
		return decision{reason: t.text()}
	}
	switch {
	case j.Cancelling:
		return decision{choice: endJob, state: cluster.Cancelled, reason: "cancelled before it was tuned"}
	case w.stopping:
		return decision{reason: "the daemon is stopping; the tuning begins again with the next one"}
	case t.report != nil:
		return decision{choice: resolve, reason: "tuned"}
	case t.failure != "":
		return decision{choice: endJob, state: cluster.Failed, reason: t.failure}
	case j.deaths >= w.limits.RetryLimit:
		return decision{choice: endJob, state: cluster.Failed, reason: fmt.Sprintf(
			"%d tunings ended without a choice, the last one so: %s", j.deaths, t.cause)}
	case w.now.Before(retryAt):
		return decision{reason: fmt.Sprintf("tuning again, %d of %d, in %v: %s",
			j.deaths, w.limits.RetryLimit-1, retryAt.Sub(w.now).Round(time.Millisecond), t.cause)}
	case j.lacksGPUs(w.freeGPUs):
		return decision{choice: awaitGPUs, reason: cmp.Or(t.cause, "the daemon was restarted")}
	case t.cause == "":
		return decision{choice: tune, reason: "the daemon was restarted; tuning again"}
	}
	return decision{choice: tune, reason: "tuning again: " + t.cause}
}
