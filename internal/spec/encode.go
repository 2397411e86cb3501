package spec

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"sync"

	"github.com/avgpipe/avgpipe/job"
	"github.com/avgpipe/avgpipe/schedule"
	"github.com/avgpipe/avgpipe/tuner"
)

// Version is the newest of specs, and the newest that is read.
const Version = 13

const (
	criticalVersion = 12 // of specs that leave the critical batch to a measurement, and nothing newer
	remoteVersion   = 11 // of specs that have something from elsewhere, and nothing newer
	fewerVersion    = 10 // of specs that have something of stages that were lost, or of groups of pipelines, and nothing newer
	plainVersion    = 9  // of specs that have nothing of the newer ones
	horizonVersion  = 5  // before it, the prediction horizon of averaging was 1
	namedVersion    = 4  // before it, the job had the names that its Go fields had then
	oldestVersion   = 3  // see decision 0043
)

// Encode writes a spec for the replicated state.
func Encode(s *Spec) (json.RawMessage, error) {
	text, err := json.Marshal(s)
	if err != nil {
		return nil, fmt.Errorf("encode the spec of job %s: %w", s.Job.Name, err)
	}
	return text, nil
}

// MarshalJSON writes a spec in the oldest version that has what it says, so that programs of the version before read all specs that use nothing new:
// nodes are upgraded one after the other.
func (s Spec) MarshalJSON() ([]byte, error) {
	type plain Spec // without this method
	out := plain(s)
	if out.Job.Groups == 1 {
		out.Job.Groups = 0 // which is not written
	}
	switch {
	case out.Version != Version || s.Job.Model.Python != "":
	case s.Job.Train.CriticalBatch == job.AutoCriticalBatch:
		out.Version = criticalVersion
	case len(s.Remote) > 0:
		out.Version = remoteVersion
	case s.Before != nil || s.Job.MinStages != 0 || out.Job.Groups != 0:
		out.Version = fewerVersion
	default:
		out.Version = plainVersion
	}
	return json.Marshal(&out)
}

// Decode reads the spec of a job, and the report of its tuning.
func Decode(id string, text, tuned json.RawMessage) (*Spec, error) {
	s := &Spec{}
	if err := json.Unmarshal(text, s); err != nil {
		return nil, fmt.Errorf("job %s: decode its spec: %w: a newer avgpiped than that of this node wrote it, as a rule: update this node", id, err)
	}
	var err error
	if s.Report, err = ReadReport(id, tuned); err != nil {
		return nil, err
	}
	return s, nil
}

// NewerError says that a later program wrote a spec.
type NewerError struct{ Version int }

func (e *NewerError) Error() string {
	return fmt.Sprintf("it has version %d, this program reads %d to %d", e.Version, oldestVersion, Version)
}

// UnmarshalJSON reads a spec of any version into the form of this one. A field that no version has is an error.
func (s *Spec) UnmarshalJSON(text []byte) error {
	var written struct {
		Version int             `json:"version"`
		Plan    json.RawMessage `json:"plan"`
	}
	if err := json.Unmarshal(text, &written); err != nil {
		return err
	}
	if written.Version > Version {
		return &NewerError{written.Version}
	}
	if written.Version < oldestVersion {
		return fmt.Errorf("it has version %d, this program reads %d to %d", written.Version, oldestVersion, Version)
	}
	var err error
	if written.Version < namedVersion {
		if text, err = renamed(text, written.Plan); err != nil {
			return err
		}
	}
	type plain Spec                   // without this method
	out := plain{Job: *job.Default()} // of keys that did not exist when it was written
	omitted(&out.Job)
	if err = strict(text, &out); err != nil {
		return err
	}
	*s = Spec(out)
	s.Version = Version
	if written.Version < horizonVersion {
		s.Job.Averaging.Horizon = 1
	}
	if s.Budget == nil {
		s.Budget = s.Job.Resolved(0)
	}
	s.placement, s.memory = sync.OnceValue(s.place), sync.OnceValue(s.predict)
	return nil
}

