package cluster

import (
	"errors"
	"fmt"
	"maps"
)

// ErrWorking is wrapped where a backup cannot be restored since jobs work; test with errors.Is.
var ErrWorking = errors.New("jobs have not ended: cancel them, or wait")

// Restored is s with the jobs of a backup in the place of its own. Members, authority and tokens are those of s: they are facts of the present, and
// the files of the nodes agree with them. Numbers of jobs and generations go on from the greater of both, so that no worker of today is taken for
// one of a job of the backup. Both states stay as they are. An error wraps ErrCluster, for the backup of another cluster, or ErrWorking.
func (s *State) Restored(backup *State) (*State, error) {
	if a, b := s.authority, backup.authority; a != nil && b != nil && a.Cluster != b.Cluster {
		return nil, fmt.Errorf("the backup is of cluster %s, this one is %s: %w", b.Cluster, a.Cluster, ErrCluster)
	}
	for _, j := range s.Jobs() {
		if !j.State.Ended() {
			return nil, fmt.Errorf("job %s is %s: %w", j.ID, j.State, ErrWorking)
		}
	}
	next := *s
	next.NextJob = max(s.NextJob, backup.NextJob)
	next.jobs, next.order = maps.Clone(backup.jobs), &order{}
	for id, j := range next.jobs {
		if now := s.jobs[id]; now != nil && now.Generation > j.Generation {
			raised := *j
			raised.Generation = now.Generation
			next.jobs[id] = &raised
		}
	}
	return &next, nil
}
