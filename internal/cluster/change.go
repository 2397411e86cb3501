package cluster

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/avgpipe/avgpipe/internal/shard"
)

// ErrKeyTaken rejects a SubmitJob whose key is that of another submission.
var ErrKeyTaken = errors.New("the key is that of another submission")

// SubmitJob records a new job, queued. Result.Job is its ID. With a key that its owner has given before it changes nothing, and is about the job of
// that time.
type SubmitJob struct {
	Name      string    `json:"name"`
	File      string    `json:"file"`
	Set       []string  `json:"set,omitempty"`
	Base      string    `json:"base"`
	Owner     uint32    `json:"owner"`
	Submitted time.Time `json:"submitted"` // the proposer's clock; the state machine reads none
	// SourceDigest names the job file's text, a file of the job's directory.
	SourceDigest shard.Digest `json:"source_digest,omitempty"`
	// Spec is the job as it was admitted; the coordinator's own.
	Spec json.RawMessage `json:"spec,omitempty"`
	// After is the highest number that the proposer has found in use, as by a directory whose job this state does not know: the
	// new one is above it.
	After uint64 `json:"after,omitempty"`
	// Key is what the submitter calls this submission; empty: each is another one.
	Key string `json:"key,omitempty"`
}

func (c *SubmitJob) apply(s *State) (string, error) {
	if before := s.Submitted(c.Owner, c.Key); before != nil {
		return before.ID, before.Repeats(c)
	}
	s.NextJob = max(s.NextJob, c.After+1)
	id := strconv.FormatUint(s.NextJob, 10)
	s.NextJob++
	s.jobs[id] = &Job{
		ID: id, Name: c.Name, SourceDigest: c.SourceDigest, File: c.File, Set: c.Set, Base: c.Base, Owner: c.Owner, Key: c.Key,
		Spec: c.Spec, Submitted: c.Submitted.UTC(), State: Queued, Reason: "waits for a place",
	}
	return id, nil
}

// SetState moves a job that has not ended to queued, starting or running.
type SetState struct {
	Job        string   `json:"job"`
	Generation uint64   `json:"generation"`
	State      JobState `json:"state"`
	Reason     string   `json:"reason"`
}

func (c *SetState) apply(s *State) (string, error) {
	if !slices.Contains([]JobState{Queued, Starting, Running}, c.State) {
		return c.Job, fmt.Errorf("job %s: state %q: one of queued, starting, running", c.Job, string(c.State))
	}
	return s.editLive(c.Job, c.Generation, func(j *Job) error {
		j.State, j.Reason = c.State, c.Reason
		return nil
	})
}

// BeginGeneration gives a job a new placement: its generation grows by one, whatever was being committed is abandoned, and it
// is starting. Result.Generation is the new one.
type BeginGeneration struct {
	Job        string          `json:"job"`
	Generation uint64          `json:"generation"` // the one that the decision was made in; the new one is one more
	Placement  json.RawMessage `json:"placement"`
	From       uint64          `json:"from"` // the durable round that it starts from; 0: from the start
	Reason     string          `json:"reason"`
}

func (c *BeginGeneration) apply(s *State) (string, error) {
	return s.editLive(c.Job, c.Generation, func(j *Job) error {
		if c.From != j.CommittedRound() {
			return fmt.Errorf("job %s: start from round %d: %w: the newest durable one is %d", c.Job, c.From, ErrStaleRound, j.CommittedRound())
		}
		j.Generation++
		j.Placement = c.Placement
		j.Pending = 0
		j.State, j.Reason = Starting, c.Reason
		return nil
	})
}

// BeginCommit names the round that becomes durable next. It replaces an older one that did not.
type BeginCommit struct {
	Job        string `json:"job"`
	Generation uint64 `json:"generation"`
	Round      uint64 `json:"round"`
}

func (c *BeginCommit) apply(s *State) (string, error) {
	return s.editLive(c.Job, c.Generation, func(j *Job) error {
		if newest := max(j.Pending, j.CommittedRound()); c.Round <= newest {
			return fmt.Errorf("job %s: round %d: %w: round %d is pending or durable already", c.Job, c.Round, ErrStaleRound, newest)
		}
		j.Pending = c.Round
		return nil
	})
}

// AbortCommit gives up the pending round: a shard could not be written.
type AbortCommit struct {
	Job        string `json:"job"`
	Generation uint64 `json:"generation"`
	Round      uint64 `json:"round"`
}

func (c *AbortCommit) apply(s *State) (string, error) {
	return s.editLive(c.Job, c.Generation, func(j *Job) error {
		if j.Pending != c.Round {
			return fmt.Errorf("job %s: round %d: %w: the pending round is %d", c.Job, c.Round, ErrStaleRound, j.Pending)
		}
		j.Pending = 0
		return nil
	})
}

// CommitRound makes the pending round durable: once applied, the job never falls behind it, unless a DiscardRound finds it
// damaged.
type CommitRound struct {
	Job        string   `json:"job"`
	Generation uint64   `json:"generation"`
	Round      uint64   `json:"round"`
	Manifest   Manifest `json:"manifest"`
	// Keep is how many durable rounds the job keeps, this one included. At least 1.
	Keep int `json:"keep"`
}

