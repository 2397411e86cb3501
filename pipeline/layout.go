package pipeline

import (
	"github.com/avgpipe/avgpipe/elastic"
	"github.com/avgpipe/avgpipe/stage"
	"github.com/avgpipe/avgpipe/stage/flat"
	"github.com/avgpipe/avgpipe/stage/layer"
)

// Layout says which layers of a model the elements of the vector of a stage with some of them belong to; what is between two tensors belongs to the first one.
func Layout(layers []layer.Layer, from, to, elements int) elastic.Layout {
	of, trained, number := map[string]int{}, map[string]int{}, 0
	for i, l := range layers {
		for _, p := range layer.Params(l) {
			of[p.Name], trained[p.Name] = i, number
		}
		if layer.Trains(l) {
			number++
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
		all = append(all, elastic.Run{Range: flat.Range{From: t.Offset, To: elements}, Layer: of[name], Trained: trained[name]})
	}
	return all
}
