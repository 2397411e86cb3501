package worker

import (
	"github.com/avgpipe/avgpipe/internal/worker/control"
	"github.com/avgpipe/avgpipe/pipeline"
)

// distanceSample is of how many elements of a stage distances are measured, at most: a commit shares the cores with training.
const distanceSample = 1 << 16

// distances measures how far the pipelines of a snapshot are from the center, and predicted weights from weights, on elements that lie evenly over the stage.
func distances(s *pipeline.Snapshot) (center float64, all []control.Distance) {
	if len(s.Pipelines) == 0 || len(s.Center) == 0 {
		return 0, nil
	}
	stride := max(1, len(s.Center)/distanceSample)
	for i := 0; i < len(s.Center); i += stride {
		center += float64(s.Center[i]) * float64(s.Center[i])
	}
	for _, p := range s.Pipelines {
		d := control.Distance{Pipeline: p.Pipeline, Center: between(p.Parameters, s.Center, stride)}
		if p.Predicted != nil {
			d.Predicted = between(p.Predicted, p.Parameters, stride)
		}
		all = append(all, d)
	}
	return center * float64(stride), all
}

// between is the squared distance of two vectors, from every stride-th element.
func between(a, b []float32, stride int) (sum float64) {
	for i := 0; i < len(a); i += stride {
		d := float64(a[i]) - float64(b[i])
		sum += d * d
	}
	return sum * float64(stride)
}
