package model_test

import (
	"encoding/json"
	"errors"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/avgpipe/avgpipe/stage"
	"github.com/avgpipe/avgpipe/stage/device/ref"
	"github.com/avgpipe/avgpipe/stage/model"
	"github.com/avgpipe/avgpipe/stage/stagetest"
)

// publishedLlama and the next are config.json of published models, with the fields of several releases of the library:
// SmolLM-135M, Mistral-7B-v0.1, Qwen2-0.5B, and bert-base-uncased fine-tuned for three classes.
const (
	publishedLlama = `{
  "architectures": ["LlamaForCausalLM"], "attention_bias": false, "attention_dropout": 0.0, "bos_token_id": 0, "eos_token_id": 0,
  "hidden_act": "silu", "hidden_size": 576, "initializer_range": 0.02, "intermediate_size": 1536, "max_position_embeddings": 2048,
  "mlp_bias": false, "model_type": "llama", "num_attention_heads": 9, "num_hidden_layers": 30, "num_key_value_heads": 3,
  "pretraining_tp": 1, "rms_norm_eps": 1e-05, "rope_scaling": null, "rope_theta": 10000.0, "tie_word_embeddings": true,
  "torch_dtype": "float32", "transformers_version": "4.39.3", "use_cache": true, "vocab_size": 49152
}`
	publishedMistral = `{
  "architectures": ["MistralForCausalLM"], "bos_token_id": 1, "eos_token_id": 2, "hidden_act": "silu", "hidden_size": 4096,
  "initializer_range": 0.02, "intermediate_size": 14336, "max_position_embeddings": 32768, "model_type": "mistral",
  "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8, "rms_norm_eps": 1e-05, "rope_theta": 10000.0,
  "sliding_window": 4096, "tie_word_embeddings": false, "torch_dtype": "bfloat16", "transformers_version": "4.34.0.dev0",
  "use_cache": true, "vocab_size": 32000
}`
	publishedQwen2 = `{
  "architectures": ["Qwen2ForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 151643, "dtype": "bfloat16", "eos_token_id": 151643,
  "hidden_act": "silu", "hidden_size": 896, "initializer_range": 0.02, "intermediate_size": 4864, "layer_types": ["full_attention"],
  "max_position_embeddings": 131072, "max_window_layers": 24, "model_type": "qwen2", "num_attention_heads": 14,
  "num_hidden_layers": 24, "num_key_value_heads": 2, "rms_norm_eps": 1e-06, "rope_theta": 1000000.0, "sliding_window": null,
  "tie_word_embeddings": true, "use_cache": true, "use_mrope": false, "use_sliding_window": false, "vocab_size": 151936
}`
	publishedBERT = `{
  "architectures": ["BertForSequenceClassification"], "attention_probs_dropout_prob": 0.1, "classifier_dropout": null,
  "gradient_checkpointing": false, "hidden_act": "gelu", "hidden_dropout_prob": 0.1, "hidden_size": 768,
  "id2label": {"0": "LABEL_0", "1": "LABEL_1", "2": "LABEL_2"}, "initializer_range": 0.02, "intermediate_size": 3072,
  "label2id": {"LABEL_0": 0, "LABEL_1": 1, "LABEL_2": 2}, "layer_norm_eps": 1e-12, "max_position_embeddings": 512,
  "model_type": "bert", "num_attention_heads": 12, "num_hidden_layers": 12, "pad_token_id": 0, "position_embedding_type": "absolute",
  "transformers_version": "4.40.0", "type_vocab_size": 2, "use_cache": true, "vocab_size": 30522
}`
)

