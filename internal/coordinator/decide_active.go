package coordinator

import (
	"cmp"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/avgpipe/avgpipe/internal/cluster"
)

// decideActive looks after a placed job. Its workers train together or not at all: where one is gone, the others are of no use.
func decideActive(w snapshot, j *observed) decision {
	if !j.lives() {
		return decideLost(w, j)
	}
	if d, ok := decideCut(w, j); ok {
		return d
	}
	if j.phase() == aborted {
		return dismiss(w, j, "it was told to")
	}
	if gone := j.gone(); gone != nil {
		return dismiss(w, j, fmt.Sprintf("the worker%s is gone: %s", j.of(gone), gone.cause))
	}
	if j.sick != "" && j.phase() != finished { // what is not committed may be wrong
		return decision{choice: killWorkers, reason: j.sick}
	}
	for _, at := range j.workers {
		if at.silent > at.responseAfter(w.limits) && at.polls >= leastPolls {
			return decision{choice: killWorkers, reason: fmt.Sprintf("the worker%s has not answered for %v, %d times in a row",
				j.of(at), at.silent.Round(time.Second), at.polls)}
		}
	}
	if j.phase() == loading {
		return decideLoading(w, j)
	}
	if j.State == cluster.Starting {
		return decision{choice: setRunning, reason: "training"}
	}
	if d, ok := decideFinished(w, j); ok {
		return d
	}
	if overdue(w, j) && !j.committable() {
		return decision{choice: abortWorkers, reason: fmt.Sprintf("%s; no commit within %v, so training since round %d is lost",
			stopReason(w, j), j.stopBound(), j.CommittedRound())}
	}
	if j.Pending > 0 {
		return decideBegun(w, j)
	}
	return decideNext(w, j)
}

// decideLoading looks after a job until all its workers train.
func decideLoading(w snapshot, j *observed) decision {
	if why := stopReason(w, j); why != "" {
		return decision{choice: killWorkers, reason: why + " before training began"} // nothing to save
	}
	for _, at := range j.workers {
		if at.phase == loading && at.stalled > loadFactor*w.limits.ResponseTimeout {
			return decision{choice: killWorkers, reason: fmt.Sprintf("loading%s has made no progress for %v", j.of(at), at.stalled.Round(time.Second))}
		}
	}
	return decision{reason: fmt.Sprintf("the worker%s is loading", j.of(j.least()))}
}

// decideLost restarts a job whose workers are gone, or ends the job.
func decideLost(w snapshot, j *observed) decision {
	why, retryAt := j.cause, j.diedAt.Add(w.limits.pause(j.deaths))
	if j.phase() == absent {
		why = "the daemon was restarted"
	}
	why = cmp.Or(j.excluded, why)
	switch {
	case j.permanent:
		return decision{choice: endJob, state: cluster.Failed, reason: why + "; " + kept(j)}
	case j.Cancelling:
		return decision{choice: endJob, state: cluster.Cancelled, reason: "cancelled; " + kept(j)}
	case w.stopping:
		return decision{reason: "the daemon is stopping; " + kept(j)}
	case j.timeIsUp() && j.CommittedRound() > 0:
		return decision{choice: endJob, state: cluster.Done, reason: fmt.Sprintf("train.max_time %v is over; %s", j.spec.Job.Train.MaxTime, kept(j))}
	case j.timeIsUp():
		return decision{choice: endJob, state: cluster.Failed, reason: fmt.Sprintf("train.max_time %v is over; %s", j.spec.Job.Train.MaxTime, kept(j))}
	case j.deaths >= w.limits.RetryLimit:
		return decision{choice: endJob, state: cluster.Failed, reason: fmt.Sprintf(
			"%d workers ended without a new commit between them, the last one so: %s; %s", j.deaths, why, kept(j))}
	case w.now.Before(retryAt):
		return decision{reason: fmt.Sprintf("restart %d of %d in %v: %s", j.deaths, w.limits.RetryLimit-1, retryAt.Sub(w.now).Round(time.Millisecond), why)}
	}
	if j.grow != "" {
		return decision{choice: regrow, reason: j.grow}
	}
	if j.bereft != "" && j.spec.Whole() == "" && j.want.Fitted(w.rooms).Whole != "" {
		return decision{choice: awaitPlace, reason: why} // rather fewer stages than all of them on one node
	}
	if j.lacksGPUs(w.freeGPUs + j.kept) {
		return decision{choice: awaitGPUs, reason: fmt.Sprintf("%s; it had %s", why, strings.Join(j.had, ", "))}
	}
	return decision{choice: place, reason: why}
}

// kept says what is safe.
func kept(j *observed) string {
	if j.CommittedRound() == 0 {
		return "no round was committed"
	}
	return fmt.Sprintf("round %d is the last committed one", j.CommittedRound())
}

// pause returns how long to wait before a restart after so many deaths without a commit between them.
func (l Limits) pause(deaths int) time.Duration {
	if deaths < 2 {
		return 0
	}
	return min(l.RetryFirst<<min(deaths-2, 20), l.RetryLongest)
}