func (c *CommitRound) apply(s *State) (string, error) {
	return s.editLive(c.Job, c.Generation, func(j *Job) error {
		if j.Pending != c.Round || c.Round <= j.CommittedRound() {
			return fmt.Errorf("job %s: round %d: %w: round %d is pending, round %d durable",
				c.Job, c.Round, ErrStaleRound, j.Pending, j.CommittedRound())
		}
		m := &c.Manifest
		if m.Job != c.Job || m.Generation != c.Generation || m.Round != c.Round {
			return fmt.Errorf("job %s generation %d round %d: the manifest is of job %s generation %d round %d",
				c.Job, c.Generation, c.Round, m.Job, m.Generation, m.Round)
		}
		if err := m.Validate(); err != nil {
			return err
		}
		if c.Keep < 1 {
			return fmt.Errorf("job %s: keep is %d: at least 1 durable round", c.Job, c.Keep)
		}
		j.Pending = 0
		j.extend(m)
		j.Committed = append(slices.Clone(j.Committed), m)
		j.Committed = j.Committed[max(0, len(j.Committed)-c.Keep):]
		return nil
	})
}

// EndJob records that a job is done or has failed.
type EndJob struct {
	Job        string    `json:"job"`
	Generation uint64    `json:"generation"`
	State      JobState  `json:"state"` // Done or Failed
	Reason     string    `json:"reason"`
	At         time.Time `json:"at"` // the proposer's clock
}

func (c *EndJob) apply(s *State) (string, error) {
	if c.State != Done && c.State != Failed {
		return c.Job, fmt.Errorf("job %s: state %q: done or failed", c.Job, string(c.State))
	}
	return s.editLive(c.Job, c.Generation, func(j *Job) error {
		j.end(c.State, c.Reason, c.At)
		return nil
	})
}

// CancelJob ends a job because somebody wants it to, in whatever generation it is.
type CancelJob struct {
	Job    string    `json:"job"`
	Reason string    `json:"reason"`
	At     time.Time `json:"at"` // the proposer's clock
}

func (c *CancelJob) apply(s *State) (string, error) {
	return s.edit(c.Job, func(j *Job) error {
		if j.State.Ended() {
			return fmt.Errorf("job %s is %s: %w", c.Job, j.State, ErrEnded)
		}
		j.end(Cancelled, c.Reason, c.At)
		return nil
	})
}

// end ends the job. Its durable rounds stay, for export and for a new start.
func (j *Job) end(state JobState, reason string, at time.Time) {
	at = at.UTC()
	j.State, j.Reason, j.Ended, j.Pending = state, reason, &at, 0
}

// RequestCancel records that somebody wants a job to end, so that a new leader goes on ending it. Asking again changes
// nothing.
type RequestCancel struct {
	Job    string `json:"job"`
	Reason string `json:"reason"`
	By     string `json:"by,omitempty"` // who, for people
}

func (c *RequestCancel) apply(s *State) (string, error) {
	return s.edit(c.Job, func(j *Job) error {
		if j.State.Ended() {
			return fmt.Errorf("job %s is %s: %w", c.Job, j.State, ErrEnded)
		}
		if !j.Cancelling {
			j.Cancelling, j.Reason, j.CancelledBy = true, c.Reason, c.By
		}
		return nil
	})
}

// DiscardRound takes a durable round back whose shards no node can give whole any more. The job then resumes from the one
// before it, or from the start.
type DiscardRound struct {
	Job        string `json:"job"`
	Generation uint64 `json:"generation"`
	Round      uint64 `json:"round"`
	Reason     string `json:"reason"` // which shard, and what is wrong with it
}

func (c *DiscardRound) apply(s *State) (string, error) {
	return s.editLive(c.Job, c.Generation, func(j *Job) error {
		at := slices.IndexFunc(j.Committed, func(m *Manifest) bool { return m.Round == c.Round })
		if at < 0 {
			return fmt.Errorf("job %s: round %d: %w: it is not one of the durable rounds", c.Job, c.Round, ErrStaleRound)
		}
		j.Committed = slices.Delete(slices.Clone(j.Committed), at, at+1)
		j.cutLineage()
		j.Reason = c.Reason
		return nil
	})
}

// BeginTuning says that a job's open counts are being measured: it is tuning until ResolveJob. A tuning that was lost with its
// process or its leader begins again.
type BeginTuning struct {
	Job        string `json:"job"`
	Generation uint64 `json:"generation"`
	Reason     string `json:"reason"`
}

func (c *BeginTuning) apply(s *State) (string, error) {
	return s.editLive(c.Job, c.Generation, func(j *Job) error {
		if j.State != Queued && j.State != Tuning {
			return fmt.Errorf("job %s is %s: only a queued job is tuned", c.Job, j.State)
		}
		j.State, j.Reason = Tuning, c.Reason
		return nil
	})
}

