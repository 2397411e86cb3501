package main

import (
	"bytes"
	"strings"
	"testing"

	"github.com/avgpipe/avgpipe/internal/api"
	"github.com/avgpipe/avgpipe/tuner"
)

func TestStatusShowsWhatTheTaskMeasures(t *testing.T) {
	loss, accuracy, f1 := 0.25, 0.925, 0.9
	s := api.JobStatus{
		Task: "images", Family: "resnet", Precision: "f32", Recompute: []string{"full", "none"}, Loss: &loss, EvalLoss: &loss,
		Metrics: api.Metrics{Accuracy: &accuracy, F1: &f1}, TokensPerS: 1200,
	}
	var out bytes.Buffer
	if err := (&call{out: &out, format: formatText}).show(nil, func(p *page) { printStatus(p, s) }); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"0.2500 nats per sample", "accuracy 92.50%, F1 0.9000", "1.2 K images/s", "resnet (images)", "f32, recomputes by stage full none",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in:\n%s", want, out.String())
		}
	}
	if line := progressText(s, 1000); !strings.Contains(line, "accuracy 92.5%, 1.2 K images/s") {
		t.Errorf("progress says %q", line)
	}
	perplexity := 12.5
	s = api.JobStatus{Task: "language", Precision: "bf16", Recompute: []string{"none"}, Metrics: api.Metrics{Perplexity: &perplexity}}
	if got := metrics(s.Metrics) + "; " + computes(s) + "; " + lossUnit(s.Task); got != "perplexity 12.5; bf16; nats per token" {
		t.Errorf("a language model shows %q", got)
	}
	s.Recompute = []string{"auto"} // it is being tuned
	if got := computes(s); got != "bf16, recomputation auto" {
		t.Errorf("an open job shows %q", got)
	}
}

// TestTheCriticalBatchIsShown by status and by explain, which has the note as well.
func TestTheCriticalBatchIsShown(t *testing.T) {
	b := &api.CriticalBatch{Samples: 19, Moves: 128, Text: "about 19 samples", Note: "with pipelines: 2 the same loss takes fewer samples"}
	for name, print := range map[string]func(p *page){
		"status":  func(p *page) { printStatus(p, api.JobStatus{CriticalBatch: b}) },
		"explain": func(p *page) { printExplanation(p, &api.Explanation{CriticalBatch: b}) },
	} {
		var out bytes.Buffer
		if err := (&call{out: &out, format: formatText}).show(nil, print); err != nil {
			t.Fatal(err)
		}
		if noted := strings.Contains(out.String(), b.Note); !strings.Contains(out.String(), "critical batch about 19 samples") || noted != (name == "explain") {
			t.Errorf("%s:\n%s", name, out.String())
		}
	}
}