// decideFinished handles a worker that has nothing more to compute, once its final round is durable.
func decideFinished(w snapshot, j *observed) (decision, bool) {
	if j.phase() != finished || j.CommittedRound() < j.round() {
		return decision{}, false
	}
	switch {
	case j.complete():
		return decision{choice: endJob, state: cluster.Done, reason: fmt.Sprintf("all steps are done; round %d is committed", j.CommittedRound())}, true
	case j.timeIsUp():
		return decision{choice: endJob, state: cluster.Done, reason: fmt.Sprintf(
			"train.max_time %v is over; round %d is committed", j.spec.Job.Train.MaxTime, j.CommittedRound())}, true
	case j.Cancelling:
		return decision{choice: endJob, state: cluster.Cancelled, reason: fmt.Sprintf("cancelled; round %d is committed", j.CommittedRound())}, true
	case w.stopping:
		return decision{choice: abortWorkers, reason: fmt.Sprintf("the daemon is stopping; round %d is committed", j.CommittedRound())}, true
	}
	if j.excluded != "" {
		return decision{choice: abortWorkers, reason: fmt.Sprintf("%s; round %d is committed", j.excluded, j.CommittedRound())}, true
	}
	return decision{choice: abortWorkers, reason: fmt.Sprintf("it was stopped at round %d by a daemon that is gone", j.CommittedRound())}, true
}

// timeIsUp reports whether the job has trained for as long as it may.
func (o *observed) timeIsUp() bool {
	bound := o.spec.Job.Train.MaxTime
	return bound > 0 && o.status != nil && time.Duration(o.status.Progress.ElapsedS*float64(time.Second))+o.loadingFor() >= bound
}

// overdue reports whether the commit that somebody waits for takes too long.
func overdue(w snapshot, j *observed) bool {
	return !j.stopSince.IsZero() && w.now.Sub(j.stopSince) > j.stopBound()
}

// stopReason says why training is to end now; "" when it is not.
func stopReason(w snapshot, j *observed) string {
	switch {
	case j.Cancelling:
		return "cancelled"
	case w.stopping:
		return "the daemon is stopping"
	case j.timeIsUp():
		return fmt.Sprintf("train.max_time %v is over", j.spec.Job.Train.MaxTime)
	case j.excluded != "":
		return j.excluded
	}
	return ""
}

// decideBegun brings a commit in flight to its end.
func decideBegun(w snapshot, j *observed) decision {
	round, end, stop, shards := j.Pending, j.lastRound(), stopReason(w, j) != "", j.spec.Shards()
	durable, refused := len(j.shards[round]), j.refused[round]
	switch {
	case durable == shards && j.uncopied != "" && !overdue(w, j):
		return decision{reason: j.uncopied}
	case durable == shards:
		return decision{choice: commitRound, round: round, reason: fmt.Sprintf("all %d shards of round %d are durable", shards, round)}
	case stop && j.stopAt != round && j.soonest() < round:
		return decision{choice: dropCommit, round: round, reason: fmt.Sprintf("%s, and round %d is far", stopReason(w, j), round)}
	case round > end: // it was begun before the worker knew its budget
		return decision{choice: dropCommit, round: round, reason: fmt.Sprintf("training ends before round %d, at round %d", round, end)}
	case refused > round && round == end: // as where not all could be told to end there
		return decision{choice: abortWorkers, reason: fmt.Sprintf("a worker has ended at round %d, and another one is past it; training since round %d is lost", round, j.CommittedRound())}
	case refused > 0 && round < end:
		next := min(max(refused+j.ahead(), round+1), end)
		return decision{choice: beginCommit, round: next, reason: fmt.Sprintf("the worker is past round %d already", round)}
	case j.posted != round:
		return decision{choice: postCommit, round: round, stop: stop, reason: fmt.Sprintf("round %d is begun", round)}
	}
	if durable == 0 && j.round() < round {
		return decision{reason: fmt.Sprintf("training is at round %d; round %d will be committed", j.round(), round)}
	}
	return decision{reason: fmt.Sprintf("%d of %d shards of round %d are durable", durable, shards, round)}
}

// decideNext begins the next commit: the final one, one that somebody waits for, or the next that is due.
func decideNext(w snapshot, j *observed) decision {
	round, end, committed, every := j.round(), j.lastRound(), j.CommittedRound(), uint64(j.spec.Job.Center.CommitEvery)
	if w.now.Before(j.commitAt) && stopReason(w, j) == "" {
		return decision{reason: j.fault}
	}
	if j.phase() == finished {
		return decision{choice: beginCommit, round: round, reason: "training has ended at this round"}
	}
	if committed >= end {
		if at := j.endsAfter(end); at != nil && stopReason(w, j) == "" { // as where a node was drained for so short a time that not all could be told
			return decision{choice: abortWorkers, reason: fmt.Sprintf("training was to end at round %d for a reason that has passed, and the worker%s was not told; round %d is committed", end, j.of(at), committed)}
		}
		return decision{reason: fmt.Sprintf("round %d, the final one, is committed; the worker is finishing", committed)}
	}
	if why := stopReason(w, j); why != "" {
		return decision{choice: beginCommit, round: j.soonest(), reason: why}
	}
	due := min((committed/every+1)*every, end)
	if j.speed() > 0 && round+1+j.within(lead) < due { // one whose speed is not known yet may be fast
		return decision{reason: fmt.Sprintf("training; the next commit is due at round %d", due)}
	}
	return decision{choice: beginCommit, round: max(due, j.soonest()), reason: fmt.Sprintf("a commit is due every %d rounds", every)}
}

// soonest returns the earliest round whose commit the workers will hear of in time.
func (o *observed) soonest() uint64 {
	return min(max(o.earliest()+o.ahead(), o.CommittedRound()+1), o.lastRound())
}

// within returns how many rounds the job may complete in a time; 1 while it is not known how fast it is.
func (g *generation) within(d time.Duration) uint64 {
	if g.speed() <= 0 {
		return 1
	}
	return uint64(math.Ceil(g.speed() * d.Seconds()))
}
