package model_test

import (
	"encoding/json"
	"errors"
	"maps"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/avgpipe/avgpipe/stage/layer"
	"github.com/avgpipe/avgpipe/stage/model"
)

func tiny(change map[string]any) map[string]any {
	config := map[string]any{"n_layer": 2, "n_head": 2, "n_embd": 8, "n_positions": 6, "vocab_size": 11}
	maps.Copy(config, change)
	return config
}

func build(t *testing.T, change map[string]any) *model.Model {
	t.Helper()
	m, err := model.Build("gpt2", tiny(change))
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func TestDefaultsAreHuggingFaces(t *testing.T) {
	m, err := model.Build("gpt2", nil)
	if err != nil {
		t.Fatal(err)
	}
	// The published GPT-2 (small): 124,439,808 parameters, tied embeddings counted once.
	if m.Weights() != 124439808 || m.Sequence() != 1024 || m.Vocabulary() != 50257 || len(m.Layers) != 14 {
		t.Errorf("%d weights, %d positions, %d token ids, %d layers", m.Weights(), m.Sequence(), m.Vocabulary(), len(m.Layers))
	}
}

func TestBuildNamesTheFieldAndTheNearest(t *testing.T) {
	for _, c := range []struct {
		change map[string]any
		want   model.FieldError
	}{
		{map[string]any{"n_layers": 2}, model.FieldError{Field: "n_layers", Unknown: true, Nearest: "n_layer"}},
		{map[string]any{"quux": 2}, model.FieldError{Field: "quux", Unknown: true}},
		{map[string]any{"n_embd": 9}, model.FieldError{Field: "n_embd", Found: 9, Allowed: "a multiple of n_head, which is 2", Nearest: "n_embd 8"}},
		{map[string]any{"n_embd": 1}, model.FieldError{Field: "n_embd", Found: 1, Allowed: "a multiple of n_head, which is 2", Nearest: "n_embd 2"}},
		{map[string]any{"n_layer": 0}, model.FieldError{Field: "n_layer", Found: 0, Allowed: "an integer from 1 to 16384", Nearest: "1"}},
		{map[string]any{"n_layer": 1e12}, model.FieldError{Field: "n_layer", Found: 1e12, Allowed: "an integer from 1 to 16384", Nearest: "16384"}},
		{map[string]any{"n_layer": -1e12}, model.FieldError{Field: "n_layer", Found: -1e12, Allowed: "an integer from 1 to 16384", Nearest: "1"}},
		{map[string]any{"n_layer": 2.5}, model.FieldError{Field: "n_layer", Found: 2.5, Allowed: "an integer"}},
		{map[string]any{"n_embd": int64(math.MaxInt64)}, model.FieldError{Field: "n_embd", Found: int64(math.MaxInt64), Allowed: "an integer from 1 to 262144", Nearest: "262144"}},
		{map[string]any{"n_layer": "two"}, model.FieldError{Field: "n_layer", Found: "two", Allowed: "an integer"}},
		{map[string]any{"n_inner": -1}, model.FieldError{Field: "n_inner", Found: -1, Allowed: "an integer from 0 to 1048576", Nearest: "0"}},
		{map[string]any{"tie_word_embeddings": 1}, model.FieldError{Field: "tie_word_embeddings", Found: 1, Allowed: "true or false"}},
		{map[string]any{"activation_function": "gelu"}, model.FieldError{Field: "activation_function", Found: "gelu", Allowed: "one of gelu_new, gelu_pytorch_tanh, gelu_fast", Nearest: "gelu_new"}},
		{map[string]any{"activation_function": 3}, model.FieldError{Field: "activation_function", Found: 3, Allowed: "a string"}},
		{map[string]any{"layer_norm_epsilon": 0}, model.FieldError{Field: "layer_norm_epsilon", Found: 0.0, Allowed: "a number from 1e-30 to 1e30", Nearest: "1e-5"}},
		{map[string]any{"initializer_range": 1e300}, model.FieldError{Field: "initializer_range", Found: 1e300, Allowed: "a number from 0 to 1000", Nearest: "0.02"}},
		{map[string]any{"initializer_range": "a"}, model.FieldError{Field: "initializer_range", Found: "a", Allowed: "a number"}},
		{map[string]any{"attn_pdrop": 1}, model.FieldError{Field: "attn_pdrop", Found: 1.0, Allowed: "a number of at least 0 and below 1", Nearest: "0"}},
	} {
		_, err := model.Build("gpt2", tiny(c.change))
		var found *model.FieldError
		if !errors.As(err, &found) {
			t.Errorf("%v: error %v, want a FieldError", c.change, err)
			continue
		}
		if found.Unknown {
			c.want.Allowed = found.Allowed // all fields
		}
		if *found != c.want {
			t.Errorf("%v: %+v, want %+v", c.change, *found, c.want)
		}
	}
	_, err := model.Build("gpt3", nil)
	want := `family is "gpt3"; allowed is one of ` + strings.Join(model.Families(), ", ") + `; did you mean gpt2?`
	if err == nil || err.Error() != want {
		t.Errorf("unknown family: %v, want %s", err, want)
	}
}

func TestNumbersOfAnyDecoderAreAccepted(t *testing.T) {
	for _, two := range []any{2, int64(2), uint64(2), 2.0, float32(2), json.Number("2")} {
		if m := build(t, map[string]any{"n_layer": two, "n_inner": nil}); len(m.Layers) != 4 {
			t.Errorf("n_layer %v of type %T gives %d layers", two, two, len(m.Layers))
		}
	}
}

func TestFieldsAreDocumentedWithTheirDefaults(t *testing.T) {
	if model.Fields("gpt3") != nil {
		t.Error("an unknown family has fields")
	}
	fields := model.Fields("gpt2")
	config := map[string]any{}
	for _, f := range fields {
		if f.Doc == "" || f.Type == "" {
			t.Errorf("field %s: type %q, doc %q", f.Name, f.Type, f.Doc)
		}
		config[f.Name] = f.Default
	}
	explicit, err := model.Build("gpt2", config)
	if err != nil {
		t.Fatal(err)
	}
	implicit, err := model.Build("gpt2", nil)
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(explicit.Config(), implicit.Config()) {
		t.Errorf("the documented defaults give %v, no fields %v", explicit.Config(), implicit.Config())
	}
}

// published is config.json of the published GPT-2, with the fields of several releases of the library.
const published = `{
  "_name_or_path": "gpt2", "activation_function": "gelu_new", "architectures": ["GPT2LMHeadModel"], "attn_pdrop": 0.1,
  "bos_token_id": 50256, "embd_pdrop": 0.1, "eos_token_id": 50256, "initializer_range": 0.02, "layer_norm_epsilon": 1e-05,
  "model_type": "gpt2", "n_ctx": 1024, "n_embd": 768, "n_head": 12, "n_inner": null, "n_layer": 12, "n_positions": 1024,
  "reorder_and_upcast_attn": false, "resid_pdrop": 0.1, "scale_attn_by_inverse_layer_idx": false, "scale_attn_weights": true,
  "summary_activation": null, "task_specific_params": {"text-generation": {"do_sample": true, "max_length": 50}},
  "transformers_version": "4.40.0", "use_cache": true, "vocab_size": 50257
}`

func TestFromHuggingFaceReadsThePublishedConfigAndItsOwn(t *testing.T) {
	m, err := model.FromHuggingFace([]byte(published))
	if err != nil {
		t.Fatal(err)
	}
	if m.Weights() != 124439808 {
		t.Errorf("%d weights", m.Weights())
	}
	m = build(t, map[string]any{"n_inner": 24, "tie_word_embeddings": false})
	own, err := json.Marshal(m.Config())
	if err != nil {
		t.Fatal(err)
	}
	again, err := model.FromHuggingFace(own)
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(m.Config(), again.Config()) || !reflect.DeepEqual(m.Params(), again.Params()) {
		t.Errorf("an exported config reads back as %v, want %v", again.Config(), m.Config())
	}
}

func TestFromHuggingFaceRefusesWhatItCannotCompute(t *testing.T) {
	for change, want := range map[string]string{
		`"model_type": "gpt2" -> "model_type": "gptj"`:                                        `model_type is "gptj"; allowed is one of ` + model.Families()[0],
		`"scale_attn_weights": true -> "scale_attn_weights": false`:                           "scale_attn_weights is false",
		`"scale_attn_by_inverse_layer_idx": false -> "scale_attn_by_inverse_layer_idx": true`: "scale_attn_by_inverse_layer_idx is true",
		`"activation_function": "gelu_new" -> "activation_function": "relu"`:                  `activation_function is "relu"`,
		`"n_layer": 12 -> "n_layer": "many"`:                                                  `n_layer is "many"; allowed is an integer`,
		`"vocab_size": 50257 -> "vocab_size": 50257} {`:                                       "more follows the object",
		`"vocab_size": 50257 -> `:                                                             "read config.json",
	} {
		from, to, _ := strings.Cut(change, " -> ")
		config := strings.Replace(published, from, to, 1)
		if config == published {
			t.Fatalf("%s changes nothing", change)
		}
		if _, err := model.FromHuggingFace([]byte(config)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v, want %q", change, err, want)
		}
	}
}

// file is what an export of the model holds.
func file(m *model.Model) map[string][]int {
	tensors := map[string][]int{}
	for _, p := range m.Params() {
		if p.TiedTo == "" {
			tensors[p.Name] = p.Shape
		}
	}
	return tensors
}

func TestTensorsHaveHuggingFacesNamesAndShapes(t *testing.T) {
	var names []string
	for name := range file(build(t, map[string]any{"n_layer": 1})) {
		names = append(names, name)
	}
	slices.Sort(names)
	want := []string{
		"transformer.h.0.attn.c_attn.bias", "transformer.h.0.attn.c_attn.weight",
		"transformer.h.0.attn.c_proj.bias", "transformer.h.0.attn.c_proj.weight",
		"transformer.h.0.ln_1.bias", "transformer.h.0.ln_1.weight", "transformer.h.0.ln_2.bias", "transformer.h.0.ln_2.weight",
		"transformer.h.0.mlp.c_fc.bias", "transformer.h.0.mlp.c_fc.weight",
		"transformer.h.0.mlp.c_proj.bias", "transformer.h.0.mlp.c_proj.weight",
		"transformer.ln_f.bias", "transformer.ln_f.weight", "transformer.wpe.weight", "transformer.wte.weight",
	}
	if !slices.Equal(names, want) {
		t.Errorf("tensors %v, want %v", names, want)
	}
	shapes := file(build(t, map[string]any{"tie_word_embeddings": false}))
	for name, shape := range map[string][]int{
		"transformer.h.1.attn.c_attn.weight": {8, 24}, "transformer.h.1.mlp.c_fc.weight": {8, 32},
		"transformer.h.1.mlp.c_proj.weight": {32, 8}, "lm_head.weight": {11, 8}, "transformer.wpe.weight": {6, 8},
	} {
		if !slices.Equal(shapes[name], shape) {
			t.Errorf("%s has shape %v, want %v", name, shapes[name], shape)
		}
	}
}

func TestCheckTensorsDropsNothingSilently(t *testing.T) {
	m := build(t, nil)
	for _, c := range []struct {
		what   string
		change func(tensors map[string][]int)
		want   string // "": accepted
	}{
		{"an export", func(map[string][]int) {}, ""},
		{"a stored copy of the tied tensor", func(x map[string][]int) { x["lm_head.weight"] = []int{11, 8} }, ""},
		{"causal masks", func(x map[string][]int) { x["transformer.h.0.attn.bias"] = []int{1, 1, 6, 6} }, ""},
		{"no prefix", func(x map[string][]int) {
			for name, shape := range maps.Clone(x) {
				delete(x, name)
				x[strings.TrimPrefix(name, "transformer.")] = shape
			}
		}, ""},
		{"a third layer", func(x map[string][]int) { x["transformer.h.2.ln_1.bias"] = []int{8} }, `tensor "transformer.h.2.ln_1.bias" [8] belongs to no parameter`},
		{"a misspelt tensor", func(x map[string][]int) {
			delete(x, "transformer.ln_f.bias")
			x["transformer.lnf.bias"] = []int{8}
		}, `tensor "transformer.ln_f.bias" [8] is missing among 28 tensors; the nearest name is "transformer.lnf.bias"`},
		{"a transposed tensor", func(x map[string][]int) { x["transformer.h.0.mlp.c_fc.weight"] = []int{32, 8} }, `has shape [32 8]; the config makes it [8 32]`},
	} {
		tensors := file(m)
		c.change(tensors)
		err := m.CheckTensors(tensors)
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: error %v, want %q", c.what, err, c.want)
		}
	}
}

func TestCostsFollowTheLayers(t *testing.T) {
	m := build(t, nil)
	costs := m.Costs(layer.Size{B: 2, T: 6})
	// Forward of one block on 12 rows: products of 8*24 + 8*8 + 8*32 + 32*8 weights, 2 operations each, and 2*T*D a row
	// for causal attention; the backward is twice that.
	block := 3.0 * 12 * (2*(8*24+8*8+8*32+32*8) + 2*6*8)
	head := 3.0 * 12 * 2 * 8 * 11
	// Norms, sums and look-ups cost what they move: at this width about as much again.
	if costs[1] < block || costs[1] > 3*block || costs[2] != costs[1] || costs[3] < head || costs[3] > 3*head || costs[0] <= 0 || costs[0] > costs[3] {
		t.Errorf("costs %v, want blocks of %v and a head of %v, and what they move", costs, block, head)
	}
}
