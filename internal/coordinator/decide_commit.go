package coordinator

import (
	"fmt"
	"math"
	"time"
)

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
