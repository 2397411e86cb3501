package worker

import (
	"math"

	"github.com/avgpipe/avgpipe/internal/worker/control"
	"github.com/avgpipe/avgpipe/pipeline"
)

// distanceSample is of how many elements of a stage distances are measured, at most: a commit shares the cores with training.
const distanceSample = 1 << 16

// distances measures how far the pipelines of a snapshot are from the center, and predicted weights from weights, on elements that lie evenly over the stage. None
// where a weight is not finite: that is for the training to say.
func distances(s *pipeline.Snapshot) (center float64, all []control.Distance) {
	if len(s.Pipelines) == 0 || len(s.Center) == 0 {
		return 0, nil
	}
	stride := max(1, len(s.Center)/distanceSample)
	for i := 0; i < len(s.Center); i += stride {
		center += float64(s.Center[i]) * float64(s.Center[i])
	}
	finite := number(center)
	for _, p := range s.Pipelines {
		d := control.Distance{Pipeline: p.Pipeline, Center: between(p.Parameters, s.Center, stride)}
		if p.Predicted != nil {
			d.Predicted = between(p.Predicted, p.Parameters, stride)
		}
		all = append(all, d)
		finite = finite && number(d.Center) && number(d.Predicted)
	}
	if !finite {
		return 0, nil
	}
	return center * float64(stride), all
}

func number(v float64) bool { return !math.IsNaN(v) && !math.IsInf(v, 0) }

// between is the squared distance of two vectors, from every stride-th element.
func between(a, b []float32, stride int) (sum float64) {
	for i := 0; i < len(a); i += stride {
		d := float64(a[i]) - float64(b[i])
		sum += d * d
	}
	return sum * float64(stride)
}
