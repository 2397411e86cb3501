package worker

import (
	"math"
	"testing"

	"github.com/avgpipe/avgpipe/job"
)

// TestBoundariesInBF16TrainAlmostAsF32 also holds that the status says what a message takes: half.
func TestBoundariesInBF16TrainAlmostAsF32(t *testing.T) {
	losses, bytes := map[string]float64{}, map[string]int64{}
	for _, precision := range []string{"f32", "bf16"} {
		a := setup(t, 2, 1, func(j *job.Job) { j.BoundaryPrecision, j.Train.Steps = precision, 40 })
		o := train(t, a, nil)
		if o.status.Progress.EvalLoss == nil || len(o.status.Progress.LinkStatus) != 1 {
			t.Fatalf("%s: no evaluation or no link; the worker ended with %v", precision, o.err)
		}
		losses[precision], bytes[precision] = *o.status.Progress.EvalLoss, o.status.Progress.LinkStatus[0].MessageBytes
	}
	if d := math.Abs(losses["bf16"] - losses["f32"]); d == 0 || d > 0.01*losses["f32"] {
		t.Errorf("evaluation losses %v: they differ, by 1%% at most", losses)
	}
	if bytes["f32"] != 2*16*16*4 || 2*bytes["bf16"] != bytes["f32"] {
		t.Errorf("a message takes %v bytes; want half in bf16", bytes)
	}
}
