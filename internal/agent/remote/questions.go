package remote

import (
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"

	"github.com/avgpipe/avgpipe/internal/agent"
	"github.com/avgpipe/avgpipe/internal/api"
	"github.com/avgpipe/avgpipe/internal/cluster"
	"github.com/avgpipe/avgpipe/internal/obstacle"
	"github.com/avgpipe/avgpipe/internal/shard"
	"github.com/avgpipe/avgpipe/internal/spec"
	"github.com/avgpipe/avgpipe/internal/worker/control"
)

// question is what a method is asked. Every one has the fields that it needs, and no others.
type question struct {
	Job        string                 `json:"job,omitempty"`
	Node       string                 `json:"node,omitempty"`
	Process    *agent.Process         `json:"process,omitempty"`
	Generation uint64                 `json:"generation,omitempty"`
	Assignment *control.Assignment    `json:"assignment,omitempty"`
	Tuning     *control.TuneRequest   `json:"tuning,omitempty"`
	Commit     *control.CommitRequest `json:"commit,omitempty"`
	Obstacle   *obstacle.Obstacle     `json:"obstacle,omitempty"`
	Lines      []logLine              `json:"lines,omitempty"`
	Record     *cluster.Job           `json:"record,omitempty"`
	Started    bool                   `json:"started,omitempty"`
	Reason     string                 `json:"reason,omitempty"`
	Status     *control.Status        `json:"status,omitempty"`
	Digest     shard.Digest           `json:"digest,omitempty"`
	Bytes      int64                  `json:"bytes,omitempty"`
	From       []string               `json:"from,omitempty"`
	Collection *shard.Collection      `json:"collection,omitempty"`
	Object     []byte                 `json:"object,omitempty"`
	Name       string                 `json:"name,omitempty"`
	Log        *api.LogRequest        `json:"log,omitempty"`
	Ended      bool                   `json:"ended,omitempty"`
	Spec       *spec.Spec             `json:"spec,omitempty"`
}

// logLine is a line for a job's log.
type logLine struct {
	Job     string          `json:"job"`
	Level   string          `json:"level"`
	Message string          `json:"message"`
	Fields  json.RawMessage `json:"fields,omitempty"` // an object
}

// What a question must have.
type needs uint

const (
	aJob needs = 1 << iota
	aProcess
	aDigest
)

// maxFrom bounds the nodes that a shard is fetched from.
const maxFrom = 1 << 10

// check refuses a question to a node that nobody may ask: a name in it becomes a path.
func (q *question) check(node string, n needs) error {
	job := func(name string, given bool) error {
		if !given {
			return nil
		}
		_, err := agent.ParseJob(name)
		return err
	}
	errs := []error{job(q.Job, n&aJob != 0 || q.Job != "")}
	if q.Assignment != nil {
		errs = append(errs, job(q.Assignment.JobID, true))
	}
	if q.Tuning != nil {
		errs = append(errs, job(q.Tuning.JobID, q.Tuning.JobID != ""))
	}
	if q.Record != nil {
		errs = append(errs, job(q.Record.ID, true))
	}
	for _, l := range q.Lines {
		errs = append(errs, job(l.Job, true))
	}
	if n&aProcess != 0 {
		errs = append(errs, q.checkProcess(node))
	}
	if n&aDigest != 0 {
		_, err := shard.ParseDigest(string(q.Digest))
		errs = append(errs, err)
	}
	if len(q.From) > maxFrom {
		errs = append(errs, fmt.Errorf("%d nodes to fetch from, %d at most", len(q.From), maxFrom))
	}
	if q.Bytes < 0 {
		errs = append(errs, fmt.Errorf("%d bytes", q.Bytes))
	}
	if q.Name != "" && filepath.Base(q.Name) != q.Name {
		errs = append(errs, fmt.Errorf("%.80q is no name of a file", q.Name))
	}
	return errors.Join(errs...)
}

// checkProcess refuses a process of another node, and what is none.
func (q *question) checkProcess(node string) error {
	p := q.Process
	if p == nil || p.ID.PID <= 1 {
		return errors.New("no process is named")
	}
	if p.Node != node {
		return fmt.Errorf("process %d of node %.80q: this is node %q", p.ID.PID, p.Node, node)
	}
	if p.Job == "" {
		return nil
	}
	_, err := agent.ParseJob(p.Job)
	return err
}
