package export

import (
	"fmt"
	"slices"

	"github.com/avgpipe/avgpipe/internal/checkpoint"
	"github.com/avgpipe/avgpipe/stage/layer"
)

// merge adds the product of each adapter to the weight of its layer, and leaves the adapters out.
func (all *collected) merge(adapted []layer.Linear) error {
	for _, l := range adapted {
		a, b := l.Factors()
		down, up, weight := all.values[a.Path+".weight"], all.values[b.Path+".weight"], all.values[l.Path+".weight"]
		if r := l.Adapter.Rank; len(down) != r*l.In || len(up) != l.Out*r || len(weight) != l.In*l.Out {
			return fmt.Errorf("adapter of %s: A has %d values, B %d and the weight %d; expected rank %d of %d to %d",
				l.Path, len(down), len(up), len(weight), r, l.In, l.Out)
		}
		mergeOne(l, weight, down, up)
		all.tensors = slices.DeleteFunc(all.tensors, func(t checkpoint.Tensor) bool {
			return t.Name == a.Path+".weight" || t.Name == b.Path+".weight"
		})
	}
	return nil
}

// mergeOne adds Scale B A to weight (Out,In), or its transpose to weight (In,Out). A is (Rank,In), B (Out,Rank).
func mergeOne(l layer.Linear, weight, a, b []float32) {
	rank := l.Adapter.Rank
	for o := range l.Out {
		for r := range rank {
			factor := l.Adapter.Scale * b[o*rank+r]
			row := a[r*l.In : (r+1)*l.In]
			if !l.OutIn {
				for i, v := range row {
					weight[i*l.Out+o] += float32(factor * v)
				}
				continue
			}
			for i, v := range row {
				weight[o*l.In+i] += float32(factor * v)
			}
		}
	}
}
