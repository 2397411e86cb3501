package model_test

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/avgpipe/avgpipe/stage"
	"github.com/avgpipe/avgpipe/stage/device"
	"github.com/avgpipe/avgpipe/stage/device/ref"
	"github.com/avgpipe/avgpipe/stage/layer"
	"github.com/avgpipe/avgpipe/stage/model"
)

// halved are small networks of every family, with what is random in them on.
var halved = map[string]map[string]any{
	"awd-lstm": {"ntoken": 13, "ninp": 6, "nhid": 8, "nlayers": 2, "bptt": 5},
	"bert":     {"num_hidden_layers": 2, "hidden_size": 8, "num_attention_heads": 2, "intermediate_size": 16, "vocab_size": 13, "max_position_embeddings": 8},
	"gnmt":     {"vocab_size": 13, "hidden_size": 6, "num_layers": 3, "dropout": 0.3, "max_length": 5},
	"gpt2":     {"n_layer": 2, "n_head": 2, "n_embd": 12, "n_positions": 6, "vocab_size": 13, "resid_pdrop": 0.2},
	"llama": {
		"num_hidden_layers": 2, "hidden_size": 8, "num_attention_heads": 2, "num_key_value_heads": 1, "intermediate_size": 16,
		"vocab_size": 13, "max_position_embeddings": 6,
	},
	"mistral": {
		"num_hidden_layers": 2, "hidden_size": 8, "num_attention_heads": 2, "num_key_value_heads": 1, "intermediate_size": 16,
		"vocab_size": 13, "max_position_embeddings": 6, "sliding_window": 3,
	},
	"qwen2": {
		"num_hidden_layers": 2, "hidden_size": 8, "num_attention_heads": 2, "num_key_value_heads": 1, "intermediate_size": 16,
		"vocab_size": 13, "max_position_embeddings": 6,
	},
	"mlp": {"image_size": 4, "hidden_sizes": []int{9, 8}, "num_labels": 5, "dropout": 0.3},
	"resnet": {
		"image_size": 6, "stem": "cifar", "layer_type": "basic", "embedding_size": 4, "hidden_sizes": []int{4, 6}, "depths": []int{1, 1}, "num_labels": 5,
	},
	"vgg": {"image_size": 8, "hidden_sizes": []int{4, 6}, "depths": []int{1, 1}, "classifier_sizes": []int{9}, "num_labels": 5, "norm": "batch", "dropout": 0.4},
}

// randomBatch fills the ports of a model with what they take, and its targets.
func randomBatch(m *model.Model, s stage.Shape, size layer.Size, micro int) (input, labels []byte) {
	rng := rand.New(rand.NewPCG(uint64(micro), 3))
	ports, _ := layer.Ports(m.Layers[0], size)
	for _, p := range ports {
		for range p.Elements {
			if p.Type == device.I32 {
				input = append(input, device.IntBytes([]int32{rng.Int32N(int32(max(p.Limit, 2)))})...)
			} else {
				input = append(input, device.FloatBytes([]float32{float32(rng.NormFloat64())})...)
			}
		}
	}
	for range s.LabelBytes / 4 {
		labels = append(labels, device.IntBytes([]int32{rng.Int32N(int32(m.Loss.Classes))})...)
	}
	return input, labels
}

// gradientsInParts are those of three micro-batches, their backwards whole or all input halves before all weight halves.
func gradientsInParts(t *testing.T, c stage.Config, parts ...stage.Part) (gradients []float32) {
	t.Helper()
	s := runInParts(t, c, 3, parts...)
	gradients = make([]float32, s.Gradients().Len())
	s.Gradients().Read(gradients, 0)
	return gradients
}

// runInParts runs so many micro-batches of a third of a batch each.
func runInParts(t *testing.T, c stage.Config, micros int, parts ...stage.Part) *stage.Computed {
	t.Helper()
	c.Device, c.Samples, c.Slots, c.WeightSlots, c.Seed = ref.New(), 2, micros, micros, 3
	s, err := stage.New(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	s.ZeroGradients()
	size := layer.Size{B: c.Samples, T: c.Model.Sequence(), Compute: c.Compute}
	for m := range micros {
		input, labels := stage.NewBoundary(s.Shape().InputBytes), stage.NewBoundary(s.Shape().LabelBytes)
		in, targets := randomBatch(c.Model, s.Shape(), size, m)
		copy(input, in)
		copy(labels, targets)
		if err := s.Forward(stage.Micro{Index: m, Weight: 1. / 3}, stage.OnHost(input), labels, stage.Boundary{}); err != nil {
			t.Fatal(err)
		}
	}
	for _, part := range parts {
		for m := range micros {
			if err := s.Backward(stage.Micro{Index: m, Weight: 1. / 3, Squares: m == 0}, part, stage.Boundary{}, stage.Boundary{}); err != nil {
				t.Fatal(err)
			}
		}
	}
	return s
}

// TestSquaresAreOfTheFirstMicroBatchAndOfAll: halves of other micro-batches that run in between do not count, and gradients of tied parameters count by their sum.
func TestSquaresAreOfTheFirstMicroBatchAndOfAll(t *testing.T) {
	configs := maps.Clone(halved)
	configs["gpt2 whose tied gradients are larger than what passes need"] = map[string]any{"n_layer": 1, "n_head": 1, "n_embd": 96, "n_positions": 1, "vocab_size": 301, "tie_word_embeddings": true}
	for name, config := range configs {
		family, _, _ := strings.Cut(name, " ")
		m, err := model.Build(family, config)
		if err != nil {
			t.Fatal(err)
		}
		for _, compute := range []device.Type{device.F32, device.BF16} {
			for _, recompute := range stage.Recomputes() {
				for _, parts := range [][]stage.Part{{stage.Whole}, {stage.Input, stage.Weight}} {
					t.Run(fmt.Sprintf("%s_%v_%s_%v", name, compute, recompute, parts), func(t *testing.T) {
						c := stage.Config{Model: m, Compute: compute, Recompute: stage.Recompute(recompute)}
						first, now, err1 := runInParts(t, c, 3, parts...).Squares()
						wantFirst, err2 := runInParts(t, c, 1, parts...).SquaredNorm(0)
						want, err3 := runInParts(t, c, 3, parts...).SquaredNorm(0)
						if err := errors.Join(err1, err2, err3); err != nil {
							t.Fatal(err)
						}
						if math.Abs(first-wantFirst) > 1e-6*wantFirst || now != want || !(first > 0) {
							t.Errorf("squares %v and %v, want %v and %v", first, now, wantFirst, want)
						}
					})
				}
			}
		}
	}
}

func TestHalvesOfABackwardComputeTheBitsOfTheWhole(t *testing.T) {
	for _, family := range model.Families() {
		m, err := model.Build(family, halved[family])
		if err != nil {
			t.Fatal(err)
		}
		for _, compute := range []device.Type{device.F32, device.BF16} {
			want := gradientsInParts(t, stage.Config{Model: m, Compute: compute}, stage.Whole)
			if !slices.ContainsFunc(want, func(g float32) bool { return g != 0 }) {
				t.Errorf("%s, %v: no gradient", family, compute)
			}
			for _, recompute := range stage.Recomputes() {
				t.Run(fmt.Sprintf("%s_%v_%s", family, compute, recompute), func(t *testing.T) {
					c := stage.Config{Model: m, Compute: compute, Recompute: stage.Recompute(recompute)}
					if got := gradientsInParts(t, c, stage.Input, stage.Weight); !slices.Equal(got, want) {
						t.Error("the gradients differ from those of whole backwards")
					}
				})
			}
		}
	}
}
