//go:build !race

package pipeline

import (
	"testing"

	"github.com/avgpipe/avgpipe/schedule"
)

// TestAnOpAllocatesNothing compares batches of few and of many micro-batches, so that what the end of a batch allocates does not
// count. (Under the race detector pools forget at random what they hold.)
func TestAnOpAllocatesNothing(t *testing.T) {
	const micros, more = 4, 64
	few, many := mallocsPerStep(t, micros), mallocsPerStep(t, more)
	const ops = 2 * 4 * (more - micros) // of four stages
	if perOp := (many - few) / ops; perOp > 0.05 {
		t.Errorf("a step of %d micro-batches allocates %.0f times, one of %d %.0f times: %.2f more for each op", micros, few, more, many, perOp)
	}
}

// mallocsPerStep trains stages that compute nothing, two on each of two devices.
func mallocsPerStep(t *testing.T, micros int) float64 {
	t.Helper()
	grid, _, err := schedule.Generate("interleaved", schedule.Request{Devices: 2, MicroBatches: micros})
	if err != nil {
		t.Fatal(err)
	}
	mallocs, _ := allocated(t, &run{grid: grid.String(), stages: 4, pipelines: 1, micros: micros, rounds: 120, clip: 0.05}, 20)
	return mallocs
}
