package cluster

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/avgpipe/avgpipe/internal/shard"
)

// Command is a change of the replicated state. The set is closed: table commands lists every kind.
type Command interface {
	// Kind is the command's name in the log.
	Kind() string
	// apply changes s, which nobody else sees yet, and returns the job it was about. After an error s is thrown away.
	apply(s *State) (job string, err error)
}

// commands is every kind of command that this program understands.
var commands = map[string]func() Command{
	(*SubmitJob)(nil).Kind():       func() Command { return new(SubmitJob) },
	(*SetState)(nil).Kind():        func() Command { return new(SetState) },
	(*BeginGeneration)(nil).Kind(): func() Command { return new(BeginGeneration) },
	(*BeginCommit)(nil).Kind():     func() Command { return new(BeginCommit) },
	(*AbortCommit)(nil).Kind():     func() Command { return new(AbortCommit) },
	(*CommitRound)(nil).Kind():     func() Command { return new(CommitRound) },
	(*EndJob)(nil).Kind():          func() Command { return new(EndJob) },
	(*CancelJob)(nil).Kind():       func() Command { return new(CancelJob) },
	(*RequestCancel)(nil).Kind():   func() Command { return new(RequestCancel) },
	(*DiscardRound)(nil).Kind():    func() Command { return new(DiscardRound) },
	(*BeginTuning)(nil).Kind():     func() Command { return new(BeginTuning) },
	(*ResolveJob)(nil).Kind():      func() Command { return new(ResolveJob) },
	(*ResumeJob)(nil).Kind():       func() Command { return new(ResumeJob) },
	(*RestoreJob)(nil).Kind():      func() Command { return new(RestoreJob) },
	(*RemoveJob)(nil).Kind():       func() Command { return new(RemoveJob) },
}

// CommandVersion is the version of the command format that this program writes, and the newest it reads. It grows with every change that
// an older program would apply differently.
const CommandVersion = 1

// commandMagic starts every command in the log.
const commandMagic = "AVGC"

// envelope is a command in the log, after the magic.
type envelope struct {
	V    int    `json:"v"`
	Kind string `json:"kind"`
	// By is the version of the program that wrote it, for people.
	By string `json:"by,omitempty"`
	// Ignorable says that a program which does not know the kind, or the version, goes on without it: it changes nothing that others depend on.
	Ignorable bool            `json:"ignorable,omitempty"`
	Body      json.RawMessage `json:"body"`
}

// EncodeCommand gives the command's bytes in the log (docs/formats.md). by is the version of this program.
func EncodeCommand(c Command, by string) ([]byte, error) {
	body, err := json.Marshal(c)
	if err != nil {
		return nil, fmt.Errorf("encode command %s: %w", c.Kind(), err)
	}
	data, err := json.Marshal(envelope{V: CommandVersion, Kind: c.Kind(), By: by, Body: body})
	if err != nil {
		return nil, fmt.Errorf("encode command %s: %w", c.Kind(), err)
	}
	return append([]byte(commandMagic), data...), nil
}

// decodeCommand reads a command; nil without an error if it may be ignored. Every error says that this program must not go on.
func decodeCommand(data []byte) (Command, error) {
	text, ok := bytes.CutPrefix(data, []byte(commandMagic))
	if !ok {
		return nil, fmt.Errorf("it starts with %q, expected %q", data[:min(len(data), len(commandMagic))], commandMagic)
	}
	var e envelope
	if err := json.Unmarshal(text, &e); err != nil {
		return nil, fmt.Errorf("its envelope: %w", err)
	}
	by := "an avgpiped that does not say its version"
	if e.By != "" {
		by = "avgpiped " + e.By
	}
	build, known := commands[e.Kind]
	switch {
	case known && e.V <= CommandVersion:
	case e.Ignorable:
		return nil, nil
	case known:
		return nil, fmt.Errorf("command %q has version %d, written by %s, and this program knows versions up to %d", e.Kind, e.V, by, CommandVersion)
	default:
		return nil, fmt.Errorf("command %q of version %d, written by %s, is not known to this program", e.Kind, e.V, by)
	}
	c := build()
	if err := json.Unmarshal(e.Body, c); err != nil {
		return nil, fmt.Errorf("command %q of version %d, written by %s: %w", e.Kind, e.V, by, err)
	}
	return c, nil
}

