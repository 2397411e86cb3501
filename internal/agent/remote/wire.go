package remote

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"

	"github.com/avgpipe/avgpipe/internal/agent"
	"github.com/avgpipe/avgpipe/internal/api"
	"github.com/avgpipe/avgpipe/internal/obstacle"
	"github.com/avgpipe/avgpipe/internal/shard"
)

// prefix starts every path; the number is the protocol's version.
const prefix = "/agent/v1/"

// termHeader is the header with the term of who leads, as who asks knows it.
const termHeader = "Avgpipe-Term"

// Bounds of what is sent, in bytes.
const (
	maxBody = 32 << 20  // of a question
	maxLine = 128 << 20 // of a line of an answer: a companion of a model in base64 is the longest
)

// line is one line of an answer. None of its fields is set while the agent works.
type line struct {
	Event  *agent.Event    `json:"event,omitempty"`
	Result json.RawMessage `json:"result,omitempty"` // the last line
	Error  *failure        `json:"error,omitempty"`  // the last line
}

// failure is an error with all that callers test for.
type failure struct {
	Text        string             `json:"text"`
	Status      int                `json:"status,omitempty"` // of an *api.Error
	NoProcess   bool               `json:"no_process,omitempty"`
	NotExist    bool               `json:"not_exist,omitempty"`
	Unreachable bool               `json:"unreachable,omitempty"` // a third node
	Refused     bool               `json:"refused,omitempty"`
	Cancelled   bool               `json:"cancelled,omitempty"`
	Obstacle    *obstacle.Obstacle `json:"obstacle,omitempty"`
	Damaged     *damaged           `json:"damaged,omitempty"`
}

// damaged is a shard.DamagedError.
type damaged struct {
	Path     string       `json:"path"`
	Expected shard.Digest `json:"expected"`
	Found    shard.Digest `json:"found"`
	Problem  string       `json:"problem,omitempty"`
}

// ErrRefused is wrapped by the errors of a node that does not serve who asks: it knows of a newer leader, or of none.
var ErrRefused = errors.New("the node does not serve who asks")

// failureOf takes an error apart.
func failureOf(err error) *failure {
	f := &failure{
		Text: err.Error(), NoProcess: errors.Is(err, agent.ErrNoProcess), NotExist: errors.Is(err, fs.ErrNotExist),
		Unreachable: errors.Is(err, agent.ErrUnreachable), Refused: errors.Is(err, ErrRefused),
		Cancelled: errors.Is(err, context.Canceled), Obstacle: obstacle.Of(err),
	}
	if d, ok := errors.AsType[*shard.DamagedError](err); ok {
		f.Damaged = &damaged{Path: d.Path, Expected: d.Expected, Found: d.Found}
		if d.Problem != nil {
			f.Damaged.Problem = d.Problem.Error()
		}
	}
	if e, ok := errors.AsType[*api.Error](err); ok {
		f.Status = e.Status
	}
	return f
}

// Error is an error of the agent of another node. errors.Is, errors.As and obstacle.Of find in it what they found there.
type Error struct {
	Node   string
	text   string
	causes []error
}

func (e *Error) Error() string { return "node " + e.Node + ": " + e.text }

// Unwrap gives what callers test for.
func (e *Error) Unwrap() []error { return e.causes }

// of puts an error together again.
func (f *failure) of(node string) error {
	e := &Error{Node: node, text: f.Text}
	for _, c := range []struct {
		is  bool
		err error
	}{
		{f.NoProcess, agent.ErrNoProcess},
		{f.NotExist, fs.ErrNotExist},
		{f.Unreachable, agent.ErrUnreachable},
		{f.Refused, ErrRefused},
		{f.Cancelled, context.Canceled},
	} {
		if c.is {
			e.causes = append(e.causes, c.err)
		}
	}
	if f.Obstacle != nil {
		e.causes = append(e.causes, &obstacle.Error{Obstacle: *f.Obstacle, Err: errors.New(f.Obstacle.Text)})
	}
	if d := f.Damaged; d != nil {
		damage := &shard.DamagedError{Path: d.Path, Expected: d.Expected, Found: d.Found}
		if d.Problem != "" {
			damage.Problem = errors.New(d.Problem)
		}
		e.causes = append(e.causes, damage)
	}
	if _, known := api.CodeOf(f.Status); known {
		e.causes = append(e.causes, api.Errorf(f.Status, "%s", f.Text))
	}
	return e
}