func fromHuggingFace(t *testing.T, config string) *model.Model {
	t.Helper()
	m, err := model.FromHuggingFace([]byte(config))
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func TestPublishedTransformersHaveTheirPublishedSizes(t *testing.T) {
	masked := strings.Replace(publishedBERT, "BertForSequenceClassification", "BertForMaskedLM", 1)
	for _, c := range []struct {
		name, config string
		weights      int
		task         model.Task
	}{
		{"llama", publishedLlama, 134515008, model.Language},
		{"mistral", publishedMistral, 7241732096, model.Language},
		{"qwen2", publishedQwen2, 494032768, model.Language},
		{"bert", publishedBERT, 109484547, model.Classification}, // BertModel's 109,482,240 and a classifier of 3 classes
		{"masked bert", masked, 109514298, model.MaskedLanguage},
	} {
		m := fromHuggingFace(t, c.config)
		if m.Weights() != c.weights || m.Task != c.task {
			t.Errorf("%s: %d weights, task %s, expected %d, %s", c.name, m.Weights(), m.Task, c.weights, c.task)
		}
		own, err := json.Marshal(m.Config())
		if err != nil {
			t.Fatal(err)
		}
		again := fromHuggingFace(t, string(own))
		if !reflect.DeepEqual(m.Config(), again.Config()) || !reflect.DeepEqual(m.Params(), again.Params()) {
			t.Errorf("%s: an exported config reads back as %v, expected %v", c.name, again.Config(), m.Config())
		}
		if built, err := model.Build(m.Family, knownFields(m)); err != nil || !reflect.DeepEqual(built.Params(), m.Params()) {
			t.Errorf("%s: built from its own fields: %v", c.name, err)
		}
	}
}

// knownFields are the fields of a model's exported config that Build takes.
func knownFields(m *model.Model) map[string]any {
	config := m.Config()
	known := model.Fields(m.Family)
	maps.DeleteFunc(config, func(name string, _ any) bool {
		return !slices.ContainsFunc(known, func(f model.Field) bool { return f.Name == name })
	})
	return config
}

func TestTransformerConfigsThatCannotBeComputedAreRefused(t *testing.T) {
	for _, c := range []struct{ config, from, to, want string }{
		{publishedLlama, `"rope_scaling": null`, `"rope_scaling": {"rope_type": "llama3", "factor": 8.0}`, `allowed is llama3 with original_max_position_embeddings`},
		{publishedLlama, `"rope_scaling": null`, `"rope_scaling": {"type": "linear", "factor": 0.5}`, `allowed is linear with a factor of at least 1`},
		{publishedLlama, `"rope_scaling": null`, `"rope_scaling": {"type": "yarn", "factor": 2}`, `rope_scaling is "yarn"; allowed is null, or of rope_type default, linear or llama3`},
		{publishedLlama, `"rope_scaling": null`, `"rope_scaling": {"rope_type": "linear", "factr": 2}`, `rope_scaling: unknown field "factr"`},
		{publishedLlama, `"rope_scaling": null`, `"rope_scaling": 2`, `rope_scaling is 2; allowed is a mapping`},
		{publishedLlama, `"num_key_value_heads": 3`, `"num_key_value_heads": 4`, "num_key_value_heads is 4; allowed is a divisor of num_attention_heads, which is 9; did you mean num_key_value_heads 3?"},
		{publishedLlama, `"hidden_size": 576`, `"hidden_size": 580`, "hidden_size is 580; allowed is a multiple of num_attention_heads, which is 9; did you mean hidden_size 576?"},
		{publishedLlama, `"hidden_size": 576`, `"hidden_size": 567`, "head_dim is 63; allowed is an even number"},
		{publishedLlama, `"silu"`, `"gelu"`, `hidden_act is "gelu"; allowed is "silu"`},
		{publishedLlama, `"rms_norm_eps": 1e-05`, `"rms_norm_eps": 0`, "rms_norm_eps is 0; allowed is a number from 1e-30 to 1e30"},
		{publishedLlama, `"rope_theta": 10000.0`, `"rope_theta": 1e300`, "rope_theta is 1e+300; allowed is a number from 1e-30 to 1e30"},
		{publishedLlama, `"rope_theta": 10000.0`, `"rope_theta": -1`, "rope_theta is -1; allowed is a number from 1e-30 to 1e30"},
		{publishedLlama, `"attention_dropout": 0.0`, `"attention_dropout": 1.0`, "attention_dropout is 1; allowed is a number of at least 0 and below 1"},
		{publishedBERT, `"absolute"`, `"relative_key"`, `position_embedding_type is "relative_key"; allowed is "absolute"`},
		{publishedBERT, `"use_cache": true`, `"is_decoder": true`, "is_decoder is true; allowed is false"},
		{publishedBERT, `"gelu"`, `"relu"`, `hidden_act is "relu"; allowed is one of gelu, gelu_new`},
		{publishedBERT, `BertForSequenceClassification`, `BertForMaskLM`, `architectures is "BertForMaskLM"; allowed is one of BertForMaskedLM, BertForSequenceClassification; did you mean BertForMaskedLM?`},
		{publishedBERT, `"hidden_size": 768`, `"hidden_size": 770`, "hidden_size is 770; allowed is a multiple of num_attention_heads"},
		{publishedBERT, `"classifier_dropout": null`, `"classifier_dropout": 1.5`, "classifier_dropout is 1.5"},
		{publishedBERT, `"use_cache": true`, `"tie_word_embeddings": false`, "tie_word_embeddings is false; allowed is true"},
		{publishedBERT, `"type_vocab_size": 2`, `"type_vocab_size": 0`, "type_vocab_size is 0; allowed is an integer from 1"},
	} {
		config := strings.Replace(c.config, c.from, c.to, 1)
		if config == c.config {
			t.Fatalf("%s is not there", c.from)
		}
		_, err := model.FromHuggingFace([]byte(config))
		var field *model.FieldError
		if !errors.As(err, &field) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: error %v, expected %q", c.to, err, c.want)
		}
	}
}

