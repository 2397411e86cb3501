package feed

import (
	"math"

	"github.com/avgpipe/avgpipe/internal/api"
	"github.com/avgpipe/avgpipe/internal/metric"
	"github.com/avgpipe/avgpipe/stage"
	"github.com/avgpipe/avgpipe/stage/model"
)

// Metrics is what a score says beside its loss, as far as the task has a use for it.
func Metrics(task model.Task, s stage.Score) api.Metrics {
	var m api.Metrics
	if s.Targets == 0 {
		return m
	}
	if task == model.Language || task == model.MaskedLanguage || task == model.Translation {
		// JSON has no infinity: a loss beyond 709 nats has no perplexity.
		if perplexity := metric.Perplexity(s.MeanLoss()); !math.IsInf(perplexity, 0) {
			m.Perplexity = &perplexity
		}
	}
	if s.Predicted > 0 {
		accuracy := float64(s.Correct) / float64(s.Predicted)
		m.Accuracy = &accuracy
	}
	if s.Classes != nil {
		f1 := f1Of(s.Classes)
		m.F1 = &f1
	}
	return m
}

// f1Of is F1 of class 1 when there are two; else the mean over the classes that are targets or were predicted.
func f1Of(classes []stage.ClassCount) float64 {
	if len(classes) == 2 {
		classes = classes[1:]
	}
	sum, n := 0.0, 0
	for _, c := range classes {
		if c.Targets+c.Predicted > 0 {
			sum += metric.F1(c.Targets, c.Predicted, c.Correct)
			n++
		}
	}
	return sum / float64(max(n, 1))
}