// ResolveJob ends a tuning: the job is queued with what was chosen.
type ResolveJob struct {
	Job        string `json:"job"`
	Generation uint64 `json:"generation"`
	// Spec takes the place of SubmitJob's; every count in it is resolved.
	Spec json.RawMessage `json:"spec"`
	// Report is what the choice was made from, in short; the coordinator's own.
	Report json.RawMessage `json:"report"`
	// ReportDigest names the whole report, a file of the job's directory.
	ReportDigest shard.Digest `json:"report_digest,omitempty"`
	Reason       string       `json:"reason"`
}

func (c *ResolveJob) apply(s *State) (string, error) {
	return s.editLive(c.Job, c.Generation, func(j *Job) error {
		if j.State != Tuning {
			return fmt.Errorf("job %s is %s: only a job that is tuning can be resolved", c.Job, j.State)
		}
		if len(c.Spec) == 0 {
			return fmt.Errorf("job %s: no spec: the resolved one takes the place of the admitted", c.Job)
		}
		j.Spec, j.Report, j.ReportDigest = c.Spec, c.Report, c.ReportDigest
		j.State, j.Reason = Queued, c.Reason
		return nil
	})
}

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
	// Spec, unless empty, takes the place of the job's, which has ended or is queued: it goes on with other counts. What a tuning found is
	// then forgotten.
	Spec json.RawMessage `json:"spec,omitempty"`
	// Was is the state of the job that somebody wants to go on. If it had ended it must have ended still, and if not it must not have, and must not be
	// about to be cancelled. Empty: neither is looked at.
	Was JobState `json:"was,omitempty"`
}

// ErrNothingToResume rejects a ResumeJob; the error says why.
var ErrNothingToResume = errors.New("nothing to resume from")

// ErrChanged rejects a ResumeJob of a job that somebody else has resumed or cancelled meanwhile.
var ErrChanged = errors.New("somebody else has just changed it")

// at is where the job keeps the round that it is to go on from; negative where it does not.
func (c *ResumeJob) at(j *Job) int {
	return slices.IndexFunc(j.Committed, func(m *Manifest) bool { return m.Round == c.Round })
}

// Check says why the command would be rejected for a job as it is.
func (c *ResumeJob) Check(j *Job) error {
	switch {
	case c.Generation != j.Generation:
		return fmt.Errorf("job %s: generation %d, now %d: %w", c.Job, c.Generation, j.Generation, ErrStaleGeneration)
	case c.Was != "" && c.Was.Ended() != j.State.Ended():
		return fmt.Errorf("job %s was %s, and is %s: %w", c.Job, c.Was, j.State, ErrChanged)
	case c.Was != "" && !j.State.Ended() && j.Cancelling:
		return fmt.Errorf("job %s is being cancelled: %w", c.Job, ErrChanged)
	case j.State == Done:
		return fmt.Errorf("job %s is done: %w: %s", c.Job, ErrNothingToResume, j.Reason)
	case len(c.Spec) > 0 && !j.State.Ended() && j.State != Queued:
		return fmt.Errorf("job %s is %s: its spec changes only while it is queued, or has ended", c.Job, j.State)
	case c.FromStart && c.Round > 0:
		return fmt.Errorf("job %s: round %d and from the start: only one of them", c.Job, c.Round)
	case !c.FromStart && c.Round > 0 && c.at(j) < 0:
		return fmt.Errorf("job %s: %w: round %d is not kept; kept are %v", c.Job, ErrNothingToResume, c.Round, rounds(j.Committed))
	case !c.FromStart && c.Round == 0 && j.State.Ended() && len(j.Committed) == 0:
		return fmt.Errorf("job %s: %w: no round was committed", c.Job, ErrNothingToResume)
	}
	return nil
}

func (c *ResumeJob) apply(s *State) (string, error) {
	return s.edit(c.Job, func(j *Job) error {
		if err := c.Check(j); err != nil {
			return err
		}
		switch {
		case c.FromStart:
			j.Committed = nil
		case c.Round > 0:
			j.Committed = slices.Clone(j.Committed[:c.at(j)+1])
		}
		j.cutLineage()
		j.Pending, j.Reason = 0, c.Reason
		if len(c.Spec) > 0 {
			j.Spec, j.Report, j.ReportDigest = c.Spec, nil, ""
		}
		if j.State.Ended() {
			j.State, j.Ended, j.Cancelling, j.CancelledBy = Queued, nil, false, ""
		}
		return nil
	})
}

// rounds lists the numbers of durable rounds.
func rounds(all []*Manifest) []uint64 {
	numbers := make([]uint64, len(all))
	for i, m := range all {
		numbers[i] = m.Round
	}
	return numbers
}

// RestoreJob puts a job back that the replicated state has lost, as it was last recorded elsewhere. Later jobs get higher numbers.
type RestoreJob struct {
	Saved Job `json:"saved"`
}

func (c *RestoreJob) apply(s *State) (string, error) {
	j := &c.Saved
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
