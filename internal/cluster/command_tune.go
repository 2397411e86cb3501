package cluster

import (
	"encoding/json"
	"fmt"
	"slices"

	"github.com/avgpipe/avgpipe/internal/shard"
)

// BeginTuning says that a job's open counts are being measured: it is tuning until ResolveJob. A tuning that was lost with its
// process or its leader begins again.
type BeginTuning struct {
	Job        string `json:"job"`
	Generation uint64 `json:"generation"`
	Reason     string `json:"reason"`
}

// Kind implements Command.
func (*BeginTuning) Kind() string { return "begin_tuning" }

func (c *BeginTuning) apply(s *State) (string, error) {
	j, err := s.editLive(c.Job, c.Generation)
	if err != nil {
		return c.Job, err
	}
	if j.State != Queued && j.State != Tuning {
		return c.Job, fmt.Errorf("job %s is %s: only a queued job is tuned", c.Job, j.State)
	}
	j.State, j.Reason = Tuning, c.Reason
	return c.Job, nil
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

// Kind implements Command.
func (*ResolveJob) Kind() string { return "resolve_job" }

func (c *ResolveJob) apply(s *State) (string, error) {
	j, err := s.editLive(c.Job, c.Generation)
	if err != nil {
		return c.Job, err
	}
	if j.State != Tuning {
		return c.Job, fmt.Errorf("job %s is %s: only a job that is tuning can be resolved", c.Job, j.State)
	}
	if len(c.Spec) == 0 {
		return c.Job, fmt.Errorf("job %s: no spec: the resolved one takes the place of the admitted", c.Job)
	}
	j.Spec, j.Report, j.ReportDigest = slices.Clone(c.Spec), slices.Clone(c.Report), c.ReportDigest
	j.State, j.Reason = Queued, c.Reason
	return c.Job, nil
}