// omitted sets what a spec does not write where it is zero, and where a job file that does not say it has another value.
func omitted(j *job.Job) {
	a := &j.Averaging
	a.OuterMomentum, a.Mix, a.Prediction, a.Compensation, a.Precision = 0, 0, "", "", ""
	a.Tau = 1 // of every method, when it was left out
}

// strict decodes JSON that has no field but those of the value.
func strict(text []byte, into any) error {
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	return d.Decode(into)
}

// newNames turns the names of a job's fields in version 3 into today's, where these are not the same in other letters, which JSON takes
// for each other. No text of a value is one of them: it would have a backslash before its quote.
var newNames = strings.NewReplacer(
	`"MicroBatches":`, `"micro_batches":`, `"TuningShare":`, `"tuning_share":`, `"TextPair":`, `"text_pair":`, `"LearningRate":`, `"lr":`,
	`"WeightDecay":`, `"weight_decay":`, `"ClipNorm":`, `"clip_norm":`, `"MinimumRatio":`, `"min_lr_ratio":`, `"MaxTime":`, `"max_time":`,
	`"EvalEvery":`, `"eval_every":`, `"EvalSamples":`, `"eval_samples":`, `"RateScale":`, `"lr_scale":`, `"CommitEvery":`, `"commit_every":`,
)

// renamed gives a spec of version 3 the names of version 4, and its plan the form: lines, not a list of operations for each device.
func renamed(text []byte, operations json.RawMessage) ([]byte, error) {
	if len(operations) > 0 {
		var plan schedule.Plan
		if err := json.Unmarshal(operations, &plan); err != nil {
			return nil, err
		}
		lines, err := json.Marshal(plan)
		if err != nil {
			return nil, err
		}
		text = bytes.Replace(text, operations, lines, 1)
	}
	return []byte(newNames.Replace(string(text))), nil
}

// EncodeReport gives a report whole, and in short for the replicated state: without what only people read.
func EncodeReport(r *tuner.Report) (whole, short json.RawMessage, err error) {
	cut := *r
	cut.RunnersUp = nil
	whole, err = json.Marshal(r)
	if err == nil {
		short, err = json.Marshal(&cut)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("encode the report of a tuning: %w", err)
	}
	return whole, short, nil
}

// ReadReport reads the report of a tuned job; nil of one that was not tuned.
func ReadReport(id string, text json.RawMessage) (*tuner.Report, error) {
	if len(text) == 0 || string(text) == "null" { // as it is written where there is none
		return nil, nil
	}
	var r tuner.Report
	if err := json.Unmarshal(text, &r); err != nil {
		return nil, fmt.Errorf("job %s: decode the report of its tuning: %w", id, err)
	}
	if r.Version != tuner.ReportVersion {
		return nil, fmt.Errorf("job %s: the report of its tuning has version %d, this program reads %d", id, r.Version, tuner.ReportVersion)
	}
	return &r, nil
}

// Cache decodes each spec once. Its methods may be called concurrently; what it returns is shared and must not be changed.
type Cache struct{ specs sync.Map } // cached, by job

// cached is a spec and what it was decoded from.
type cached struct {
	text, report json.RawMessage
	spec         *Spec
}

// Get returns the spec of a job, as Decode does.
func (c *Cache) Get(id string, text, report json.RawMessage) (*Spec, error) {
	value, _ := c.specs.Load(id)
	if old, found := value.(cached); found && same(old.text, text) && same(old.report, report) {
		return old.spec, nil
	}
	s, err := Decode(id, text, report)
	if err != nil {
		return nil, err
	}
	if !s.Job.Open() {
		s.Placement() // before it is shared
	}
	c.specs.Store(id, cached{text, report, s})
	return s, nil
}

// same reports whether two texts are one in memory: the replicated state shares those that have not changed.
func same(a, b json.RawMessage) bool {
	return len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0])
}

// Forget drops a job.
func (c *Cache) Forget(id string) { c.specs.Delete(id) }
