package spec

import (
	"encoding/json"
	"math"
	"testing"

	"github.com/avgpipe/avgpipe/job"
	"github.com/avgpipe/avgpipe/tuner"
)

// TestJobsKeepTheAveragingTheyWereAdmittedWith: jobs of specs before version 3 have no factor of the learning rate, whatever the
// defaults are now.
func TestJobsKeepTheAveragingTheyWereAdmittedWith(t *testing.T) {
	for text, expected := range map[string]string{
		`{"version": 1, "job": {"Averaging": {"Method": "elastic", "Pull": "old", "Alpha": 0.25, "Tau": 1}}}`:                "elastic pull=old alpha=0.25 tau=1 lr x1",
		`{"version": 2, "job": {"Averaging": {"Method": "elastic", "Pull": "new", "Alpha": 0, "Tau": 2}}}`:                   "elastic pull=new alpha=auto tau=2 lr x1",
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
		decideAveraging(&j)
		if a := j.Averaging; a.Alpha != c.alpha || float64(a.RateScale) != c.rate {
			t.Errorf("%+v: alpha %v, lr_scale %v", c, a.Alpha, a.RateScale)
		}
	}
}

// TestStepsOfEarlierSpecs: in versions 1 and 2, steps and warm-up were those of each pipeline, and a job that was admitted then
// keeps them.
func TestStepsOfEarlierSpecs(t *testing.T) {
	const keys = `"Train": {"Steps": 1000, "Batch": 16}, "Optimizer": {"Warmup": 100}, "Averaging": {"Tau": 1}`
	of := job.Budget{Samples: 48000, Steps: 1000, Warmup: 100}
	for name, c := range map[string]struct {
		Spec string
		want *job.Budget
	}{
		"version 1":                {`{"version": 1, "job": {"Pipelines": 3, ` + keys + `}}`, &of},
		"version 2":                {`{"version": 2, "job": {"Pipelines": 3, ` + keys + `}}`, &of},
		"version 2, not tuned yet": {`{"version": 2, "job": {"Pipelines": 0, ` + keys + `}}`, nil},
		"version 3":                {`{"version": 3, "job": {"Pipelines": 3, ` + keys + `}}`, &job.Budget{Samples: 16032, Steps: 334, Warmup: 34}},
	} {
		s, err := Decode("1", []byte(c.Spec), nil)
		if err != nil || (s.Budget == nil) != (c.want == nil) || s.Budget != nil && *s.Budget != *c.want {
			t.Fatalf("%s: %+v, %v; want %+v", name, s.Budget, err, c.want)
		}
		if c.want == nil { // a tuning that began before the upgrade ends after it
			s.Job.Stages, s.Job.Schedule = 2, "1f1b"
			chosen := tuner.Candidate{
				Devices: 2, Chunks: 1, Pipelines: 3, MicroBatches: 4, Schedule: "1f1b", Threads: 1, Split: [][2]int{{0, 1}, {1, 2}},
			}
			chosen.Costs.Forward, chosen.Costs.Backward = []float64{1, 1}, []float64{2, 2}
			resolved, err := s.Tuned(&tuner.Report{Version: tuner.ReportVersion, Chosen: chosen}, 2)
			if err != nil || resolved.Budget == nil || *resolved.Budget != of {
				t.Errorf("%s: %+v, %v; want %+v", name, resolved, err, of)
			}
		}
	}
}
