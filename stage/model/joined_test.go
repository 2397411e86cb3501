package model_test

import (
	"maps"
	"slices"
	"testing"

	"github.com/avgpipe/avgpipe/stage/device"
	"github.com/avgpipe/avgpipe/stage/layer"
	"github.com/avgpipe/avgpipe/stage/model"
)

// TestEveryResidualSumOfANormIsJoined: the backward of a norm that a residual branch begins with adds the gradient that reaches the branch, however
// layers are wrapped: by dropout, by recomputation, between operands in bf16 or boundaries in bf16. A norm behind a branch, as BERT's, has none.
func TestEveryResidualSumOfANormIsJoined(t *testing.T) {
	blocks := map[string]int{"gpt2": 2, "llama": 2, "mistral": 2, "qwen2": 2}
	for _, name := range slices.Sorted(maps.Keys(torchModels)) {
		of := torchModels[name]
		for _, rates := range []map[string]any{nil, of.rates} {
			config := maps.Clone(of.config)
			for rate := range of.rates {
				config[rate] = 0.0
			}
			maps.Copy(config, rates)
			m, err := model.Build(of.family, config)
			if err != nil {
				t.Fatal(err)
			}
			for _, kind := range []device.Type{device.F32, device.BF16} {
				for again := range 3 {
					r := layer.Run{
						Layers: m.Layers[1 : len(m.Layers)-1], Size: layer.Size{B: 2, T: m.Sequence(), Compute: kind}, In: kind, Out: kind,
						RepeatLayers: again == 1, RepeatAll: again == 2,
					}
					if joined := joinedSums(r.Training().Whole.Ops()); joined != 2*blocks[name] {
						t.Errorf("%s, dropout %v, %v, repeated %d: %d backwards of norms add, want %d", name, rates != nil, kind, again, joined, 2*blocks[name])
					}
				}
			}
		}
	}
}

// joinedSums counts the backwards of norms that add something.
func joinedSums(ops []device.Op) (n int) {
	for _, op := range ops {
		if norm, ok := op.(*device.NormBackward); ok && !norm.Plus.Absent() {
			n++
		}
	}
	return n
}
