package cluster

import (
	"fmt"
	"slices"
)

// RequestCancel records that somebody wants a job to end, so that a new leader goes on ending it. Asking again changes
// nothing.
type RequestCancel struct {
	Job    string `json:"job"`
	Reason string `json:"reason"`
	By     string `json:"by,omitempty"` // who, for people
}

// Kind implements Command.
func (*RequestCancel) Kind() string { return "request_cancel" }

func (c *RequestCancel) apply(s *State) (string, error) {
	j, err := s.edit(c.Job)
	if err != nil {
		return c.Job, err
	}
	if j.State.Ended() {
		return c.Job, fmt.Errorf("job %s is %s: %w", c.Job, j.State, ErrEnded)
	}
	if !j.Cancelling {
		j.Cancelling, j.Reason, j.CancelledBy = true, c.Reason, c.By
	}
	return c.Job, nil
}

// DiscardRound takes a durable round back whose shards no node can give whole any more. The job then resumes from the one
// before it, or from the start.
type DiscardRound struct {
	Job        string `json:"job"`
	Generation uint64 `json:"generation"`
	Round      uint64 `json:"round"`
	Reason     string `json:"reason"` // which shard, and what is wrong with it
}

// Kind implements Command.
func (*DiscardRound) Kind() string { return "discard_round" }

func (c *DiscardRound) apply(s *State) (string, error) {
	j, err := s.editLive(c.Job, c.Generation)
	if err != nil {
		return c.Job, err
	}
	at := slices.IndexFunc(j.Committed, func(m *Manifest) bool { return m.Round == c.Round })
	if at < 0 {
		return c.Job, fmt.Errorf("job %s: round %d: %w: it is not one of the durable rounds", c.Job, c.Round, ErrStaleRound)
	}
	j.Committed = slices.Delete(slices.Clone(j.Committed), at, at+1)
	j.Reason = c.Reason
	return c.Job, nil
}
