package cluster

import (
	"fmt"
	"strconv"
)

// RestoreJob puts a job back that the replicated state has lost, as it was last recorded elsewhere. Later jobs get higher numbers.
type RestoreJob struct {
	Saved Job `json:"saved"`
}

// Kind implements Command.
func (*RestoreJob) Kind() string { return "restore_job" }

func (c *RestoreJob) apply(s *State) (string, error) {
	j := c.Saved.clone()
	number, err := strconv.ParseUint(j.ID, 10, 64)
	if err != nil || strconv.FormatUint(number, 10) != j.ID {
		return j.ID, fmt.Errorf("job %q: its id is no number", j.ID)
	}
	if s.jobs[j.ID] != nil {
		return j.ID, fmt.Errorf("job %s: there is one of that id", j.ID)
	}
	if !j.State.Ended() || j.Ended == nil {
		return j.ID, fmt.Errorf("job %s is %s: only an ended job is restored; resuming it is decided afterwards", j.ID, j.State)
	}
	for _, m := range j.Committed {
		if err := m.Validate(); err != nil {
			return j.ID, err
		}
	}
	s.jobs[j.ID] = j
	s.NextJob = max(s.NextJob, number+1)
	return j.ID, nil
}

// RemoveJob forgets an ended job. Its number is never used again.
type RemoveJob struct {
	Job string `json:"job"`
}

// Kind implements Command.
func (*RemoveJob) Kind() string { return "remove_job" }

func (c *RemoveJob) apply(s *State) (string, error) {
	j, err := s.Job(c.Job)
	if err != nil {
		return c.Job, err
	}
	if !j.State.Ended() {
		return c.Job, fmt.Errorf("job %s is %s: only an ended job is removed", c.Job, j.State)
	}
	delete(s.jobs, c.Job)
	return c.Job, nil
}
