package worker

import (
	"math"
	"strings"
	"testing"
	"time"

	"github.com/avgpipe/avgpipe/internal/spec"
	"github.com/avgpipe/avgpipe/internal/worker/control"
	"github.com/avgpipe/avgpipe/job"
	"github.com/avgpipe/avgpipe/pipeline"
	"github.com/avgpipe/avgpipe/schedule"
)

func TestAWorkerSaysWhyItDoesNotMeasureNoise(t *testing.T) {
	grids := map[string]string{"1f1b": "F0 F1 B0 B1\nF0 B0 F1 B1", "one": "F0 B0\nF0 B0", "pipedream": "F0 B0 U0 F1 B1 U1\nF0 B0 U0 F1 B1 U1"}
	for name, c := range map[string]struct {
		grid   string
		micros int
		change func(a *control.Assignment)
		want   string
	}{
		"measured":                {"1f1b", 2, func(*control.Assignment) {}, ""},
		"one micro-batch":         {"one", 1, func(*control.Assignment) {}, "one micro-batch"},
		"steps inside of a batch": {"pipedream", 2, func(*control.Assignment) {}, "steps inside of a batch"},
		"another group":           {"1f1b", 2, func(a *control.Assignment) { a.Group = 1 }, "the first group"},
		"emulated":                {"1f1b", 2, func(a *control.Assignment) { a.Spec.Job.Devices.Kind = job.KindEmulated }, "compute nothing"},
		"emulated, computing": {"1f1b", 2, func(a *control.Assignment) {
			a.Spec.Job.Devices.Kind, a.Spec.Job.Devices.Emulated.Compute = job.KindEmulated, true
		}, ""},
		"an older leader": {"1f1b", 2, func(a *control.Assignment) { a.Stages[1].Node = "b" }, "several nodes"},
		"several nodes":   {"1f1b", 2, func(a *control.Assignment) { a.Stages[1].Node, a.NoiseAcross = "b", true }, ""},
	} {
		plan, err := schedule.Parse(grids[c.grid])
		if err != nil {
			t.Fatal(err)
		}
		a := control.Assignment{
			Node: "a", Spec: spec.Spec{Job: job.Job{Pipelines: 1, MicroBatches: job.Count(c.micros), Train: job.Train{Batch: 8}}},
			Stages: []control.StagePlace{{Node: "a"}, {Node: "a"}},
		}
		c.change(&a)
		if found := noiseProblem(&a, plan); (found == "") != (c.want == "") || !strings.Contains(found, c.want) {
			t.Errorf("%s: %q, want %q in it", name, found, c.want)
		}
		p := newProgress(a, plan)
		said := p.critical()
		switch {
		case a.Group > 0 || a.Stages[1].Node == "b":
			if said != nil {
				t.Errorf("%s: a worker without the last stage of the first group says %+v", name, said)
			}
		case c.want != "" && said.Text != "not measured: "+noiseProblem(&a, plan), c.want == "" && !strings.Contains(said.Text, "not known yet: 0 of"):
			t.Errorf("%s: %+v", name, said)
		}
	}
}

// TestNoiseGoesIntoTheMetaOfARound: squares of a gradient of length 1 and a variance of 24 a sample, by two pipelines, in a generation that goes on from another.
func TestNoiseGoesIntoTheMetaOfARound(t *testing.T) {
	plan, err := schedule.Parse("F0 F1 B0 B1")
	if err != nil {
		t.Fatal(err)
	}
	a := control.Assignment{
		Node: "a", Spec: spec.Spec{Job: job.Job{Pipelines: 2, MicroBatches: 2, Train: job.Train{Batch: 8}}}, Stages: []control.StagePlace{{Node: "a"}},
	}
	p := newProgress(a, plan)
	at := time.Now()
	for step := range uint64(10) {
		r := pipeline.StepReport{Pipeline: int(step % 2), Step: step, Squares: &pipeline.Squares{Share: 0.5, First: 1 + 24./4, All: 1 + 24./8}}
		if step == 3 {
			r.Squares = nil
		}
		p.step(r, at)
	}
	m := p.meta(1, "", at).Noise
	if m == nil || m.Count != 9 || m.Step != 10 {
		t.Fatalf("moments %+v", m)
	}
	b := p.critical()
	if math.Abs(b.Samples-24) > 1e-6 || b.Error > 1e-3 || b.Step != 10 {
		t.Errorf("critical batch %+v, want 24 samples", b)
	}
	p.step(pipeline.StepReport{Step: 20, Squares: &pipeline.Squares{Share: 0.5, First: 7, All: 4}}, at)
	if m.Count != 9 {
		t.Error("moments in a meta have changed")
	}
}