// TestMemoryIsShownAsTakenAndAsPredicted, in brief by status and for what it is by explain, of a job that was not tuned as well.
func TestMemoryIsShownAsTakenAndAsPredicted(t *testing.T) {
	const why = "devices.kind auto took gpu: this node has 1 GPU"
	s := api.JobStatus{
		State: api.Running, DeviceWhy: why, HostBytes: 3e9, PredictedHostBytes: 4e9,
		StageStatus: []api.StageStatus{{GPU: "GPU-1", MemoryBytes: 1e9, PredictedBytes: 2e9}, {Stage: 1, MemoryBytes: 5e9}},
	}
	e := api.Explanation{
		Stages: 1, Pipelines: 1, MicroBatches: 1, Schedule: "1f1b", HostBytes: 3e9, PredictedHostBytes: 4e9,
		Memory:   []tuner.Memory{{Weights: 6e9, Boundaries: 7e9}},
		Observed: &tuner.Measurement{Prediction: tuner.Prediction{Stages: []tuner.StageTerms{{Memory: tuner.Memory{Weights: 8e9}}}}},
	}
	lag := 0.034
	for name, c := range map[string]struct {
		print func(p *page)
		want  []string
	}{
		"emulated": {func(p *page) {
			printStatus(p, api.JobStatus{State: api.Running, StageStatus: []api.StageStatus{{Device: "emulated (times given)", Lag: &lag}}})
		}, []string{"COMMIT LAG DEVICE", "0% 3.4% emulated (times given)"}},
		"status": {func(p *page) { printStatus(p, s) }, []string{why, "stage 0 1 GB 2 GB GPU-1", "stage 1 5 GB - its device", "host 3 GB 4 GB the process, at most"}},
		"queued": {func(p *page) { printStatus(p, api.JobStatus{PredictedHostBytes: 4e9}) }, []string{"memory 4 GB of the host, as predicted"}},
		"explain": {func(p *page) { printExplanation(p, &e) }, []string{
			"0 predicted 6 GB - - - - 6 GB 7 GB -", "0 observed 8 GB - - - - 8 GB - -", "memory of the host: 4 GB predicted, at most 3 GB taken",
		}},
	} {
		var out bytes.Buffer
		if err := (&call{out: &out, format: formatText}).show(nil, c.print); err != nil {
			t.Fatal(err)
		}
		for _, want := range c.want {
			if text := strings.Join(strings.Fields(out.String()), " "); !strings.Contains(text, want) {
				t.Errorf("%s: no %q in:\n%s", name, want, out.String())
			}
		}
	}
}

// TestStatusSaysWhereTheStagesAre: in a line, and where they are on several nodes in their table.
func TestStatusSaysWhereTheStagesAre(t *testing.T) {
	for _, c := range []struct {
		at     []api.StageNode
		want   string
		column bool
	}{
		{nil, "", false},
		{[]api.StageNode{{Stage: 0, Node: "a"}, {Stage: 1, Node: "a"}}, "all stages on a", false},
		{[]api.StageNode{{Stage: 0, Node: "a"}, {Stage: 1, Node: "a"}, {Stage: 2, Node: "b"}}, "stages 0-1 on a, 2 on b", true},
		{
			[]api.StageNode{{Stage: 0, Node: "a"}, {Stage: 1, Node: "a"}, {Group: 1, Stage: 0, Node: "b"}, {Group: 1, Stage: 1, Node: "c"}},
			"stages 0-1 of group 0 on a, 0 of group 1 on b, 1 of group 1 on c", true,
		},
	} {
		if got := stagesOn(c.at); got != c.want {
			t.Errorf("%v: %q, want %q", c.at, got, c.want)
		}
		s := api.JobStatus{State: api.Running, Placement: c.at}
		for _, at := range c.at {
			s.StageStatus = append(s.StageStatus, api.StageStatus{Group: at.Group, Stage: at.Stage, Node: at.Node})
		}
		var out strings.Builder
		p := newPage(&out)
		printStatus(p, s)
		if err := p.print(); err != nil {
			t.Fatal(err)
		}
		if text := out.String(); strings.Contains(text, "NODE") != c.column || !strings.Contains(text, c.want) {
			t.Errorf("%v: it prints\n%s", c.at, text)
		}
	}
}

func TestStatusNamesTheStagesWhoseRoundsAreSynchronous(t *testing.T) {
	all := []api.StageStatus{{Stage: 0}, {Stage: 1, Synchronous: true}, {Stage: 2}, {Group: 1, Stage: 1, Synchronous: true}}
	if got := synchronous(all); got != "stage 1" {
		t.Errorf("one stage of two groups: %q", got)
	}
	all[2].Synchronous = true
	if got := synchronous(all); got != "stages 1, 2" {
		t.Errorf("two stages: %q", got)
	}
	if got := averaged(api.JobStatus{Averaging: "elastic", StageStatus: all}); len(got) != 2 || got[1] != "rounds of stages 1, 2 are synchronous: pipelines are beyond max_drift" {
		t.Errorf("status says %q", got)
	}
	if got := averaged(api.JobStatus{Averaging: "elastic", StageStatus: all[:1]}); len(got) != 1 {
		t.Errorf("without any: %q", got)
	}
}
