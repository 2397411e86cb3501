package spec

import (
	"encoding/json"
	"math"
	"testing"

	"github.com/avgpipe/avgpipe/job"
)

// TestJobsKeepTheAveragingTheyWereAdmittedWith: jobs of specs before version 5 have a horizon of 1, whatever the defaults are now.
func TestJobsKeepTheAveragingTheyWereAdmittedWith(t *testing.T) {
	for text, expected := range map[string]string{
		`{"version": 3, "job": {"Averaging": {"Method": "elastic", "Pull": "new", "Alpha": 0, "Tau": 2}}}`:                   "elastic pull=new alpha=auto tau=2 lr x auto",
		`{"version": 4, "job": {"averaging": {"alpha": 1, "lr_scale": 2}}}`:                                                  "elastic pull=predicted alpha=1 horizon=1 tau=1 lr x2",
		`{"version": 5, "job": {"averaging": {"alpha": 1, "lr_scale": 2, "horizon": 1.25}}}`:                                 "elastic pull=predicted alpha=1 horizon=1.25 tau=1 lr x2",
		`{"version": 3, "job": {"Averaging": {"Method": "elastic", "Pull": "old", "Alpha": 0.5, "Tau": 1, "RateScale": 2}}}`: "elastic pull=old alpha=0.5 tau=1 lr x2",
	} {
		s, err := Decode("1", json.RawMessage(text), nil)
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		if got := s.Averaging(); got != expected {
			t.Errorf("%s: %s, expected %s", text, got, expected)
		}
	}
}

// TestOnePipelineIsNotSaidToBeAveraged: of the keys of its job file only lr_scale changes something.
func TestOnePipelineIsNotSaidToBeAveraged(t *testing.T) {
	var s Spec
	s.Job.Pipelines, s.Job.Averaging = 1, job.Averaging{Method: "elastic", Pull: "predicted", Alpha: 1, Horizon: 1.5, Tau: 2}
	for scale, want := range map[job.Factor]string{
		job.AutoFactor: "elastic tau=2, one pipeline: nothing is averaged",
		1:              "elastic tau=2, one pipeline: nothing is averaged",
		2:              "elastic tau=2, one pipeline: nothing is averaged, lr x2",
	} {
		s.Job.Averaging.RateScale = scale
		if got := s.Averaging(); got != want {
			t.Errorf("lr_scale %v: %q, want %q", scale, got, want)
		}
	}
}

// TestPrecisionIsSaidOfGroupsAlone: one group sends no messages, also where there were more before.
func TestPrecisionIsSaidOfGroupsAlone(t *testing.T) {
	var s Spec
	s.Job.Pipelines, s.Job.Averaging = 2, job.Averaging{Method: "allreduce", Tau: 1, RateScale: 1, Precision: "int8"}
	for groups, want := range map[int]string{1: "allreduce tau=1 lr x1", 2: "allreduce precision=int8 tau=1 lr x1"} {
		s.Job.Groups = groups
		if got := s.Averaging(); got != want {
			t.Errorf("%d groups: %q, want %q", groups, got, want)
		}
	}
}

// TestTheNumberOfPipelinesDecidesWhatAveragingLeavesOpen, and nothing that the job says.
func TestTheNumberOfPipelinesDecidesWhatAveragingLeavesOpen(t *testing.T) {
	for _, c := range []struct {
		optimizer   string
		given       job.Averaging
		pipelines   int
		alpha, rate float64
	}{
		{"adamw", job.Averaging{Pull: "predicted"}, 2, 1, math.Sqrt2},
		{"adam", job.Averaging{Pull: "predicted"}, 4, 1, 2},
		{"adamw", job.Averaging{Pull: "predicted"}, 1, 1, 1},
		{"adamw", job.Averaging{Pull: "old"}, 8, 0.125, math.Sqrt(8)},
		{"sgd", job.Averaging{Pull: "predicted"}, 4, 1, 1},
		{"asgd", job.Averaging{Pull: "new"}, 2, 1, 1},
		{"adamw", job.Averaging{Pull: "predicted", Alpha: 0.3, RateScale: 1.2}, 4, 0.3, 1.2},
	} {
		j := job.Job{Optimizer: job.Optimizer{Name: c.optimizer}, Averaging: c.given, Pipelines: job.Count(c.pipelines)}
		j.Averaging.Method, j.Averaging.Tau = "elastic", 1
		if err := decideAveraging(&j); err != nil {
			t.Fatal(err)
		}
		if a := j.Averaging; a.Alpha != c.alpha || float64(a.RateScale) != c.rate {
			t.Errorf("%+v: alpha %v, lr_scale %v", c, a.Alpha, a.RateScale)
		}
	}
}
