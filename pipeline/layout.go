package pipeline

import (
	"github.com/avgpipe/avgpipe/elastic"
	"github.com/avgpipe/avgpipe/stage"
	"github.com/avgpipe/avgpipe/stage/flat"
	"github.com/avgpipe/avgpipe/stage/layer"
)

// Layout says which layers of a model the elements of the vector of a stage with some of them belong to; what is between two tensors belongs to the first one.
func Layout(layers []layer.Layer, from, to, elements int) elastic.Layout {
	of, trained, number, tied := map[string]int{}, map[string]int{}, 0, map[string]bool{}
	for i, l := range layers {
		for _, p := range layer.Params(l) {
			of[p.Name], trained[p.Name] = i, number
			tied[p.TiedTo] = tied[p.TiedTo] || p.TiedTo != ""
		}
		if layer.Trains(l) {
			number++
		}
	}
	var all elastic.Layout
	at := map[string]int{}
	tensors := stage.Layout(layers[from:to], false)
	for i, t := range tensors {
		name := t.Name
		if t.TiedTo != "" {
			name = t.TiedTo
		}
		if i > 0 {
			all[i-1].To = t.Offset
		}
		at[t.Name] = i
		all = append(all, elastic.Run{Range: flat.Range{From: t.Offset, To: elements}, Layer: of[name], Trained: trained[name], Tied: tied[name]})
	}
	for i, t := range tensors {
		original, here := at[t.TiedTo]
		if here && all[original].To-all[original].From == all[i].To-all[i].From {
			all[i].Original = all[original].Range
		}
	}
	return all
}
