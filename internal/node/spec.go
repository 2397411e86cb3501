package node

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/avgpipe/avgpipe/elastic"
	"github.com/avgpipe/avgpipe/job"
	"github.com/avgpipe/avgpipe/schedule"
	"github.com/avgpipe/avgpipe/stage/model"
)

// spec is an admitted job: what the replicated state keeps of it beside the file that it was read from. Every count is
// resolved, so a newer program runs the job as the one that admitted it meant it.
type spec struct {
	Version    int             `json:"version"` // specVersion
	Job        job.Job         `json:"job"`
	Model      json.RawMessage `json:"model"`      // its config.json, every field written out
	Task       string          `json:"task"`       // of the model
	Parameters int             `json:"parameters"` // trainable values, tied copies counted once
	Why        []string        `json:"why"`        // the automatic choices and their reasons
	Warnings   []string        `json:"warnings"`
}

const specVersion = 1

func encodeSpec(s *spec) (json.RawMessage, error) {
	text, err := json.Marshal(s)
	if err != nil {
		return nil, fmt.Errorf("encode the spec of job %s: %w", s.Job.Name, err)
	}
	return text, nil
}

// readSpec reads the spec of a job.
func readSpec(j *elastic.Job) (*spec, error) {
	s := spec{Job: *job.Default()} // of keys that did not exist when it was written
	if err := json.Unmarshal(j.Spec, &s); err != nil {
		return nil, fmt.Errorf("job %s: decode its spec: %w", j.ID, err)
	}
	if s.Version != specVersion {
		return nil, fmt.Errorf("job %s: its spec has version %d, this program reads %d", j.ID, s.Version, specVersion)
	}
	return &s, nil
}

// plan generates the job's plan, which a proof precedes (schedule.Generate). It is not kept: it grows with stages times
// micro-batches, and Raft's log is for small things.
func (s *spec) plan() (schedule.Plan, string, error) {
	return schedule.Generate(s.Job.Schedule, schedule.Request{Stages: int(s.Job.Stages), MicroBatches: int(s.Job.MicroBatches)})
}

// cores is how many the job computes on: a device for each stage.
func (s *spec) cores() int { return int(s.Job.Stages) * int(s.Job.Devices.CPU.Threads) }

// averaging describes the averaging method for people: "elastic pull=old alpha=0.25 tau=1".
func (s *spec) averaging() string {
	a := s.Job.Averaging
	return strings.Join([]string{a.Method, "pull=" + a.Pull, fmt.Sprintf("alpha=%.3g", a.Alpha), fmt.Sprintf("tau=%d", a.Tau)}, " ")
}

// task is what the samples of the job are.
func (s *spec) task() string {
	if s.Task == "" { // admitted when there was no other
		return string(model.Language)
	}
	return s.Task
}

// placement is where a generation of a job runs; the replicated state carries it.
type placement struct {
	Node  string `json:"node"`
	Cores []int  `json:"cores"` // that its devices are pinned to; empty: none in particular
}

func readPlacement(j *elastic.Job) (placement, error) {
	var p placement
	if len(j.Placement) == 0 {
		return p, nil
	}
	if err := json.Unmarshal(j.Placement, &p); err != nil {
		return p, fmt.Errorf("job %s: decode its placement: %w", j.ID, err)
	}
	return p, nil
}
