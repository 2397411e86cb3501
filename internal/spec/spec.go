package spec

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/avgpipe/avgpipe/internal/access"
	"github.com/avgpipe/avgpipe/internal/words"
	"github.com/avgpipe/avgpipe/job"
	"github.com/avgpipe/avgpipe/schedule"
	"github.com/avgpipe/avgpipe/stage/model"
	"github.com/avgpipe/avgpipe/tuner"
)

// Spec is an admitted job: what the replicated state keeps of it beside the file that it was read from. Every count is
// resolved, at the latest by a tuning, so a newer program runs the job as the one that admitted it meant it.
type Spec struct {
	Version    int             `json:"version"`    // specVersion
	Job        job.Job         `json:"job"`        // while it is open, what is to be chosen is 0, a schedule "auto"
	Model      json.RawMessage `json:"model"`      // its config.json, every field written out
	Task       string          `json:"task"`       // of the model
	Parameters int             `json:"parameters"` // trainable values, tied copies counted once
	Why        []string        `json:"why"`        // the automatic choices and their reasons
	Warnings   []string        `json:"warnings"`
	User       *access.User    `json:"user,omitempty"`   // whose rights open what the job names; nil (before version 3): the daemon's
	Retune     bool            `json:"retune,omitempty"` // measure even when a plan is cached
	Layout     *Layout         `json:"layout,omitempty"` // of a tuned job, and of emulated devices
	UserPlan   schedule.Plan   `json:"plan,omitempty"`   // that the user wrote, as it was when the job was submitted
	// Budget is how much the job trains on. Nil: the pipelines are to be measured first, or the worker finds out how long an epoch is.
	Budget *job.Budget `json:"budget,omitempty"`

	Report *tuner.Report // of a tuned job; it lies beside the spec in the replicated state
	device []int         // of each stage, once it was asked for
}

// Layout is what has no key in the job file and shapes the plan: chosen by tuning, or known of emulated devices.
type Layout struct {
	Costs       schedule.Costs `json:"costs"` // that the plan is generated from; without Forward: none
	PinnedLimit []int          `json:"pinned_limit,omitempty"`
	Split       [][2]int       `json:"split"` // of each stage, its first layer and the one after its last; nil: by operations
}

// The versions of the form that specs are kept in.
const (
	Version       = 3
	scaledVersion = 3 // averaging has a factor of the learning rate; it is 1 in jobs of before; a spec says whose rights count
	BudgetVersion = 3 // before it, train.steps were those of each pipeline
	oldestVersion = 1 // every count was resolved at admission; since 2 a job may be open
)

// Encode writes a spec for the replicated state.
func Encode(s *Spec) (json.RawMessage, error) {
	text, err := json.Marshal(s)
	if err != nil {
		return nil, fmt.Errorf("encode the spec of job %s: %w", s.Job.Name, err)
	}
	return text, nil
}

// Decode reads the spec of a job.
func Decode(id string, text, tuned json.RawMessage) (*Spec, error) {
	s := Spec{Job: *job.Default()} // of keys that did not exist when it was written
	if err := json.Unmarshal(text, &s); err != nil {
		return nil, fmt.Errorf("job %s: decode its spec: %w", id, err)
	}
	if s.Version < oldestVersion || s.Version > Version {
		return nil, fmt.Errorf("job %s: its spec has version %d, this program reads %d to %d", id, s.Version, oldestVersion, Version)
	}
	if s.Version < scaledVersion {
		s.Job.Averaging.RateScale = 1
	}
	if s.Budget == nil {
		s.setBudget()
	}
	report, err := readReport(id, tuned)
	if err != nil {
		return nil, err
	}
	s.Report = report
	return &s, nil
}

