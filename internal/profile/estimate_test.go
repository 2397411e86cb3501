package profile

import (
	"strings"
	"testing"

	"github.com/avgpipe/avgpipe/job"
	"github.com/avgpipe/avgpipe/stage/device/ref"
	"github.com/avgpipe/avgpipe/tuner"
)

// TestAShortJobIsNotMeasured: after the first reading the rest is left to the rules, and what it would have cost is said. Nothing is
// cached, since nothing was chosen.
func TestAShortJobIsNotMeasured(t *testing.T) {
	r := request(t, func(j *job.Job) { j.TuningShare = 0.01 })
	r.Bounded = true
	report, err := Tune(t.Context(), Config{Request: r})
	if err != nil || !strings.Contains(report.Ruled, "tuning would have cost about ") || report.Chosen.Devices != 0 {
		t.Fatalf("%+v, %v", report, err)
	}
	if cached, err := ReadCache(r.Cache, report.Digest); cached != nil || err != nil {
		t.Errorf("cached: %+v, %v", cached, err)
	}
}

// TestAnEstimateMeasuresNothing: what is to be expected, by assumption, or by an earlier tuning.
func TestAnEstimateMeasuresNothing(t *testing.T) {
	r := request(t, func(*job.Job) {})
	r.Estimate = true
	report, err := Tune(t.Context(), Config{Request: r})
	if err != nil || report.Estimate == nil || !strings.Contains(report.Estimate.Basis, "assumed, not measured") ||
		!(report.Estimate.JobSeconds > 0) || !(report.Estimate.TuningSeconds > 0) || report.Chosen.Measured != nil || len(report.Chosen.Predicted.Stages) == 0 {
		t.Fatalf("%+v, %v", report, err)
	}
	r.Estimate = false
	if _, err := Tune(t.Context(), Config{Request: r, Runs: -1}); err != nil {
		t.Fatal(err)
	}
	r.Estimate = true
	report, err = Tune(t.Context(), Config{Request: r})
	if err != nil || !report.Cached || report.Estimate == nil || report.Estimate.TuningSeconds != 0 || report.Estimate.Basis != "an earlier tuning of such a job" {
		t.Errorf("after a tuning: %+v, %v", report, err)
	}
}

// TestThePlainDeviceIsPricedAsOne: its name says more than its kind, and it has one thread, whatever the job says.
func TestThePlainDeviceIsPricedAsOne(t *testing.T) {
	s := &subject{name: ref.New().Name()}
	if got, fast := s.assumed(tuner.Target{Threads: 2}).flops, prices[len(prices)-1].flops; got != prices[0].flops || got > fast/20 {
		t.Errorf("%s is priced at %g operations a second, a thread of the fast device at %g", s.name, got, fast)
	}
}

// TestATinyJobIsPricedByMoreThanItsArithmetic: by what each layer and step takes however small it is; and its tuning by the runs that
// it can have, which are those of one candidate here.
func TestATinyJobIsPricedByMoreThanItsArithmetic(t *testing.T) {
	for _, kind := range []string{"ref", "cpu"} {
		r := request(t, func(j *job.Job) {
			j.Devices.Kind, j.Stages, j.Pipelines, j.MicroBatches, j.Schedule = kind, 1, 1, 1, "1f1b"
			j.Train.Steps = 1000
		})
		r.Estimate = true
		report, err := Tune(t.Context(), Config{Request: r})
		if err != nil {
			t.Fatal(err)
		}
		e := report.Estimate
		if least := 1000 * (4*3*1e-5 + 2e-4); e.JobSeconds < least || !strings.Contains(e.Basis, " for a step at least") {
			t.Errorf("%s: %v s by %s; want at least %v for 1000 steps of 4 layers", kind, e.JobSeconds, e.Basis, least)
		}
		if e.TuningSeconds > 4 {
			t.Errorf("%s: %v s of tuning for a single candidate", kind, e.TuningSeconds)
		}
	}
}
