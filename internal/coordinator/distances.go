package coordinator

import (
	"cmp"
	"math"
	"slices"

	"github.com/avgpipe/avgpipe/internal/api"
	"github.com/avgpipe/avgpipe/internal/worker/control"
)

// distances are how far the pipelines of a round are from its center, over all stages, from its shards: those of a group's stages have its pipelines, and all the center.
func distances(stages int, shards map[int]stored) []control.Distance {
	center, sums := 0.0, map[int]control.Distance{}
	for k, s := range shards {
		if k < stages {
			center += s.CenterSquare
		}
		for _, d := range s.Squares {
			sum := sums[d.Pipeline]
			sums[d.Pipeline] = control.Distance{Pipeline: d.Pipeline, Center: sum.Center + d.Center, Predicted: sum.Predicted + d.Predicted}
		}
	}
	if center == 0 {
		return nil
	}
	var all []control.Distance
	for _, d := range sums {
		all = append(all, control.Distance{Pipeline: d.Pipeline, Center: math.Sqrt(d.Center / center), Predicted: math.Sqrt(d.Predicted / center)})
	}
	slices.SortFunc(all, func(a, b control.Distance) int { return cmp.Compare(a.Pipeline, b.Pipeline) })
	return all
}

// staleness is what status says of them; nil where there are none.
func staleness(round uint64, all []control.Distance) *api.Staleness {
	if len(all) == 0 {
		return nil
	}
	out := &api.Staleness{Round: round}
	for _, d := range all {
		out.Distances, out.Predicted = append(out.Distances, d.Center), append(out.Predicted, d.Predicted)
	}
	return out
}
