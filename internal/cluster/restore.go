package cluster

import (
	"errors"
	"fmt"
	"maps"
	"time"
)

// ErrWorking is wrapped where a backup cannot be restored since jobs work; test with errors.Is.
var ErrWorking = errors.New("jobs have not ended: cancel them, or wait")

// ErrAnotherJob is wrapped where a job of a backup has the number of another one; test with errors.Is.
var ErrAnotherJob = errors.New("one number cannot be of both")

// Restored is s with the jobs of a backup that it does not have, and these. Jobs that s has stay as they are: their rounds are at least as new, and the
// files of the nodes agree with them. Members, authority and tokens are those of s as well. The number of the next job is the greater of both, so that
// none is given twice. A job that had not ended comes back as failed, for a person to resume: its workers are gone, and the round that it stood at may
// be. now is when it ended, and source names the backup for people. Both states stay as they are. An error wraps ErrCluster, for the backup of another
// cluster, ErrWorking or ErrAnotherJob.
func (s *State) Restored(backup *State, now time.Time, source string) (next *State, back []*Job, err error) {
	if a, b := s.authority, backup.authority; a != nil && b != nil && a.Cluster != b.Cluster {
		return nil, nil, fmt.Errorf("the backup is of cluster %s, this one is %s: %w", b.Cluster, a.Cluster, ErrCluster)
	}
	for _, j := range s.Jobs() {
		if !j.State.Ended() {
			return nil, nil, fmt.Errorf("job %s is %s: %w", j.ID, j.State, ErrWorking)
		}
	}
	out := *s
	out.NextJob = max(s.NextJob, backup.NextJob)
	out.jobs, out.jobOrder = maps.Clone(s.jobs), &order[*Job]{}
	for _, j := range backup.Jobs() {
		if is := s.jobs[j.ID]; is != nil {
			if !is.Submitted.Equal(j.Submitted) {
				return nil, nil, fmt.Errorf("job %s is %q, submitted at %s; in the backup it is %q, submitted at %s: %w", j.ID,
					is.Name, is.Submitted.Format(time.DateTime), j.Name, j.Submitted.Format(time.DateTime), ErrAnotherJob)
			}
			continue
		}
		if !j.State.Ended() {
			ended, at := *j, now.UTC()
			ended.State, ended.Ended, ended.Pending, ended.Cancelling, ended.CancelledBy = Failed, &at, 0, false, ""
			ended.Reason = fmt.Sprintf("restored from %s, where it was %s; resume it with avgpipectl resume %s", source, j.State, j.ID)
			j = &ended
		}
		out.jobs[j.ID] = j
		back = append(back, j)
	}
	return &out, back, nil
}
