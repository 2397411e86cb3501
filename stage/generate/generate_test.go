package generate_test

import (
	"context"
	"errors"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/avgpipe/avgpipe/stage"
	"github.com/avgpipe/avgpipe/stage/device/ref"
	"github.com/avgpipe/avgpipe/stage/generate"
	"github.com/avgpipe/avgpipe/stage/model"
	"github.com/avgpipe/avgpipe/stage/stagetest"
)

// counters are the families that learn to count, with tiny configs.
var counters = map[string]map[string]any{
	"gpt2": {"n_layer": 1, "n_head": 2, "n_embd": 16, "n_positions": 8, "vocab_size": 7},
	"llama": {
		"num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1, "hidden_size": 16, "intermediate_size": 24,
		"max_position_embeddings": 8, "vocab_size": 7,
	},
}

// counting trains a tiny model to count modulo 7 and returns a config that continues 3, 4.
func counting(t *testing.T, family string) generate.Config {
	t.Helper()
	m, err := model.Build(family, counters[family])
	if err != nil {
		t.Fatal(err)
	}
	p := stagetest.NewPipeline(t, stagetest.PipelineConfig{Device: ref.New(), Model: m, Stages: 1, Samples: 7, Micros: 1})
	var b stagetest.Batch
	for sample := range 7 {
		for position := range 8 {
			b.IDs = append(b.IDs, int32((sample+position)%7))
			b.Targets = append(b.Targets, int32((sample+position+1)%7))
		}
	}
	for range 60 {
		_, squared, err := p.Run(b)
		if err != nil {
			t.Fatal(err)
		}
		if err := p.Update(0.01, squared, 1); err != nil {
			t.Fatal(err)
		}
	}
	values, shapes := p.Parameters(), map[string][]int{}
	for _, x := range p.Stages[0].Tensors() {
		shapes[x.Name] = x.Shape
	}
	return generate.Config{
		Device: ref.New(), Model: m, Prompt: []int32{3, 4}, Tokens: 12,
		Weights: func(name string) ([]int, []float32, bool, error) {
			x, ok := values[name]
			return shapes[name], x, ok, nil
		},
	}
}

func run(t *testing.T, c generate.Config) []int32 {
	t.Helper()
	var out []int32
	o, err := generate.Run(t.Context(), c, func(token int32) error {
		out = append(out, token)
		return nil
	})
	if err != nil || o.Tokens != len(out) || len(out) > 1 && !(o.Prompt > 0 && o.Rest > 0 && o.PerSecond() > 0) {
		t.Fatalf("error %v; %d tokens came, the outcome is %+v", err, len(out), o)
	}
	return out
}

func TestRunContinuesWhatTheModelHasLearned(t *testing.T) {
	for family := range counters {
		t.Run(family, func(t *testing.T) { continues(t, counting(t, family)) })
	}
}

func continues(t *testing.T, c generate.Config) {
	t.Helper()
	want := []int32{5, 6, 0, 1, 2, 3, 4, 5, 6, 0, 1, 2} // beyond the window of 8 positions
	if got := run(t, c); !slices.Equal(got, want) {
		t.Errorf("most likely tokens %v, want %v", got, want)
	}
	c.Temperature, c.TopK = 5, 1
	if got := run(t, c); !slices.Equal(got, want) {
		t.Errorf("tokens of top-k 1 %v, want %v", got, want)
	}
	c.TopK, c.Tokens = 0, 100
	hot := run(t, c)
	if got := run(t, c); !slices.Equal(got, hot) {
		t.Error("the same seed gives other tokens")
	}
	c.Seed++
	if got := run(t, c); slices.Equal(got, hot) {
		t.Error("another seed gives the same 100 tokens at a high temperature")
	}
	c.TopK = 3
	if got := run(t, c); slices.Equal(got, hot) {
		t.Error("top-k 3 gives the same 100 tokens as no limit")
	}
}

func TestRunStopsAtOnce(t *testing.T) {
	c := counting(t, "gpt2")
	enough := errors.New("enough")
	calls := 0
	o, err := generate.Run(t.Context(), c, func(int32) error {
		calls++
		return enough
	})
	if !errors.Is(err, enough) || calls != 1 || o.Tokens != 1 {
		t.Errorf("error %v after %d tokens, want that of emit after 1", err, calls)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := generate.Run(ctx, c, func(int32) error { return nil }); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v, want that of the context", err)
	}
}

func TestRunRefusesBadInput(t *testing.T) {
	trained := counting(t, "gpt2")
	classifier, err := model.Build("bert", map[string]any{"num_hidden_layers": 1, "hidden_size": 12})
	if err != nil {
		t.Fatal(err)
	}
	for want, change := range map[string]func(c *generate.Config){
		"needs a Device, a Model and Weights":                                func(c *generate.Config) { c.Model = nil },
		"a bert model, of the task classification; one of the task language": func(c *generate.Config) { c.Model = classifier },
		"the prompt is empty":                                                func(c *generate.Config) { c.Prompt = nil },
		"ids is 7 at sample 0, position 1":                                   func(c *generate.Config) { c.Prompt = []int32{1, 7} },
		"0 tokens; at least 1":                                               func(c *generate.Config) { c.Tokens = 0 },
		"temperature is NaN":                                                 func(c *generate.Config) { c.Temperature = math.NaN() },
		"top-p is 1.5":                                                       func(c *generate.Config) { c.TopP = 1.5 },
		"top-k is -1":                                                        func(c *generate.Config) { c.TopK = -1 },
		`tensor "transformer.wte.weight" [7 16] is missing`: func(c *generate.Config) {
			c.Weights = func(string) ([]int, []float32, bool, error) { return nil, nil, false, nil }
		},
		"token 0: the logit of id 0 is NaN": func(c *generate.Config) { c.Weights = poisoned(c.Weights) },
	} {
		c := trained
		change(&c)
		_, err := generate.Run(t.Context(), c, func(int32) error { return nil })
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q", err, want)
		}
	}
}

// poisoned replaces the final norm by NaN.
func poisoned(weights stage.Lookup) stage.Lookup {
	return func(name string) ([]int, []float32, bool, error) {
		shape, values, ok, err := weights(name)
		if name == "transformer.ln_f.weight" {
			values = slices.Repeat([]float32{float32(math.NaN())}, len(values))
		}
		return shape, values, ok, err
	}
}