func TestNewerReleasesKeepThetaElsewhere(t *testing.T) {
	config := strings.Replace(publishedLlama, `"rope_theta": 10000.0`, `"rope_parameters": {"rope_type": "linear", "factor": 4, "rope_theta": 5000.0}`, 1)
	found := fromHuggingFace(t, config).Config()
	scaling, _ := found["rope_scaling"].(map[string]any)
	if found["rope_theta"] != 5000.0 || scaling["rope_type"] != "linear" {
		t.Errorf("rope_theta is %v, rope_scaling %v, expected 5000 and a linear one", found["rope_theta"], scaling)
	}
}

func TestMisspeltFieldsOfTransformersNameTheNearest(t *testing.T) {
	for family, c := range map[string][2]string{
		"llama": {"num_key_values_heads", "num_key_value_heads"}, "bert": {"num_hidden_layer", "num_hidden_layers"},
	} {
		_, err := model.Build(family, map[string]any{c[0]: 2})
		var field *model.FieldError
		if !errors.As(err, &field) || !field.Unknown || field.Nearest != c[1] {
			t.Errorf("%s: error %v, expected one that names %s", family, err, c[1])
		}
	}
}

func TestAClassifierIsFineTunedFromAMaskedModelsFile(t *testing.T) {
	config := maps.Clone(dropped["bert-masked"].config)
	masked, err := model.Build("bert", config)
	if err != nil {
		t.Fatal(err)
	}
	config["architectures"], config["num_labels"] = "BertForSequenceClassification", 3
	classifier, err := model.Build("bert", config)
	if err != nil {
		t.Fatal(err)
	}
	pretrained := stagetest.NewPipeline(t, stagetest.PipelineConfig{Device: ref.New(), Model: masked, Stages: 1, Samples: 1, Micros: 1, Seed: 1})
	values, shapes := pretrained.Parameters(), file(masked)
	lookup := func(name string) ([]int, []float32, bool, error) {
		x, ok := values[name]
		return shapes[name], x, ok, nil
	}
	if err := classifier.CheckTensors(shapes); err != nil {
		t.Fatal(err)
	}
	tuned := stagetest.NewPipeline(t, stagetest.PipelineConfig{Device: ref.New(), Model: classifier, Stages: 1, Samples: 1, Micros: 1, Seed: 2})
	fresh := tuned.Parameters()
	if err := tuned.Stages[0].Load(lookup); err != nil {
		t.Fatal(err)
	}
	for name, found := range tuned.Parameters() {
		want, from := values[name], "the file"
		if strings.HasPrefix(name, "classifier.") || strings.HasPrefix(name, "bert.pooler.") {
			want, from = fresh[name], "the seed"
		}
		if !slices.Equal(found, want) {
			t.Errorf("%s is not that of %s", name, from)
		}
	}
	use, err := stage.New(stage.Config{Device: ref.New(), Model: classifier, Samples: 1, ForwardOnly: true})
	if err != nil {
		t.Fatal(err)
	}
	if err := use.Load(lookup); err == nil || !strings.Contains(err.Error(), `tensor "bert.pooler.dense.weight" [8 8] is missing`) {
		t.Errorf("a head that was never trained is used: error %v", err)
	}
}

// renamed is an export with its tensors' names changed.
func renamed(m *model.Model, change func(name string) string) map[string][]int {
	out := map[string][]int{}
	for name, shape := range file(m) {
		out[change(name)] = shape
	}
	return out
}

