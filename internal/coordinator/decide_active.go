package coordinator

import (
	"fmt"
	"math"
	"time"

	"github.com/avgpipe/avgpipe/internal/api"
)

// decideActive looks after a placed job.
func decideActive(w snapshot, j *jobView) decision {
	if !j.worker.live() {
		return decideLost(w, j)
	}
	if j.worker.phase == aborted {
		return dismiss(w, j, "it was told to")
	}
	if j.worker.silent > w.limits.ResponseTimeout && j.worker.polls >= leastPolls {
		return decision{choice: killWorker, reason: fmt.Sprintf("the worker has not answered for %v, %d times in a row",
			j.worker.silent.Round(time.Second), j.worker.polls)}
	}
	if j.worker.phase == loading {
		if why := stopReason(w, j); why != "" {
			return decision{choice: killWorker, reason: why + " before training began"} // nothing to save
		}
		if j.worker.stalled > loadFactor*w.limits.ResponseTimeout {
			return decision{choice: killWorker, reason: fmt.Sprintf("loading has made no progress for %v", j.worker.stalled.Round(time.Second))}
		}
		return decision{reason: "the worker is loading"}
	}
	if j.state == api.Starting {
		return decision{choice: setRunning, reason: "training"}
	}
	if d, ok := decideFinished(w, j); ok {
		return d
	}
	if overdue(w, j) {
		return decision{choice: abortWorker, reason: fmt.Sprintf("%s; no commit within %v, so training since round %d is lost",
			stopReason(w, j), j.stopBound, j.committed)}
	}
	if j.begun != nil {
		return decideBegun(w, j)
	}
	return decideNext(w, j)
}

// decideLost restarts a job whose worker is gone, or ends the job.
func decideLost(w snapshot, j *jobView) decision {
	why := j.worker.cause
	if j.worker.phase == absent {
		why = "the daemon was restarted"
	}
	switch {
	case j.worker.permanent:
		return decision{choice: endJob, state: api.Failed, reason: why + "; " + kept(j)}
	case j.cancelled:
		return decision{choice: endJob, state: api.Cancelled, reason: "cancelled; " + kept(j)}
	case w.stopping:
		return decision{reason: "the daemon is stopping; " + kept(j)}
	case j.timeIsUp() && j.committed > 0:
		return decision{choice: endJob, state: api.Done, reason: fmt.Sprintf("train.max_time %v is over; %s", j.maxTime, kept(j))}
	case j.timeIsUp():
		return decision{choice: endJob, state: api.Failed, reason: fmt.Sprintf("train.max_time %v is over; %s", j.maxTime, kept(j))}
	case j.deaths >= w.limits.RetryLimit:
		return decision{choice: endJob, state: api.Failed, reason: fmt.Sprintf(
			"%d workers ended without a new commit between them, the last one so: %s; %s", j.deaths, why, kept(j))}
	case w.now.Before(j.retryAt):
		return decision{reason: fmt.Sprintf("restart %d of %d in %v: %s", j.deaths, w.limits.RetryLimit-1, j.retryAt.Sub(w.now).Round(time.Millisecond), why)}
	}
	return decision{choice: place, reason: why}
}

// kept says what is safe.
func kept(j *jobView) string {
	if j.committed == 0 {
		return "no round was committed"
	}
	return fmt.Sprintf("round %d is the last committed one", j.committed)
}

// pause returns how long to wait before a restart after so many deaths without a commit between them.
func (l Limits) pause(deaths int) time.Duration {
	if deaths < 2 {
		return 0
	}
	return min(l.RetryFirst<<min(deaths-2, 20), l.RetryLongest)
}

// decideFinished handles a worker that has nothing more to compute, once its final round is durable.
func decideFinished(w snapshot, j *jobView) (decision, bool) {
	if j.worker.phase != finished || j.committed < j.worker.round {
		return decision{}, false
	}
	switch {
	case j.worker.complete:
		return decision{choice: endJob, state: api.Done, reason: fmt.Sprintf("all steps are done; round %d is committed", j.committed)}, true
	case j.timeIsUp():
		return decision{choice: endJob, state: api.Done, reason: fmt.Sprintf(
			"train.max_time %v is over; round %d is committed", j.maxTime, j.committed)}, true
	case j.cancelled:
		return decision{choice: endJob, state: api.Cancelled, reason: fmt.Sprintf("cancelled; round %d is committed", j.committed)}, true
	case w.stopping:
		return decision{choice: abortWorker, reason: fmt.Sprintf("the daemon is stopping; round %d is committed", j.committed)}, true
	}
	return decision{choice: abortWorker, reason: fmt.Sprintf("it was stopped at round %d by a daemon that is gone", j.committed)}, true
}

