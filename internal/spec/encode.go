package spec

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/avgpipe/avgpipe/job"
	"github.com/avgpipe/avgpipe/schedule"
	"github.com/avgpipe/avgpipe/tuner"
)

// Version is that of specs as they are written now, and the newest that is read.
const Version = 5

const (
	horizonVersion = 5 // before it, the prediction horizon of averaging was 1
	namedVersion   = 4 // before it, the job had the names that its Go fields had then
	oldestVersion  = 3 // see decision 0043
)

// Encode writes a spec for the replicated state.
func Encode(s *Spec) (json.RawMessage, error) {
	text, err := json.Marshal(s)
	if err != nil {
		return nil, fmt.Errorf("encode the spec of job %s: %w", s.Job.Name, err)
	}
	return text, nil
}

// Decode reads the spec of a job, and the report of its tuning.
func Decode(id string, text, tuned json.RawMessage) (*Spec, error) {
	s := &Spec{}
	if err := json.Unmarshal(text, s); err != nil {
		return nil, fmt.Errorf("job %s: decode its spec: %w", id, err)
	}
	var err error
	if s.Report, err = ReadReport(id, tuned); err != nil {
		return nil, err
	}
	return s, nil
}

// UnmarshalJSON reads a spec of any version into the form of this one. A field that no version has is an error.
func (s *Spec) UnmarshalJSON(text []byte) error {
	var written struct {
		Version int `json:"version"`
	}
	if err := json.Unmarshal(text, &written); err != nil {
		return err
	}
	if written.Version < oldestVersion || written.Version > Version {
		return fmt.Errorf("it has version %d, this program reads %d to %d", written.Version, oldestVersion, Version)
	}
	var err error
	if written.Version < namedVersion {
		if text, err = renamed(text); err != nil {
			return err
		}
	}
	type plain Spec                   // without this method
	out := plain{Job: *job.Default()} // of keys that did not exist when it was written
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
	s.placement, s.hostBytes = sync.OnceValue(s.place), sync.OnceValue(s.predictHost)
	return nil
}

// strict decodes JSON that has no field but those of the value.
func strict(text []byte, into any) error {
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	return d.Decode(into)
}

// oldNames are the names of fields of a job, in version 3, that are not today's in other letters.
var oldNames = map[string]string{
	"MicroBatches": "micro_batches", "TuningShare": "tuning_share", "TextPair": "text_pair", "LearningRate": "lr",
	"WeightDecay": "weight_decay", "ClipNorm": "clip_norm", "MinimumRatio": "min_lr_ratio", "MaxTime": "max_time",
	"EvalEvery": "eval_every", "EvalSamples": "eval_samples", "RateScale": "lr_scale", "CommitEvery": "commit_every",
}

// renamed gives a spec of version 3 the names, and its plan the form, of version 4.
func renamed(text []byte) ([]byte, error) {
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(text, &fields); err != nil {
		return nil, err
	}
	if old, ok := fields["job"]; ok {
		var j map[string]any
		d := json.NewDecoder(bytes.NewReader(old))
		d.UseNumber() // a seed may have more digits than a float64
		if err := d.Decode(&j); err != nil {
			return nil, err
		}
		var err error
		if fields["job"], err = json.Marshal(renameFields(j)); err != nil {
			return nil, err
		}
	}
	if old, ok := fields["plan"]; ok {
		var err error
		if fields["plan"], err = planLines(old); err != nil {
			return nil, err
		}
	}
	return json.Marshal(fields)
}

func renameFields(old map[string]any) map[string]any {
	out := make(map[string]any, len(old))
	for name, value := range old {
		if section, ok := value.(map[string]any); ok && name != "Config" { // of a model, whose names are its family's
			value = renameFields(section)
		}
		if today, ok := oldNames[name]; ok {
			name = today
		}
		out[strings.ToLower(name)] = value
	}
	return out
}

// planLines turns a plan of version 3, a list of operations for each device, into lines.
func planLines(old json.RawMessage) (json.RawMessage, error) {
	var rows [][]struct {
		Kind    schedule.Kind `json:"Kind"`
		Stage   int           `json:"Stage"`
		Micro   int           `json:"Micro"`
		Version int           `json:"Version"`
	}
	if err := json.Unmarshal(old, &rows); err != nil {
		return nil, err
	}
	plan := make(schedule.Plan, len(rows))
	for d, row := range rows {
		for _, op := range row {
			if op.Kind > schedule.Update {
				return nil, errors.New("the plan has an operation of an unknown kind")
			}
			plan[d] = append(plan[d], schedule.Op(op))
		}
	}
	return json.Marshal(plan.Lines())
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
