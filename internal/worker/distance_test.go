package worker

import (
	"math"
	"testing"

	"github.com/avgpipe/avgpipe/pipeline"
)

func TestDistancesAreThoseOfTheVectors(t *testing.T) {
	const n = 5*distanceSample + 3 // more than are looked at
	center, near, far, predicted := make([]float32, n), make([]float32, n), make([]float32, n), make([]float32, n)
	for i := range center {
		center[i], near[i], far[i], predicted[i] = 2, 2, 2.5, 1.5
	}
	square, all := distances(&pipeline.Snapshot{Center: center, Pipelines: []pipeline.PipelineState{{Pipeline: 0, Parameters: near}, {Pipeline: 3, Parameters: far, Predicted: predicted}}})
	if len(all) != 2 || all[0].Center != 0 || all[0].Predicted != 0 || all[1].Pipeline != 3 {
		t.Fatalf("distances %+v", all)
	}
	for what, c := range map[string][2]float64{"the center": {square, 4 * n}, "a pipeline": {all[1].Center, 0.25 * n}, "predicted weights": {all[1].Predicted, n}} {
		if math.Abs(c[0]/c[1]-1) > 1e-4 {
			t.Errorf("%s: squared %g, want %g", what, c[0], c[1])
		}
	}
	far[0] = float32(math.Inf(1)) // no number of JSON
	if square, none := distances(&pipeline.Snapshot{Center: center, Pipelines: []pipeline.PipelineState{{Parameters: far}}}); none != nil || square != 0 {
		t.Errorf("of weights that are not finite: %v, %v", square, none)
	}
	if _, none := distances(&pipeline.Snapshot{Center: center}); none != nil {
		t.Errorf("without pipelines: %v", none)
	}
}