// setBudget resolves how much the job trains on, once its pipelines are known, and says what that is for each.
func (s *Spec) setBudget() (why string) {
	switch {
	case s.Job.Pipelines == job.Auto:
		return ""
	case s.Version < BudgetVersion:
		s.Budget = s.Job.PerPipeline()
	default:
		s.Budget = s.Job.Resolved(0)
	}
	if s.Budget == nil {
		return fmt.Sprintf("budget %s: how many samples that is, is known once the data are open", s.Job.Train.Budget())
	}
	why = fmt.Sprintf("budget %s: %d samples, %s of each pipeline", s.Job.Train.Budget(), s.Budget.Samples, words.Count(int(s.Budget.Steps), "step"))
	if s.Budget.Samples != s.Job.Wanted(0) {
		why += ", rounded up to whole rounds"
	}
	return why
}

// warnOfRounds warns where a job ends before its first commit would be due.
func (s *Spec) warnOfRounds() {
	if s.Budget == nil {
		return
	}
	if rounds := s.Budget.Steps / uint64(s.Job.Averaging.Tau); uint64(s.Job.Center.CommitEvery) > rounds {
		s.Warnings = append(s.Warnings, fmt.Sprintf(
			"center.commit_every is %d and the job has %d rounds: only the last one is committed, so a crash costs the whole run",
			s.Job.Center.CommitEvery, rounds))
	}
}

// Plan is the plan that the user wrote, or generates the job's, which a proof precedes (schedule.Generate). That one is not kept: it
// grows with stages times micro-batches, and Raft's log is for small things.
func (s *Spec) Plan() (schedule.Plan, string, error) {
	if s.UserPlan != nil {
		return s.UserPlan, "as the file has it", nil
	}
	r := schedule.Request{Devices: int(s.Job.Stages), Chunks: int(s.Job.Chunks), MicroBatches: int(s.Job.MicroBatches)}
	if s.Layout != nil {
		r.InFlightLimit = s.Layout.PinnedLimit
		if s.Layout.Costs.Forward != nil {
			r.Costs = &s.Layout.Costs
		}
	}
	return schedule.Generate(s.Job.Schedule, r)
}

// Stages is how many the model is cut into.
func (s *Spec) Stages() int { return int(s.Job.Stages) * max(1, int(s.Job.Chunks)) }

// Placement is the device of each stage; nil where there is no plan. The caller of the first call is alone with the spec.
func (s *Spec) Placement() []int {
	if s.device == nil {
		if plan, _, err := s.Plan(); err == nil {
			s.device = plan.Placement()
		}
	}
	return s.device
}

// Cores is how many of a node's cores the job computes on: a device for each stage. While it is not known how many that will
// be, tuning tries all that the job may have.
func (s *Spec) Cores(node int) int {
	if !s.Job.Open() {
		return int(s.Job.Stages) * int(s.Job.Devices.CPU.Threads)
	}
	devices := s.Job.Stages
	if devices == job.Auto {
		devices = s.Job.Offered()
	}
	if devices == job.Auto || s.Job.Devices.CPU.Threads == job.Auto {
		return node
	}
	return min(int(devices)*int(s.Job.Devices.CPU.Threads), node)
}

// Averaging describes the averaging method for people: "elastic pull=predicted alpha=1 tau=1 lr x1.41". Where the number of
// pipelines decides and is not known yet, it says auto.
func (s *Spec) Averaging() string {
	a := s.Job.Averaging
	alpha, rate := fmt.Sprintf("alpha=%.3g", a.Alpha), fmt.Sprintf("lr x%.3g", a.RateScale)
	if a.Alpha == 0 {
		alpha = "alpha=auto"
	}
	if a.RateScale == job.AutoFactor {
		rate = "lr x auto"
	}
	return strings.Join([]string{a.Method, "pull=" + a.Pull, alpha, fmt.Sprintf("tau=%d", a.Tau), rate}, " ")
}

// TaskName is what the samples of the job are.
func (s *Spec) TaskName() string {
	if s.Task == "" { // admitted when there was no other
		return string(model.Language)
	}
	return s.Task
}
