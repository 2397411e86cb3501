package stage_test

import (
	"reflect"
	"testing"

	"github.com/avgpipe/avgpipe/stage"
	"github.com/avgpipe/avgpipe/stage/device"
	"github.com/avgpipe/avgpipe/stage/device/ref"
	"github.com/avgpipe/avgpipe/stage/model"
	"github.com/avgpipe/avgpipe/stage/stagetest"
)

// scored evaluates two samples with targets, two of which are ignored, for a task, and counts for itself.
func scored(t *testing.T, task model.Task, far bool) (found, want stage.Score) {
	t.Helper()
	m := *tiny(t, true)
	m.Task = task // what is counted depends on the task alone
	s := single(t, func(c *stage.Config) {
		if c.Model = &m; far {
			c.Device = remote{ref.New()}
		}
	})
	b := batch(2, 6, 1)
	b.Targets[3], b.Targets[7] = -1, -1
	logits := stage.NewBoundary(s.Shape().OutputBytes)
	found, err := s.Evaluate(nil, stagetest.Int32Bytes(b.IDs), stagetest.Int32Bytes(b.Targets), logits)
	if err != nil {
		t.Fatal(err)
	}
	values := make([]float32, len(logits)/4)
	copy(device.FloatBytes(values), logits)
	want = stage.Score{Loss: found.Loss, Targets: 10, Predicted: 10, Classes: make([]stage.ClassCount, 11)}
	for i, target := range b.Targets {
		if target < 0 {
			continue
		}
		best := 0
		for j, v := range values[i*11 : (i+1)*11] {
			if v > values[i*11+best] {
				best = j
			}
		}
		want.Classes[target].Targets++
		want.Classes[best].Predicted++
		if best == int(target) {
			want.Classes[best].Correct++
			want.Correct++
		}
	}
	return found, want
}

func TestScoresCountWhatTheTaskHasAUseFor(t *testing.T) {
	for _, far := range []bool{false, true} {
		found, want := scored(t, model.Classification, far)
		if !reflect.DeepEqual(found, want) || !(found.Loss > 0) {
			t.Errorf("classification: %+v, want %+v", found, want)
		}
		found, want = scored(t, model.Translation, far)
		if want.Classes = nil; !reflect.DeepEqual(found, want) {
			t.Errorf("translation: %+v, want %+v", found, want)
		}
		found, _ = scored(t, model.Language, far)
		if found.Targets != 10 || found.Predicted != 0 || found.Correct != 0 || found.Classes != nil {
			t.Errorf("language: %+v, want a loss alone", found)
		}
	}
}

func TestScoresAddUp(t *testing.T) {
	var total stage.Score
	one := stage.Score{Loss: 1, Targets: 3, Predicted: 3, Correct: 2, Classes: []stage.ClassCount{{2, 1, 1}, {1, 2, 1}}}
	total.Add(one)
	total.Add(one)
	want := stage.Score{Loss: 2, Targets: 6, Predicted: 6, Correct: 4, Classes: []stage.ClassCount{{4, 2, 2}, {2, 4, 2}}}
	if !reflect.DeepEqual(total, want) {
		t.Errorf("%+v, want %+v", total, want)
	}
	if one.Classes[0].Targets != 2 {
		t.Error("adding changed what was added")
	}
	if mean := total.MeanLoss(); mean != 1.0/3 {
		t.Errorf("mean loss %v", mean)
	}
}
