package elastic

import (
	"slices"
	"testing"
)

func TestAgesAreThoseOfTheRules(t *testing.T) {
	for _, c := range []struct {
		name string
		c    Config
		want []Age
		text string
	}{
		{"allreduce", Config{}, []Age{{0, 5, 0}}, "all layers: gradients of this step"},
		{"pipesgd", Config{}, []Age{{0, 5, 1}}, "all layers: gradients of the step before"},
		{"sapipe", Config{StaleLayers: 2}, []Age{{0, 2, 1}, {2, 5, 0}}, "layers 0-1: gradients of the step before; layers 2-4: gradients of this step"},
		{"sapipe", Config{StaleLayers: 9}, []Age{{0, 5, 1}}, "all layers: gradients of the step before"},
		{"elastic", Config{}, []Age{{0, 5, 1}}, "all layers: the center of the round before"},
		{"easgd-async", Config{}, []Age{{0, 5, 1}}, "all layers: the center, which pipelines visit in turn, each in every 2 rounds"},
		{"elastic", Config{Pull: PullNew}, []Age{{0, 5, 0}}, "all layers: the center of this round"},
		{"streaming-diloco", Config{Fragments: 3}, []Age{{0, 5, 1}}, "all layers, in fragments that are exchanged in turn: the center of 1 to 3 rounds before"},
		{"localsgd", Config{Tau: 4}, []Age{{0, 5, 0}}, "all layers: the center of this round"},
	} {
		c.c.Pipelines = 2
		m, err := NewMethod(c.name, c.c)
		if err != nil {
			t.Fatal(err)
		}
		if got := Ages(m, 5); !slices.Equal(got, c.want) {
			t.Errorf("%s %+v: %v, want %v", c.name, c.c, got, c.want)
		}
		if got := AgesText(m, 5); got != c.text {
			t.Errorf("%s: %q, want %q", c.name, got, c.text)
		}
	}
}