// RefusedError reports an entry that this program cannot apply. To go on without it would give another state than on the nodes that
// can: nothing after it may be applied.
type RefusedError struct {
	Index   uint64
	Problem error
}

func (e *RefusedError) Error() string {
	return fmt.Sprintf("entry %d of the log is refused, and all after it: %v: start the avgpiped that wrote it, or a newer one", e.Index, e.Problem)
}

// Unwrap gives the cause.
func (e *RefusedError) Unwrap() error { return e.Problem }

// ApplyEntry applies the entry of the log that holds a command. It is a pure function, like Apply. An entry that this program does not
// understand is a *RefusedError, with the state as it was, unless the entry says that it may be ignored.
func (s *State) ApplyEntry(index uint64, data []byte) (*State, Result, error) {
	c, err := decodeCommand(data)
	if err != nil {
		return s, Result{}, &RefusedError{index, err}
	}
	if c == nil {
		next := *s
		next.Index = index
		next.Unknown++
		return &next, Result{Index: index, Unknown: true}, nil
	}
	return s.Apply(index, c)
}

// SubmitJob records a new job, queued. Result.Job is its ID.
type SubmitJob struct {
	Name      string    `json:"name"`
	Source    string    `json:"source,omitempty"` // of older programs
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
}

// Kind implements Command.
func (*SubmitJob) Kind() string { return "submit_job" }