func TestOlderTensorNamesOfTransformersAreRead(t *testing.T) {
	masked := fromHuggingFace(t, strings.Replace(publishedBERT, "BertForSequenceClassification", "BertForMaskedLM", 1))
	classifier, llama := fromHuggingFace(t, publishedBERT), fromHuggingFace(t, publishedLlama)
	old := strings.NewReplacer("LayerNorm.weight", "LayerNorm.gamma", "LayerNorm.bias", "LayerNorm.beta")
	withoutPrefix := func(prefix string) func(string) string {
		return func(name string) string { return strings.TrimPrefix(name, prefix) }
	}
	for name, c := range map[string]struct {
		m       *model.Model
		tensors map[string][]int
		extra   []string
		want    string
	}{
		"norms of the first releases": {masked, renamed(masked, old.Replace), nil, ""},
		"without a prefix":            {classifier, renamed(classifier, withoutPrefix("bert.")), nil, ""},
		"both":                        {masked, renamed(masked, func(n string) string { return strings.TrimPrefix(old.Replace(n), "bert.") }), nil, ""},
		"llama without a prefix":      {llama, renamed(llama, withoutPrefix("model.")), nil, ""},
		"a file of BertForPreTraining": {
			masked, file(masked),
			[]string{"cls.seq_relationship.weight", "bert.pooler.dense.bias", "cls.predictions.decoder.weight", "bert.embeddings.position_ids"},
			"",
		},
		"a masked model's file, to be fine-tuned": {classifier, file(masked), nil, ""},
		"half a classifier":                       {classifier, file(masked), []string{"classifier.weight"}, `tensor "classifier.weight" has shape [1]`},
		"a classifier's file without its head": {
			classifier, renamed(classifier, func(n string) string { return strings.Replace(n, "classifier.", "bert.pooler.extra.", 1) }), nil,
			`tensor "classifier.weight" [3 768] is missing`,
		},
		"buffers":        {llama, file(llama), []string{"model.layers.0.self_attn.rotary_emb.inv_freq", "lm_head.weight"}, ""},
		"another's head": {masked, file(masked), []string{"classifier.weight"}, `tensor "classifier.weight" [1] belongs to no parameter`},
		"another's body": {llama, file(classifier), nil, `tensor "model.embed_tokens.weight" [49152 576] is missing`},
	} {
		for _, extra := range c.extra {
			c.tensors[extra] = []int{1}
		}
		err := c.m.CheckTensors(c.tensors)
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: error %v, expected %q", name, err, c.want)
		}
	}
}

func TestExportKeepsWhatAnImportedConfigHeld(t *testing.T) {
	m := fromHuggingFace(t, strings.Replace(publishedQwen2, `"use_cache"`, `"pad_token_id": 7, "my_note": {"a": [1]}, "quantization_config": {}, "use_cache"`, 1))
	text, err := json.Marshal(m.Config())
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		`"bos_token_id":151643`, `"eos_token_id":151643`, `"pad_token_id":7`, `"my_note":{"a":[1]}`, `"dtype":"float32"`, `"torch_dtype":"float32"`,
	} {
		if !strings.Contains(string(text), want) {
			t.Errorf("the exported config has no %s: %s", want, text)
		}
	}
	if strings.Contains(string(text), "quantization_config") {
		t.Errorf("the exported weights are not quantised, and the config says so: %s", text)
	}
	named := strings.NewReplacer("LABEL_0", "no", "LABEL_1", "yes", "LABEL_2", "perhaps").Replace(publishedBERT)
	if names := fromHuggingFace(t, named).Config()["id2label"]; !reflect.DeepEqual(names, map[string]any{"0": "no", "1": "yes", "2": "perhaps"}) {
		t.Errorf("the classes of an imported classifier are called %v", names)
	}
}

func TestWindowsAreReadAsHuggingFaceMeansThem(t *testing.T) {
	for _, c := range []struct {
		from, to, config, want string // want "": accepted
	}{
		{`"sliding_window": 4096`, `"sliding_window": null`, publishedMistral, ""},
		{`"sliding_window": 4096`, `"sliding_window": -1`, publishedMistral, "sliding_window is -1"},
		{`"use_sliding_window": false`, `"use_sliding_window": true`, publishedQwen2, "sliding_window is 0; allowed is an integer of at least 1"},
		{`["full_attention"]`, `["full_attention", "sliding_attention"]`, publishedQwen2, `layer_types[1] is "sliding_attention"; allowed is "full_attention"`},
		{`"use_mrope": false`, `"use_mrope": true`, publishedQwen2, "use_mrope is true"},
	} {
		_, err := model.FromHuggingFace([]byte(strings.Replace(c.config, c.from, c.to, 1)))
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: error %v, want %q", c.to, err, c.want)
		}
	}
}

func TestTheNamesOfTheTanhFormOfGELUAreAccepted(t *testing.T) {
	for _, name := range []string{"gelu_new", "gelu_pytorch_tanh", "gelu_fast"} {
		for family, field := range map[string]string{"gpt2": "activation_function", "bert": "hidden_act"} {
			m, err := model.Build(family, map[string]any{field: name})
			if err != nil || m.Config()[field] != name {
				t.Errorf("%s with %s: %v", family, name, err)
			}
		}
	}
}
