package coordinator

import (
	"math"
	"slices"
	"testing"

	"github.com/avgpipe/avgpipe/internal/worker/control"
)

// TestDistancesAreOfAllStages: two stages of two groups, whose centers are the same.
func TestDistancesAreOfAllStages(t *testing.T) {
	of := func(center float64, squares ...control.Distance) stored {
		return stored{ShardInfo: control.ShardInfo{CenterSquare: center, Squares: squares}}
	}
	shards := map[int]stored{
		0: of(60, control.Distance{Pipeline: 0, Center: 1}), 1: of(40, control.Distance{Pipeline: 0, Center: 3, Predicted: 1}),
		2: of(60, control.Distance{Pipeline: 1, Center: 4}), 3: of(40, control.Distance{Pipeline: 1, Center: 5}),
	}
	got := distances(2, shards)
	want := []control.Distance{{Pipeline: 0, Center: math.Sqrt(0.04), Predicted: math.Sqrt(0.01)}, {Pipeline: 1, Center: math.Sqrt(0.09)}}
	if !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	if s := staleness(7, got); s.Round != 7 || s.Distances[1] != want[1].Center || s.Predicted[0] != want[0].Predicted {
		t.Errorf("status says %+v", s)
	}
	if got := distances(1, map[int]stored{0: of(0)}); got != nil || staleness(1, got) != nil {
		t.Errorf("without pipelines: %v", got)
	}
}
