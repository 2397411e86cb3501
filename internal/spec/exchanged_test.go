package spec

import (
	"slices"
	"testing"

	"github.com/avgpipe/avgpipe/stage/model"
)

// TestTiedTensorsInOneStageAreExchangedOnce: in two stages each exchanges its own copy.
func TestTiedTensorsInOneStageAreExchangedOnce(t *testing.T) {
	m, err := model.Build("gpt2", map[string]any{"n_layer": 2, "n_head": 2, "n_embd": 8, "n_positions": 4, "vocab_size": 100, "tie_word_embeddings": true})
	if err != nil {
		t.Fatal(err)
	}
	last := len(m.Layers) - 1
	whole, first, second := exchanged(m.Layers), exchanged(m.Layers[:2]), exchanged(m.Layers[2:])
	if got := append(slices.Clone(first), second...); !slices.Equal(got[:last], whole[:last]) || got[last] != whole[last]+100*8 || whole[0] != 104*8 {
		t.Errorf("one stage exchanges %v elements of its layers, two stages %v; expected the head's 800 in the second alone", whole, got)
	}
	sum := 0
	for _, n := range whole {
		sum += n
	}
	if sum != m.Weights() {
		t.Errorf("one stage exchanges %d elements, the model has %d", sum, m.Weights())
	}
}