func (c *SubmitJob) apply(s *State) (string, error) {
	s.NextJob = max(s.NextJob, c.After+1)
	id := s.newID()
	s.jobs[id] = &Job{
		ID: id, Name: c.Name, Source: c.Source, SourceDigest: c.SourceDigest, File: c.File, Set: slices.Clone(c.Set), Base: c.Base, Owner: c.Owner,
		Spec: slices.Clone(c.Spec), Submitted: c.Submitted.UTC(), State: Queued, Reason: "waits for a place",
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

// Kind implements Command.
func (*SetState) Kind() string { return "set_state" }

func (c *SetState) apply(s *State) (string, error) {
	if !slices.Contains([]JobState{Queued, Starting, Running}, c.State) {
		return c.Job, fmt.Errorf("job %s: state %q: one of queued, starting, running", c.Job, string(c.State))
	}
	j, err := s.editLive(c.Job, c.Generation)
	if err != nil {
		return c.Job, err
	}
	j.State, j.Reason = c.State, c.Reason
	return c.Job, nil
}

// BeginGeneration gives a job a new placement: its generation grows by one, whatever was being committed is abandoned, and it
// is starting. Result.Generation is the new one.
type BeginGeneration struct {
	Job        string          `json:"job"`
	Generation uint64          `json:"generation"` // the one that the decision was made in; the new one is one more
	Placement  json.RawMessage `json:"placement"`
	From       *uint64         `json:"from,omitempty"` // the durable round that it starts from; 0: from the start. Nil: older than this field
	Reason     string          `json:"reason"`
}

// Kind implements Command.
func (*BeginGeneration) Kind() string { return "begin_generation" }

func (c *BeginGeneration) apply(s *State) (string, error) {
	j, err := s.editLive(c.Job, c.Generation)
	if err != nil {
		return c.Job, err
	}
	if c.From != nil && *c.From != j.CommittedRound() {
		return c.Job, fmt.Errorf("job %s: start from round %d: %w: the newest durable one is %d", c.Job, *c.From, ErrStaleRound, j.CommittedRound())
	}
	j.Generation++
	j.Placement = slices.Clone(c.Placement)
	j.Pending = 0
	j.State, j.Reason = Starting, c.Reason
	return c.Job, nil
}

// BeginCommit names the round that becomes durable next. It replaces an older one that did not.
type BeginCommit struct {
	Job        string `json:"job"`
	Generation uint64 `json:"generation"`
	Round      uint64 `json:"round"`
}

// Kind implements Command.
func (*BeginCommit) Kind() string { return "begin_commit" }

func (c *BeginCommit) apply(s *State) (string, error) {
	j, err := s.editLive(c.Job, c.Generation)
	if err != nil {
		return c.Job, err
	}
	if newest := max(j.Pending, j.CommittedRound()); c.Round <= newest {
		return c.Job, fmt.Errorf("job %s: round %d: %w: round %d is pending or durable already", c.Job, c.Round, ErrStaleRound, newest)
	}
	j.Pending = c.Round
	return c.Job, nil
}

// AbortCommit gives up the pending round: a shard could not be written.
type AbortCommit struct {
	Job        string `json:"job"`
	Generation uint64 `json:"generation"`
	Round      uint64 `json:"round"`
}

// Kind implements Command.
func (*AbortCommit) Kind() string { return "abort_commit" }

func (c *AbortCommit) apply(s *State) (string, error) {
	j, err := s.editLive(c.Job, c.Generation)
	if err != nil {
		return c.Job, err
	}
	if j.Pending != c.Round {
		return c.Job, fmt.Errorf("job %s: round %d: %w: the pending round is %d", c.Job, c.Round, ErrStaleRound, j.Pending)
	}
	j.Pending = 0
	return c.Job, nil
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

// Kind implements Command.
func (*CommitRound) Kind() string { return "commit_round" }

func (c *CommitRound) apply(s *State) (string, error) {
	j, err := s.editLive(c.Job, c.Generation)
	if err != nil {
		return c.Job, err
	}
	if j.Pending != c.Round || c.Round <= j.CommittedRound() {
		return c.Job, fmt.Errorf("job %s: round %d: %w: round %d is pending, round %d durable",
			c.Job, c.Round, ErrStaleRound, j.Pending, j.CommittedRound())
	}
	m := &c.Manifest
	if m.Job != c.Job || m.Generation != c.Generation || m.Round != c.Round {
		return c.Job, fmt.Errorf("job %s generation %d round %d: the manifest is of job %s generation %d round %d",
			c.Job, c.Generation, c.Round, m.Job, m.Generation, m.Round)
	}
	if err := m.Validate(); err != nil {
		return c.Job, err
	}
	if c.Keep < 1 {
		return c.Job, fmt.Errorf("job %s: keep is %d: at least 1 durable round", c.Job, c.Keep)
	}
	j.Pending = 0
	j.Committed = append(slices.Clone(j.Committed), m.clone())
	j.Committed = j.Committed[max(0, len(j.Committed)-c.Keep):]
	return c.Job, nil
}

// EndJob records that a job is done or has failed.
type EndJob struct {
	Job        string    `json:"job"`
	Generation uint64    `json:"generation"`
	State      JobState  `json:"state"` // Done or Failed
	Reason     string    `json:"reason"`
	At         time.Time `json:"at"` // the proposer's clock
}

// Kind implements Command.
func (*EndJob) Kind() string { return "end_job" }

func (c *EndJob) apply(s *State) (string, error) {
	if c.State != Done && c.State != Failed {
		return c.Job, fmt.Errorf("job %s: state %q: done or failed", c.Job, string(c.State))
	}
	j, err := s.editLive(c.Job, c.Generation)
	if err != nil {
		return c.Job, err
	}
	j.end(c.State, c.Reason, c.At)
	return c.Job, nil
}

// CancelJob ends a job because somebody wants it to, in whatever generation it is.
type CancelJob struct {
	Job    string    `json:"job"`
	Reason string    `json:"reason"`
	At     time.Time `json:"at"` // the proposer's clock
}

// Kind implements Command.
func (*CancelJob) Kind() string { return "cancel_job" }

func (c *CancelJob) apply(s *State) (string, error) {
	j, err := s.edit(c.Job)
	if err != nil {
		return c.Job, err
	}
	if j.State.Ended() {
		return c.Job, fmt.Errorf("job %s is %s: %w", c.Job, j.State, ErrEnded)
	}
	j.end(Cancelled, c.Reason, c.At)
	return c.Job, nil
}

// end ends the job. Its durable rounds stay, for export and for a new start. The file's text goes: the spec says all of it.
func (j *Job) end(state JobState, reason string, at time.Time) {
	at = at.UTC()
	j.State, j.Reason, j.Ended, j.Pending, j.Source = state, reason, &at, 0, ""
}
