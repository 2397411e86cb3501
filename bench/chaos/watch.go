package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/avgpipe/avgpipe/internal/api"
)

// watch follows a job until ctx ends, across daemons that come and go, and notes what must never be seen.
func (w *testbed) watch(ctx context.Context, j *trialJob) {
	for ctx.Err() == nil {
		if status, err := w.client.Job(ctx, j.id); err == nil {
			j.take(w, status)
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
		}
	}
}

// take notes a status of the job.
func (j *trialJob) take(w *testbed, s api.JobStatus) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if s.State != j.last.State || s.Generation != j.last.Generation {
		w.say("job %s is %s, generation %d, round %d committed: %s", j.id, s.State, s.Generation, s.CommittedRound, s.Reason)
	}
	switch {
	case s.State == api.Failed || s.State == api.Cancelled:
		j.problem("job %s is %s: %s", j.id, s.State, s.Reason)
	case s.CommittedRound < j.last.CommittedRound && !w.mayGoBack(s.Reason):
		j.problem("job %s: round %d was committed, and now round %d is: %s", j.id, j.last.CommittedRound, s.CommittedRound, s.Reason)
	case s.Generation < j.last.Generation:
		j.problem("job %s: generation %d came after %d", j.id, s.Generation, j.last.Generation)
	case j.last.State == api.Done && s.State != api.Done:
		j.problem("job %s was done and is %s: %s", j.id, s.State, s.Reason)
	}
	j.last = s
}

// problem notes something once.
func (j *trialJob) problem(format string, args ...any) {
	err := fmt.Errorf(format, args...)
	for _, known := range j.problems {
		if known.Error() == err.Error() {
			return
		}
	}
	j.problems = append(j.problems, err)
}

// mayGoBack reports whether an older round may take a committed one's place: a shard was damaged, and the reason names it.
func (w *testbed) mayGoBack(reason string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, shard := range w.damaged {
		if strings.Contains(reason, shard) {
			return true
		}
	}
	return false
}

// status is what was last seen of the job.
func (j *trialJob) status() api.JobStatus {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.last
}
