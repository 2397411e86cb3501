package generate_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/avgpipe/avgpipe/stage"
	"github.com/avgpipe/avgpipe/stage/device/ref"
	"github.com/avgpipe/avgpipe/stage/generate"
	"github.com/avgpipe/avgpipe/stage/model"
	"github.com/avgpipe/avgpipe/stage/stagetest"
)

// The special tokens of a language of 9; words are 3 to 8, and each is translated by the next, 8 by 3.
const (
	padToken int32 = iota
	endToken
	startToken
	firstWord
	wordCount = 6
	positions = 5
)

func translated(word int32) int32 { return firstWord + (word-firstWord+1)%wordCount }

// sentences draws a batch of sources and their translations.
func sentences(rng *rand.Rand, samples int) (b stagetest.Batch) {
	for range samples {
		n := 1 + rng.IntN(positions-1)
		source, decoder, targets := make([]int32, positions), make([]int32, positions), make([]int32, positions)
		mask := make([]int32, positions)
		decoder[0] = startToken
		for i := range positions {
			targets[i] = -1
			if i <= n {
				mask[i] = 1
			}
			if i < n {
				source[i] = firstWord + rng.Int32N(wordCount)
				targets[i] = translated(source[i])
				if i+1 < positions {
					decoder[i+1] = targets[i]
				}
			}
		}
		source[n], targets[n] = endToken, endToken
		b.IDs, b.Mask, b.Decoder = append(b.IDs, source...), append(b.Mask, mask...), append(b.Decoder, decoder...)
		b.Targets = append(b.Targets, targets...)
	}
	return b
}

// translator trains a tiny model to translate.
func translator(t *testing.T) generate.Translation {
	t.Helper()
	m, err := model.Build("gnmt", map[string]any{
		"vocab_size": int(firstWord + wordCount), "hidden_size": 24, "num_layers": 2, "dropout": 0, "smoothing": 0.05,
		"max_length": positions,
	})
	if err != nil {
		t.Fatal(err)
	}
	p := stagetest.NewPipeline(t, stagetest.PipelineConfig{Device: ref.New(), Model: m, Stages: 1, Samples: 16, Micros: 1})
	p.Stages[0].Parameters().Scale(4) // what is right for a width of 1024 is slow to leave at 24
	rng := rand.New(rand.NewPCG(1, 2))
	for range 240 {
		_, squared, err := p.Run(sentences(rng, 16))
		if err != nil {
			t.Fatal(err)
		}
		if err := p.Update(0.02, squared, 1); err != nil {
			t.Fatal(err)
		}
	}
	values, shapes := p.Parameters(), map[string][]int{}
	for _, x := range p.Stages[0].Tensors() {
		shapes[x.Name] = x.Shape
	}
	return generate.Translation{
		Device: ref.New(), Model: m, Start: startToken, End: endToken, Pad: padToken, Together: 3,
		Weights: func(name string) ([]int, []float32, bool, error) {
			x, ok := values[name]
			return shapes[name], x, ok, nil
		},
	}
}

func TestTranslate(t *testing.T) {
	c := translator(t)
	sources := [][]int32{{3, 4, 5}, {8}, {7, 7, 3, 4}, {5, 8}} // more than are translated together, of different lengths
	for beam, alpha := range map[int]float64{1: 0, 4: 0.6} {
		c.Beam, c.LengthPenalty = beam, alpha
		var found [][]int32
		err := c.Run(t.Context(), sources, func(target []int32) error {
			found = append(found, target)
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		if len(found) != len(sources) {
			t.Fatalf("beam %d: %d translations of %d sources", beam, len(found), len(sources))
		}
		for i, source := range sources {
			var want []int32
			for _, word := range source {
				want = append(want, translated(word))
			}
			if !slices.Equal(found[i], want) {
				t.Errorf("beam %d: %v is translated by %v, want %v", beam, source, found[i], want)
			}
		}
	}
	t.Run("ends early", func(t *testing.T) {
		enough := errors.New("enough")
		n := 0
		err := c.Run(t.Context(), sources, func([]int32) error { n++; return enough })
		if !errors.Is(err, enough) || n != 1 {
			t.Errorf("emit's error: %v after %d translations", err, n)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := c.Run(ctx, sources, nil); !errors.Is(err, context.Canceled) {
			t.Errorf("canceled: %v", err)
		}
	})
}

func TestTranslationNamesWhatIsWrong(t *testing.T) {
	gnmt, err := model.Build("gnmt", map[string]any{"vocab_size": 9, "hidden_size": 4, "num_layers": 2, "max_length": 3})
	if err != nil {
		t.Fatal(err)
	}
	language, err := model.Build("gpt2", map[string]any{"n_layer": 1, "n_head": 1, "n_embd": 4, "n_positions": 4, "vocab_size": 9})
	if err != nil {
		t.Fatal(err)
	}
	weights := stage.Lookup(func(string) ([]int, []float32, bool, error) { return nil, nil, false, nil })
	for name, c := range map[string]struct {
		change func(*generate.Translation)
		want   string
	}{
		"no model":           {func(c *generate.Translation) { c.Model = nil }, "needs a Device, a Model and Weights"},
		"a language model":   {func(c *generate.Translation) { c.Model = language }, "a gpt2 model, of the task language"},
		"a wide beam":        {func(c *generate.Translation) { c.Beam = 10 }, "a beam of 10; it is 1 to 9"},
		"a negative beam":    {func(c *generate.Translation) { c.Beam = -1 }, "a beam of -1"},
		"a negative penalty": {func(c *generate.Translation) { c.LengthPenalty = -1 }, "length penalty is -1"},
		"a foreign token":    {func(c *generate.Translation) { c.End = 9 }, "end 9"},
		"too many positions": {func(c *generate.Translation) { c.Sequence = 4 }, "the model takes 1 to 3"},
		"a long source":      {func(*generate.Translation) {}, "source 1 has 3 tokens, with its end 4"},
	} {
		t.Run(name, func(t *testing.T) {
			translation := generate.Translation{Device: ref.New(), Model: gnmt, Weights: weights}
			c.change(&translation)
			sources := [][]int32{{1}, {1, 2, 3}}
			if name == "too many positions" {
				sources = sources[:1]
			}
			err := translation.Run(t.Context(), sources, nil)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v, want %q", err, c.want)
			}
		})
	}
	translation := generate.Translation{Device: ref.New(), Model: gnmt, Weights: weights}
	if err := translation.Run(t.Context(), [][]int32{{1}}, nil); err == nil || !strings.Contains(err.Error(), "is missing") {
		t.Errorf("missing weights: %v", err)
	}
}
