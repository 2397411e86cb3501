package cluster

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/avgpipe/avgpipe/internal/shard"
)

// JobState is where a job stands.
type JobState string

// The states of a job. Queued -> Starting (BeginGeneration) -> Running -> Done | Failed | Cancelled. A lost worker takes a
// running job back to Starting with the next generation, and ResumeJob a failed or cancelled one to Queued. A job whose counts are to be measured goes from Queued to Tuning
// (BeginTuning) and back (ResolveJob) first.
const (
	Queued    JobState = "queued"
	Tuning    JobState = "tuning"
	Starting  JobState = "starting"
	Running   JobState = "running"
	Done      JobState = "done"
	Failed    JobState = "failed"
	Cancelled JobState = "cancelled"
)

// Ended reports whether a job in this state is over.
func (s JobState) Ended() bool { return s == Done || s == Failed || s == Cancelled }

// Job is what the cluster has agreed on about one job.
type Job struct {
	ID        string    `json:"id"`
	Name      string    `json:"name"`
	File      string    `json:"file"`          // its path, for messages
	Set       []string  `json:"set,omitempty"` // overrides
	Base      string    `json:"base"`          // directory that relative paths start from
	Owner     uint32    `json:"owner"`         // user id of the submitter
	Key       string    `json:"key,omitempty"` // what the submitter calls the submission
	Submitted time.Time `json:"submitted"`     // by the clock of the node that took the submission
	// SourceDigest names the job file's text, a file of the job's directory.
	SourceDigest shard.Digest `json:"source_digest,omitempty"`
	// Spec is the job as it was admitted, or resolved since; the coordinator's own. A newer program runs it as the older one meant it.
	Spec json.RawMessage `json:"spec,omitempty"`
	// Report is what tuning found, in short; nil of a job that was not tuned. The coordinator's own.
	Report json.RawMessage `json:"report,omitempty"`
	// ReportDigest names the whole report, a file of the job's directory; empty where Report is whole.
	ReportDigest shard.Digest `json:"report_digest,omitempty"`
	State        JobState     `json:"state"`
	Reason       string       `json:"reason"` // why it is in this state, for people
	// Ended is when it ended, by the clock of the proposer; nil until then.
	Ended *time.Time `json:"ended,omitempty"`
	// Cancelling says that somebody wants the job to end; it commits what it can, then CancelJob ends it.
	Cancelling bool `json:"cancelling,omitempty"`
	// CancelledBy is who does, for people.
	CancelledBy string `json:"cancelled_by,omitempty"`

	Generation uint64          `json:"generation"`          // grows by one with each placement; 0 before the first
	Placement  json.RawMessage `json:"placement,omitempty"` // of this generation; the coordinator's own

	Pending   uint64      `json:"pending"`             // the round being committed; 0: none
	Committed []*Manifest `json:"committed,omitempty"` // durable rounds, oldest first, the newest last
	// Lineage is what stands behind the newest of them, from the start on.
	Lineage []Stretch `json:"lineage,omitempty"`
}

// Repeats returns nil if a submission with the key of the job is the one that made it, or an error that wraps ErrKeyTaken.
func (j *Job) Repeats(c *SubmitJob) error {
	if j.SourceDigest != c.SourceDigest || j.Base != c.Base || !slices.Equal(j.Set, c.Set) {
		return fmt.Errorf("key %q: job %s was submitted with it, from another file, directory or overrides: %w", c.Key, j.ID, ErrKeyTaken)
	}
	return nil
}

// LastCommitted is the newest durable round, or nil.
func (j *Job) LastCommitted() *Manifest {
	if len(j.Committed) == 0 {
		return nil
	}
	return j.Committed[len(j.Committed)-1]
}

// CommittedRound is the newest durable round, or 0.
func (j *Job) CommittedRound() uint64 {
	if m := j.LastCommitted(); m != nil {
		return m.Round
	}
	return 0
}

