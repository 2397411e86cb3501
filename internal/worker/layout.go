package worker

import (
	"github.com/avgpipe/avgpipe/elastic"
	"github.com/avgpipe/avgpipe/stage"
	"github.com/avgpipe/avgpipe/stage/flat"
	"github.com/avgpipe/avgpipe/stage/layer"
)

// layout says which layers of the model the elements of a stage's vector belong to; what is between two tensors belongs to the first one.
func layout(layers []layer.Layer, from, to, elements int) elastic.Layout {
	of := map[string]int{}
	for i, l := range layers {
		for _, p := range layer.Params(l) {
			of[p.Name] = i
		}
	}
	var all elastic.Layout
	for _, t := range stage.Layout(layers[from:to], false) {
		name := t.Name
		if t.TiedTo != "" {
			name = t.TiedTo
		}
		if last := len(all) - 1; last >= 0 {
			all[last].To = t.Offset
		}
		all = append(all, elastic.Run{Range: flat.Range{From: t.Offset, To: elements}, Layer: of[name]})
	}
	return all
}
