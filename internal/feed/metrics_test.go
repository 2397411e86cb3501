package feed

import (
	"math"
	"testing"

	"github.com/avgpipe/avgpipe/stage"
	"github.com/avgpipe/avgpipe/stage/model"
)

func show(v *float64) float64 {
	if v == nil {
		return -1
	}
	return *v
}

func TestMetricsAreThoseOfTheTask(t *testing.T) {
	two := []stage.ClassCount{{Targets: 5, Predicted: 4, Correct: 3}, {Targets: 3, Predicted: 4, Correct: 2}}
	three := append([]stage.ClassCount{}, two...)
	three = append(three, stage.ClassCount{}) // neither a target nor predicted: no part of the mean
	for _, c := range []struct {
		task                     model.Task
		score                    stage.Score
		perplexity, accuracy, f1 float64 // -1: none
	}{
		{model.Language, stage.Score{Loss: 10 * math.Log(7), Targets: 10}, 7, -1, -1},
		{model.Language, stage.Score{Loss: 1e6, Targets: 1}, -1, -1, -1},
		{model.MaskedLanguage, stage.Score{Loss: 0, Targets: 4, Predicted: 4, Correct: 3}, 1, 0.75, -1},
		{model.Classification, stage.Score{Loss: 1, Targets: 8, Predicted: 8, Correct: 5, Classes: two}, -1, 5.0 / 8, 4.0 / 7},
		{model.Images, stage.Score{Loss: 1, Targets: 8, Predicted: 8, Correct: 5, Classes: three}, -1, 5.0 / 8, (6.0/9 + 4.0/7) / 2},
		{model.Images, stage.Score{}, -1, -1, -1},
	} {
		m := Metrics(c.task, c.score)
		for _, f := range []struct {
			name        string
			found, want float64
		}{{"perplexity", show(m.Perplexity), c.perplexity}, {"accuracy", show(m.Accuracy), c.accuracy}, {"F1", show(m.F1), c.f1}} {
			if math.Abs(f.found-f.want) > 1e-12 {
				t.Errorf("%s of %s, %+v: %v, want %v", f.name, c.task, c.score, f.found, f.want)
			}
		}
	}
}
