package cluster

import (
	"errors"
	"fmt"
	"slices"
)

// ResumeJob restarts a job that failed or was cancelled from a durable round: it is queued again. Of a job that has not ended it
// changes from which round the next generation starts; the coordinator sees to it that no worker trains meanwhile.
type ResumeJob struct {
	Job        string `json:"job"`
	Generation uint64 `json:"generation"`
	// Round is the durable round to start from; those after it are given up. 0: the newest.
	Round uint64 `json:"round,omitempty"`
	// FromStart gives all durable rounds up.
	FromStart bool   `json:"from_start,omitempty"`
	Reason    string `json:"reason"`
}

// ErrNothingToResume rejects a ResumeJob; the error says why.
var ErrNothingToResume = errors.New("nothing to resume from")

// Kind implements Command.
func (*ResumeJob) Kind() string { return "resume_job" }

func (c *ResumeJob) apply(s *State) (string, error) {
	j, err := s.edit(c.Job)
	if err != nil {
		return c.Job, err
	}
	if c.Generation != j.Generation {
		return c.Job, fmt.Errorf("job %s: generation %d, now %d: %w", c.Job, c.Generation, j.Generation, ErrStaleGeneration)
	}
	at := slices.IndexFunc(j.Committed, func(m *Manifest) bool { return m.Round == c.Round })
	switch {
	case j.State == Done:
		return c.Job, fmt.Errorf("job %s is done: %w: %s", c.Job, ErrNothingToResume, j.Reason)
	case c.FromStart && c.Round > 0:
		return c.Job, fmt.Errorf("job %s: round %d and from the start: only one of them", c.Job, c.Round)
	case c.FromStart:
		j.Committed = nil
	case c.Round > 0 && at < 0:
		return c.Job, fmt.Errorf("job %s: %w: round %d is not kept; kept are %v", c.Job, ErrNothingToResume, c.Round, rounds(j.Committed))
	case c.Round > 0:
		j.Committed = slices.Clone(j.Committed[:at+1])
	case j.State.Ended() && len(j.Committed) == 0:
		return c.Job, fmt.Errorf("job %s: %w: no round was committed", c.Job, ErrNothingToResume)
	}
	j.Pending, j.Reason = 0, c.Reason
	if j.State.Ended() {
		j.State, j.Ended, j.Cancelling, j.CancelledBy = Queued, nil, false, ""
	}
	return c.Job, nil
}

// rounds lists the numbers of durable rounds.
func rounds(all []*Manifest) []uint64 {
	numbers := make([]uint64, len(all))
	for i, m := range all {
		numbers[i] = m.Round
	}
	return numbers
}
