package model_test

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/avgpipe/avgpipe/stage"
	"github.com/avgpipe/avgpipe/stage/device"
	"github.com/avgpipe/avgpipe/stage/device/ref"
	"github.com/avgpipe/avgpipe/stage/layer"
	"github.com/avgpipe/avgpipe/stage/model"
)

func training(t *testing.T, family string, only ...string) *model.Model {
	t.Helper()
	m, err := model.Build(family, halved[family])
	if err == nil {
		m, err = m.Train(model.Training{Only: only})
	}
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// Freezing parameters leaves the gradients of the others as they are, whatever else a stage is asked to do.
func TestWhatIsTrainedHasTheGradientsThatItHasWithNothingFrozen(t *testing.T) {
	for _, family := range model.Families() {
		whole := training(t, family)
		var only []string
		for i, p := range whole.Params() {
			if p.Running == 0 && p.TiedTo == "" && i%3 != 1 {
				only = append(only, p.Name)
			}
		}
		some := training(t, family, only...)
		for _, compute := range []device.Type{device.F32, device.BF16} {
			all := gradientsInParts(t, stage.Config{Model: whole, Compute: compute}, stage.Whole)
			var want []float32
			for _, tensor := range stage.Layout(some.Layers, false) {
				i := slices.IndexFunc(stage.Layout(whole.Layers, false), func(x stage.Tensor) bool { return x.Name == tensor.Name })
				want = append(want, all[stage.Layout(whole.Layers, false)[i].Offset:][:layer.Padded(tensor.Len())]...)
			}
			for _, recompute := range stage.Recomputes() {
				for _, parts := range [][]stage.Part{{stage.Whole}, {stage.Input, stage.Weight}} {
					t.Run(fmt.Sprintf("%s_%v_%s_%v", family, compute, recompute, parts), func(t *testing.T) {
						c := stage.Config{Model: some, Compute: compute, Recompute: stage.Recompute(recompute)}
						if got := gradientsInParts(t, c, parts...); !slices.Equal(got, want) || len(got) >= len(all) {
							t.Error("the gradients differ from those of the whole model")
						}
					})
				}
			}
		}
	}
}

// The backward of what nobody trains, and of what lies in front of all that is trained, is left out.
func TestFrozenParametersCostNoBackward(t *testing.T) {
	price := func(m *model.Model, r stage.Range) (stage.Shape, stage.Bytes) {
		c := stage.Config{Device: ref.New(), Model: m, Range: r, Samples: 2, Slots: 1}
		s, err := c.Shape()
		if err != nil {
			t.Fatal(err)
		}
		b, err := c.Bytes()
		if err != nil {
			t.Fatal(err)
		}
		return s, b
	}
	whole, head := training(t, "llama"), training(t, "llama", "lm_head.weight")
	for i := range whole.Layers {
		r := stage.Range{From: i, To: i + 1}
		all, bytes := price(whole, r)
		few, less := price(head, r)
		last := i == len(whole.Layers)-1
		switch {
		case !last && (few.BackwardFLOPs != 0 || few.InFlightBytes != 0 || few.Parameters != 0):
			t.Errorf("layer %d: a backward of %v operations, which keeps %d bytes, for %d parameters", i, few.BackwardFLOPs, few.InFlightBytes, few.Parameters)
		case last && (few.BackwardFLOPs >= all.BackwardFLOPs || few.Parameters == 0):
			t.Errorf("the head: %v operations, with nothing frozen %v, for %d parameters", few.BackwardFLOPs, all.BackwardFLOPs, few.Parameters)
		case less.Frozen+less.Vector < bytes.Vector || less.Total()+less.Frozen >= bytes.Total():
			t.Errorf("layer %d: %+v, with nothing frozen %+v", i, less, bytes)
		}
	}
	bias := training(t, "gpt2", "h.0.*.bias") // only products that lead to them are left
	all, _ := price(training(t, "gpt2"), stage.Range{From: 1, To: 3})
	if few, _ := price(bias, stage.Range{From: 1, To: 3}); few.BackwardFLOPs > 0.6*all.BackwardFLOPs || few.BackwardFLOPs == 0 {
		t.Errorf("biases: %v operations, with nothing frozen %v", few.BackwardFLOPs, all.BackwardFLOPs)
	}
}

func TestPatternsNameParametersByTheirEnds(t *testing.T) {
	for _, c := range []struct {
		family string
		only   []string
		frozen []string // some that have to be
		trains []string
	}{
		{"gpt2", []string{"ln_f.*"}, []string{"transformer.wte.weight", "lm_head.weight"}, []string{"transformer.ln_f.weight", "transformer.ln_f.bias"}},
		{"gpt2", []string{"lm_head.weight"}, []string{"transformer.wpe.weight"}, []string{"transformer.wte.weight", "lm_head.weight"}}, // it is tied
		{"gpt2", []string{"h.[1].*", "wpe.weight"}, []string{"transformer.h.0.ln_1.bias"}, []string{"transformer.h.1.mlp.c_fc.weight", "transformer.wpe.weight"}},
		{"bert", []string{"bias"}, []string{"classifier.weight"}, []string{"classifier.bias", "bert.embeddings.LayerNorm.bias"}},
		{"resnet", []string{"fc.*"}, nil, []string{"fc.weight"}},
	} {
		m := training(t, c.family, c.only...)
		frozen := map[string]bool{}
		for _, p := range m.Params() {
			frozen[p.Name] = p.Frozen
			if p.Running > 0 && p.Frozen {
				t.Errorf("%v: the statistic %s is frozen", c.only, p.Name)
			}
		}
		for _, name := range c.frozen {
			if !frozen[name] {
				t.Errorf("%v: %s is trained", c.only, name)
			}
		}
		for _, name := range c.trains {
			if was, there := frozen[name]; was || !there {
				t.Errorf("%v: %s is frozen", c.only, name)
			}
		}
		if m.Trained() == 0 || m.Trained() >= m.Weights() {
			t.Errorf("%v: %d of %d are trained", c.only, m.Trained(), m.Weights())
		}
	}
	for pattern, want := range map[string]string{
		"lm_hea.weight": `train.only[1] is "lm_hea.weight"; allowed is a pattern that matches a name of the model's 29 parameters; did you mean lm_head.weight?`,
		"attn.c_attn":   `train.only[1] is "attn.c_attn"; allowed is a pattern that matches a name of the model's 29 parameters; did you mean attn.c_attn.*?`,
		"[":             `train.only[1] is "["; allowed is a pattern of *, ?, [a-z] and plain characters`,
	} {
		_, err := training(t, "gpt2").Train(model.Training{Only: []string{"*", pattern}})
		if wrong, ok := errors.AsType[*model.FieldError](err); !ok || wrong.Error() != want {
			t.Errorf("%s: %v, want %s", pattern, err, want)
		}
	}
}

// targets are linear layers of the families that can have adapters.
var targets = map[string][]string{
	"gpt2": {"c_attn", "c_proj", "c_fc"}, "llama": {"q_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "lm_head"},
	"qwen2": {"k_proj"}, "mistral": {"*_proj"}, "bert": {"query", "value", "dense", "classifier"},
}

func adapted(t *testing.T, family string, change func(*model.Training)) *model.Model {
	t.Helper()
	c := model.Training{LoRA: &model.LoRA{Rank: 3, Alpha: 6, Targets: targets[family]}}
	if change != nil {
		change(&c)
	}
	config := maps.Clone(halved[family])
	maps.DeleteFunc(config, func(name string, _ any) bool { return name == "resid_pdrop" })
	if family != "bert" {
		config["tie_word_embeddings"] = false
	} else {
		config["hidden_dropout_prob"], config["attention_probs_dropout_prob"], config["classifier_dropout"] = 0, 0, 0
	}
	m, err := model.Build(family, config)
	if err == nil {
		m, err = m.Train(c)
	}
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// Adapters alone are trained, begin without an effect, and get the same gradients in halves and recomputed.
func TestAdaptersAreWhatIsTrained(t *testing.T) {
	for family := range targets {
		m := adapted(t, family, nil)
		trained := 0
		for _, p := range m.Params() {
			if strings.Contains(p.Name, ".lora_") != p.Adapter || p.Adapter == p.Frozen {
				t.Errorf("%s: %s: of an adapter %t, frozen %t", family, p.Name, p.Adapter, p.Frozen)
			}
			if p.Adapter {
				trained += p.Len()
			}
		}
		if len(m.Adapted()) == 0 || m.Trained() != trained || trained == 0 {
			t.Errorf("%s: %d layers have adapters; %d of %d values are trained", family, len(m.Adapted()), m.Trained(), m.Weights())
		}
		for _, compute := range []device.Type{device.F32, device.BF16} {
			want := gradientsInParts(t, stage.Config{Model: m, Compute: compute}, stage.Whole)
			for _, tensor := range stage.Layout(m.Layers, false) { // B is zero, so A has no gradient yet
				learns := slices.ContainsFunc(want[tensor.Offset:][:tensor.Len()], func(g float32) bool { return g != 0 })
				if learns != strings.Contains(tensor.Name, "lora_B") {
					t.Errorf("%s, %v: %s has a gradient: %t", family, compute, tensor.Name, learns)
				}
			}
			for _, recompute := range stage.Recomputes() {
				c := stage.Config{Model: m, Compute: compute, Recompute: stage.Recompute(recompute)}
				if got := gradientsInParts(t, c, stage.Input, stage.Weight); !slices.Equal(got, want) {
					t.Errorf("%s, %v, %s: the gradients of halves differ from those of whole backwards", family, compute, recompute)
				}
			}
		}
	}
	if a, b := adapted(t, "gpt2", nil), adapted(t, "gpt2", func(c *model.Training) { c.Only = []string{"bias"} }); b.Trained() <= a.Trained() {
		t.Error("train.only adds nothing to the adapters")
	}
	for pattern, want := range map[string]string{
		"lm_head": "lm_head is transformer.wte.weight, which an adapter would change too", "c_atn": "did you mean c_attn?", "wte": "the model's 9 linear layers",
	} {
		_, err := training(t, "gpt2").Train(model.Training{LoRA: &model.LoRA{Rank: 1, Alpha: 1, Targets: []string{pattern}}})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", pattern, err, want)
		}
	}
}

// TestMessagesNameTheLayersOfTheConfig, and one layer is no layers.
func TestMessagesNameTheLayersOfTheConfig(t *testing.T) {
	for family, want := range map[string]string{"gpt2": "(n_layer ", "llama": "(num_hidden_layers ", "bert": "(num_hidden_layers ", "awd-lstm": "(nlayers ", "gnmt": "(num_layers "} {
		if m := training(t, family); !strings.HasPrefix(m.Depth(), strconv.Itoa(len(m.Layers))+" layers "+want) {
			t.Errorf("%s: %s, want the layers and %s", family, m.Depth(), want)
		}
	}
	m, err := model.Build("mlp", map[string]any{"image_size": 4, "hidden_sizes": []any{}, "num_labels": 5})
	if err != nil {
		t.Fatal(err)
	}
	if m.Depth() != "1 layer" {
		t.Errorf("%s, want 1 layer", m.Depth())
	}
	for m, want := range map[*model.Model]string{m: "this mlp has none", training(t, "awd-lstm"): "the model's 1 linear layer"} {
		_, err := m.Train(model.Training{LoRA: &model.LoRA{Rank: 1, Alpha: 1, Targets: []string{"c_attn"}}})
		if err == nil || !strings.HasSuffix(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
}
