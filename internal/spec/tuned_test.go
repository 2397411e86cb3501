package spec_test

import (
	"strings"
	"testing"

	"github.com/avgpipe/avgpipe/internal/spec"
	"github.com/avgpipe/avgpipe/job"
	"github.com/avgpipe/avgpipe/tuner"
)

// TestResolveKeepsToTheFile: what the job file gives is not changed by a report that says otherwise.
func TestResolveKeepsToTheFile(t *testing.T) {
	report := func(change func(*tuner.Candidate)) *tuner.Report {
		r := &tuner.Report{Version: tuner.ReportVersion, Considered: 3, Chosen: tuner.Candidate{
			Devices: 2, Chunks: 1, Pipelines: 2, MicroBatches: 4, Schedule: "1f1b", Threads: 1, Recompute: []string{"full", "full"},
			Split: [][2]int{{0, 3}, {3, 4}},
		}}
		r.Chosen.Costs.Forward, r.Chosen.Costs.Backward = []float64{1, 1}, []float64{2, 2}
		change(&r.Chosen)
		return r
	}
	open := spec.Spec{Version: spec.Version, Model: []byte(`{"model_type": "gpt2", "n_layer": 2, "n_embd": 8, "n_head": 2, "n_positions": 8, "vocab_size": 16}`)}
	open.Job.Stages, open.Job.Schedule, open.Job.Tuning = 2, "auto", "profile"
	open.Job.Train.Batch, open.Job.Train.Steps, open.Job.Averaging.Tau, open.Job.Averaging.Method = 8, 100, 1, "elastic"
	s, err := open.Tuned(report(func(*tuner.Candidate) {}), 2)
	if err != nil {
		t.Fatal(err)
	}
	if s.Job.Open() || s.Job.MicroBatches != 4 || s.Job.Schedule != "1f1b" || s.Job.Averaging.Alpha == 0 || len(s.Job.Recompute) != 1 ||
		s.Cores(2) != 2 || len(s.Why) != 3 || len(s.Layout.Split) != 2 {
		t.Errorf("resolved to %+v", s)
	}
	if open.Layout != nil || open.Job.MicroBatches != 0 {
		t.Error("the open spec was changed")
	}
	for want, change := range map[string]func(*tuner.Candidate){
		"tuning chose stages 3, the job file says 2": func(c *tuner.Candidate) { c.Devices = 3 },
		"tuning chose pipelines 0":                   func(c *tuner.Candidate) { c.Pipelines = 0 },
		"the plan that tuning chose":                 func(c *tuner.Candidate) { c.Schedule = "nonsense" },
	} {
		if _, err := open.Tuned(report(change), 2); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want %q, got %v", want, err)
		}
	}
}

// TestReportsAreShortInRaft: without the runners-up, and the choice always.
func TestReportsAreShortInRaft(t *testing.T) {
	r := &tuner.Report{Version: tuner.ReportVersion, Chosen: tuner.Candidate{Reason: "won"}}
	for range 100 {
		r.RunnersUp = append(r.RunnersUp, tuner.Candidate{Reason: strings.Repeat("x", 10_000)})
	}
	whole, short, err := spec.EncodeReport(r)
	if err != nil || len(short) > 10_000 || !strings.Contains(string(short), `"won"`) || len(whole) < 1_000_000 {
		t.Errorf("%d bytes in short, %d in all: %v", len(short), len(whole), err)
	}
	for text, runnersUp := range map[string]int{string(whole): 100, string(short): 0} {
		if again, err := spec.ReadReport("1", []byte(text)); err != nil || again.Chosen.Reason != "won" || len(again.RunnersUp) != runnersUp {
			t.Errorf("read again: %v", err)
		}
	}
}

// A job that was left open says once how much of its model is trained, though it is resolved again by the rules.
func TestWhatIsTrainedIsSaidOnce(t *testing.T) {
	open := spec.Spec{Version: spec.Version, Model: []byte(`{"model_type": "gpt2", "n_layer": 2, "n_embd": 8, "n_head": 2, "n_positions": 8, "vocab_size": 16}`)}
	open.Job = *job.Default()
	open.Job.Train.Batch, open.Job.Train.Steps, open.Job.Train.Only = 8, 100, []string{"ln_f.*"}
	m, err := open.BuildModel()
	if err != nil {
		t.Fatal(err)
	}
	first, problems := spec.Resolve(&open.Job, spec.Facts{Cores: 2, Model: m}, nil)
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	s, err := spec.New(first, m, nil, false)
	if err != nil {
		t.Fatal(err)
	}
	if s, err = s.Tuned(&tuner.Report{Ruled: "it is short"}, 2); err != nil {
		t.Fatal(err)
	}
	said := 0
	for _, why := range s.Why {
		if why == "16 of 1.952 K parameters are trained, the others are frozen" {
			said++
		}
	}
	if said != 1 || s.Trained != 16 || s.Job.Open() {
		t.Errorf("it is said %d times; %d are trained: %q", said, s.Trained, s.Why)
	}
}
