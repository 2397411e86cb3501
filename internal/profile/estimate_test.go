package profile

import (
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/avgpipe/avgpipe/internal/gpu"
	"github.com/avgpipe/avgpipe/internal/spec"
	"github.com/avgpipe/avgpipe/job"
	"github.com/avgpipe/avgpipe/schedule"
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

// TestModulesOnGPUsArePricedAsTheirDryRun: a second of it on cores is one, since nobody knows what a GPU makes of it.
func TestModulesOnGPUsArePricedAsTheirDryRun(t *testing.T) {
	for program, want := range map[string]float64{"/train.py:build": 1, "": 5e10 / 2e13} {
		s := &subject{Candidates: spec.Candidates{Device: "gpu (H100)"}}
		s.request.Spec.Job = job.Job{Model: job.Model{Python: program}, Devices: job.Devices{Kind: job.KindGPU}}
		const second = 5e10 // what a dry run makes of a second of a core
		if found := second / s.assumed(tuner.Target{Devices: 1, Threads: 1}).FLOPs; math.Abs(found-want) > 1e-9 {
			t.Errorf("program %q: a second is %v, expected %v", program, found, want)
		}
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
	s := &subject{Candidates: spec.Candidates{Device: ref.New().Name()}}
	if got, fast := s.assumed(tuner.Target{Threads: 2}).FLOPs, prices[len(prices)-1].FLOPs; got != prices[0].FLOPs || got > fast/20 {
		t.Errorf("%s is priced at %g operations a second, a thread of the fast device at %g", s.Device, got, fast)
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

// TestWhatIsDecidedIsPricedAsItTrains: with the stages, the plan and the memory of the job, by whose rules and not by a search.
func TestWhatIsDecidedIsPricedAsItTrains(t *testing.T) {
	for _, kind := range []string{"ref", job.KindGPU} {
		for _, name := range []string{"1f1b", "afp", "interleaved"} {
			r := request(t, func(j *job.Job) {
				j.Model.Config["n_layer"], j.Model.Config["vocab_size"] = 7, 1000
				j.Devices.Kind, j.Stages, j.Pipelines, j.MicroBatches, j.Schedule = kind, 2, 2, 4, name
			})
			m, err := r.Spec.BuildModel()
			if err != nil {
				t.Fatal(err)
			}
			one := gpu.GPU{Name: "none", UUID: "GPU-1", MemoryBytes: 4e9}
			found, problems := spec.Resolve(&r.Spec.Job, spec.Facts{Cores: 2, MemoryBytes: 1 << 36, Model: m, GPUs: []gpu.GPU{one}}, nil)
			if len(problems) > 0 {
				t.Fatal(problems)
			}
			admitted, err := spec.New(found, m, nil, false)
			if err != nil {
				t.Fatal(err)
			}
			r.Spec, r.Estimate, r.GPUs = *admitted, true, []gpu.GPU{one}
			report, err := Tune(t.Context(), Config{Request: r})
			if err != nil {
				t.Fatal(err)
			}
			c := &report.Chosen
			if !slices.Equal(c.Split, admitted.Split()) || !slices.Equal(c.Warmup, schedule.Warmup(found.Plan)) || !(c.Predicted.BatchSeconds > 0) || !(report.Estimate.JobSeconds > 0) {
				t.Errorf("%s on %s: %v with warm-up %v; it trains %v", name, kind, c.Split, c.Warmup, admitted.Split())
			}
			for k, m := range admitted.Memory() {
				if c.Predicted.Stages[k].Memory != m {
					t.Errorf("%s on %s, stage %d: %+v; it takes %+v", name, kind, k, c.Predicted.Stages[k].Memory, m)
				}
			}
		}
	}
}
