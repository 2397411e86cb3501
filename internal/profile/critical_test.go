package profile

import (
	"math"
	"strings"
	"testing"

	"github.com/avgpipe/avgpipe/internal/worker/control"
	"github.com/avgpipe/avgpipe/job"
)

// TestATuningWeighsByWhatWasMeasured where the job file says auto, and by nothing while nothing was; the note says which job measured it. Values that are about alike have one cached plan.
func TestATuningWeighsByWhatWasMeasured(t *testing.T) {
	digests := map[string]string{}
	for name, c := range map[string]struct {
		critical  float64
		pipelines job.Count
		measured  *control.MeasuredBatch
		weighs    float64
		note      string
	}{
		"given":             {critical: 64, measured: &control.MeasuredBatch{Samples: 9}, weighs: 64},
		"not measured":      {critical: job.AutoCriticalBatch, note: "no job of this name, model and data has measured it yet"},
		"measured":          {critical: job.AutoCriticalBatch, measured: &control.MeasuredBatch{Samples: 47, Job: "j7", Step: 800}, weighs: 45.25, note: "45.3 samples, as measured by job j7 in 800 steps"},
		"measured about so": {critical: job.AutoCriticalBatch, measured: &control.MeasuredBatch{Samples: 44, Job: "j8", Step: 1}, weighs: 45.25, note: "by job j8 in 1 step"},
		"pipelines given":   {critical: job.AutoCriticalBatch, pipelines: 2, measured: &control.MeasuredBatch{Samples: 47}, note: "pipelines is given, so train.critical_batch auto weighs nothing"},
	} {
		r := request(t, func(j *job.Job) { j.Train.CriticalBatch, j.Pipelines = c.critical, c.pipelines })
		r.Critical, r.Estimate, r.Spec.Layout = c.measured, true, nil
		s, err := Open(t.Context(), Config{Request: r})
		if err != nil {
			t.Fatal(err)
		}
		space, err := s.Space()
		if err != nil {
			t.Fatal(err)
		}
		if math.Abs(space.CriticalBatch-c.weighs) > 0.01 {
			t.Errorf("%s: %v is weighed, want %v", name, space.CriticalBatch, c.weighs)
		}
		if digests[name], err = s.subject.digest(); err != nil {
			t.Fatal(err)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		report, err := Tune(t.Context(), Config{Request: r})
		if err != nil {
			t.Fatal(err)
		}
		notes := strings.Join(report.Notes, "; ")
		if !strings.Contains(notes, c.note) || c.note == "" && strings.Contains(notes, "auto") {
			t.Errorf("%s: notes %q, want %q in them", name, notes, c.note)
		}
	}
	if digests["measured"] != digests["measured about so"] || digests["measured"] == digests["not measured"] || digests["measured"] == digests["given"] {
		t.Errorf("digests %v", digests)
	}
}
