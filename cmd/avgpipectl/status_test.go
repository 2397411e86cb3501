package main

import (
	"bytes"
	"strings"
	"testing"

	"github.com/avgpipe/avgpipe/internal/api"
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
	if got := metrics(s.Metrics) + "; " + computes(s) + "; " + targets(s.Task); got != "perplexity 12.5; bf16; token" {
		t.Errorf("a language model shows %q", got)
	}
	s.Recompute = []string{"auto"} // it is being tuned
	if got := computes(s); got != "bf16, recomputation auto" {
		t.Errorf("an open job shows %q", got)
	}
}