// timeIsUp reports whether the job has trained for as long as it may.
func (j *jobView) timeIsUp() bool { return j.maxTime > 0 && j.worker.elapsed >= j.maxTime }

// overdue reports whether the commit that somebody waits for takes too long.
func overdue(w snapshot, j *jobView) bool {
	return !j.stopSince.IsZero() && w.now.Sub(j.stopSince) > j.stopBound
}

// stopReason says why training is to end now; "" when it is not.
func stopReason(w snapshot, j *jobView) string {
	switch {
	case j.cancelled:
		return "cancelled"
	case w.stopping:
		return "the daemon is stopping"
	case j.timeIsUp():
		return fmt.Sprintf("train.max_time %v is over", j.maxTime)
	}
	return ""
}

// decideBegun brings a commit in flight to its end.
func decideBegun(w snapshot, j *jobView) decision {
	round, stop := j.begun.round, stopReason(w, j) != ""
	switch {
	case j.begun.shards == j.stages:
		return decision{choice: commitRound, round: round, reason: fmt.Sprintf("all %d shards of round %d are durable", j.stages, round)}
	case stop && !j.begun.stop && j.soonest() < round:
		return decision{choice: dropCommit, round: round, reason: fmt.Sprintf("%s, and round %d is far", stopReason(w, j), round)}
	case round > j.worker.final: // it was begun before the worker knew its budget
		return decision{choice: dropCommit, round: round, reason: fmt.Sprintf("training ends before round %d, at round %d", round, j.worker.final)}
	case j.begun.refused > 0 && round < j.worker.final:
		next := min(max(j.begun.refused+j.worker.rounds(margin), round+1), j.worker.final)
		return decision{choice: beginCommit, round: next, reason: fmt.Sprintf("the worker is past round %d already", round)}
	case !j.begun.posted:
		return decision{choice: postCommit, round: round, stop: stop, reason: fmt.Sprintf("round %d is begun", round)}
	}
	if j.begun.shards == 0 && j.worker.round < round {
		return decision{reason: fmt.Sprintf("training is at round %d; round %d will be committed", j.worker.round, round)}
	}
	return decision{reason: fmt.Sprintf("%d of %d shards of round %d are durable", j.begun.shards, j.stages, round)}
}

// decideNext begins the next commit: the final one, one that somebody waits for, or the next that is due.
func decideNext(w snapshot, j *jobView) decision {
	k := j.worker
	if k.phase == finished {
		return decision{choice: beginCommit, round: k.round, reason: "training has ended at this round"}
	}
	if j.committed >= k.final {
		return decision{reason: fmt.Sprintf("round %d, the final one, is committed; the worker is finishing", j.committed)}
	}
	if why := stopReason(w, j); why != "" {
		return decision{choice: beginCommit, round: j.soonest(), reason: why}
	}
	due := min((j.committed/j.commitEvery+1)*j.commitEvery, k.final)
	if k.roundsPerS > 0 && k.round+1+k.rounds(lead) < due { // one whose speed is not known yet may be fast
		return decision{reason: fmt.Sprintf("training; the next commit is due at round %d", due)}
	}
	return decision{choice: beginCommit, round: max(due, j.soonest()), reason: fmt.Sprintf("a commit is due every %d rounds", j.commitEvery)}
}

// soonest returns the earliest round whose commit the worker will hear of in time.
func (j *jobView) soonest() uint64 {
	k := j.worker
	return min(max(k.earliest+k.rounds(margin), j.committed+1), k.final)
}

// rounds returns how many rounds the worker may complete in a time; 1 while it is not known how fast it is.
func (w workerView) rounds(d time.Duration) uint64 {
	if w.roundsPerS <= 0 {
		return 1
	}
	return uint64(math.Ceil(w.roundsPerS * d.Seconds()))
}