// State is the replicated state. Values that State hands out are shared and must not be changed: applying a command makes a
// new State and leaves the old one as it was, so a reader may keep one for as long as it likes.
type State struct {
	Index   uint64          // of the last log entry applied
	NextJob uint64          // the number the next job gets, from 1
	Unknown uint64          // entries that were ignored
	jobs    map[string]*Job // by ID

	// Of a cluster. A command that changes a map clones it first.
	authority *Authority        // nil: the node is alone
	nodes     map[string]*Node  // by name
	tokens    map[string]*Token // by hash

	jobOrder  *order[*Job]  // nil while the state is made
	nodeOrder *order[*Node] // of nodes: most commands leave both as they are
}

// order holds what is sorted once for all that read it.
type order[T any] struct {
	once sync.Once
	all  []T
}

// of returns what is in a map, in order; o is nil where the map still changes.
func (o *order[T]) of(m map[string]T, compare func(a, b T) int) []T {
	if o == nil {
		return slices.SortedFunc(maps.Values(m), compare)
	}
	o.once.Do(func() { o.all = slices.SortedFunc(maps.Values(m), compare) })
	return slices.Clip(o.all)
}

// NewState is the state before the first command.
func NewState() *State {
	return &State{NextJob: 1, jobs: map[string]*Job{}, nodes: map[string]*Node{}, tokens: map[string]*Token{}}
}

// Job returns the job, or an error that wraps ErrNoJob.
func (s *State) Job(id string) (*Job, error) {
	j, ok := s.jobs[id]
	if !ok {
		return nil, fmt.Errorf("job %q: %w", id, ErrNoJob)
	}
	return j, nil
}

// Submitted is the job that somebody has submitted with a key; nil where there is none, and without a key.
func (s *State) Submitted(owner uint32, key string) *Job {
	if key == "" {
		return nil
	}
	for _, j := range s.Jobs() {
		if j.Owner == owner && j.Key == key {
			return j
		}
	}
	return nil
}

// Jobs are all jobs, in the order of submission. The slice is shared as well.
func (s *State) Jobs() []*Job {
	return s.jobOrder.of(s.jobs, func(a, b *Job) int { return cmp.Or(cmp.Compare(len(a.ID), len(b.ID)), cmp.Compare(a.ID, b.ID)) })
}

// Errors that a command may be rejected with; test with errors.Is.
var (
	ErrNoJob           = errors.New("no such job")
	ErrStaleGeneration = errors.New("stale generation")
	ErrEnded           = errors.New("the job has ended")
	ErrStaleRound      = errors.New("stale round")
)

// Result is what an applied command gave.
type Result struct {
	Index      uint64 // of the log entry
	Job        string // the job it was about
	Generation uint64 // of that job, afterwards
	Unknown    bool   // this program does not know the command, and it may be ignored
}

// Apply applies one command and returns the state after it. A rejected command returns an error, and the state but for
// Index as it was. Apply is a pure function: the same commands in the same order give the same states on every host.
func (s *State) Apply(index uint64, c Command) (*State, Result, error) {
	next, rejected := *s, *s
	next.Index, rejected.Index = index, index
	next.jobs, next.jobOrder = maps.Clone(s.jobs), nil
	id, err := c.apply(&next)
	next.jobOrder = &order[*Job]{}
	if err != nil {
		return &rejected, Result{Index: index, Job: id}, fmt.Errorf("%s: %w", Kind(c), err)
	}
	r := Result{Index: index, Job: id}
	if j := next.jobs[id]; j != nil {
		r.Generation = j.Generation
	}
	return &next, r, nil
}

// edit has change edit a copy of a job, which takes the job's place.
func (s *State) edit(id string, change func(j *Job) error) (string, error) {
	old, err := s.Job(id)
	if err != nil {
		return id, err
	}
	j := *old
	s.jobs[id] = &j
	return id, change(&j)
}

// editLive is edit for a job that has not ended and stands at the generation.
func (s *State) editLive(id string, generation uint64, change func(j *Job) error) (string, error) {
	return s.edit(id, func(j *Job) error {
		if j.State.Ended() {
			return fmt.Errorf("job %s is %s: %w", id, j.State, ErrEnded)
		}
		if generation != j.Generation {
			return fmt.Errorf("job %s: generation %d, now %d: %w", id, generation, j.Generation, ErrStaleGeneration)
		}
		return change(j)
	})
}
