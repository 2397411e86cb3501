package model

import (
	"cmp"
	"fmt"
	"math"

	"github.com/avgpipe/avgpipe/stage/device"
	"github.com/avgpipe/avgpipe/stage/layer"
)

// llama is the config of the LLaMA family (Touvron et al. 2023) and of two families that differ from it in one thing each:
// mistral (Jiang et al. 2023), whose attention may look back over a window, and qwen2 (Yang et al. 2024), whose queries, keys and
// values have biases. Field names and defaults are those of Hugging Face's LlamaConfig, MistralConfig and Qwen2Config.
type llama struct {
	family string // llama, mistral or qwen2

	vocabSize, hidden, inner, layers, heads, kvHeads, headDim, positions int
	act                                                                  string
	epsilon, initializerRange, theta, attentionDropout                   float64
	tie, attentionBias, mlpBias                                          bool
	ropeScaling                                                          map[string]any
	stretch                                                              device.Stretch // what ropeScaling means

	window       int  // of mistral and qwen2: positions that a position sees; 0: all before it
	windowed     bool // of qwen2: use the window
	windowedFrom int  // of qwen2: the first layer that does
}

func (c *llama) fields() []Field {
	fields := []Field{
		integer("vocab_size", &c.vocabSize, 32000, 1, 1<<24, "Token ids: 0 to vocab_size-1."),
		integer("max_position_embeddings", &c.positions, 2048, 1, 1<<20, "The longest sample, in tokens."),
		integer("hidden_size", &c.hidden, 4096, 1, 1<<18, "Width of the activations."),
		integer("intermediate_size", &c.inner, 11008, 1, 1<<20, "Inner width of the feed-forward branch."),
		integer("num_hidden_layers", &c.layers, 32, 1, 1<<14, "Transformer blocks."),
		integer("num_attention_heads", &c.heads, 32, 1, 1<<16, "Attention heads of a block."),
		integer("num_key_value_heads", &c.kvHeads, 0, 0, 1<<16, "Heads of keys and values, a divisor of num_attention_heads; 0 or null: as many."),
		integer("head_dim", &c.headDim, 0, 0, 1<<16, "Width of a head, even; 0 or null: hidden_size / num_attention_heads."),
		word("hidden_act", &c.act, "silu", []string{"silu"}, "silu is the only one."),
		number("rms_norm_eps", &c.epsilon, 1e-6, above0, "Added to the mean square in norms."),
		number("rope_theta", &c.theta, 10000, above0, "The base of the rotary positions' wavelengths."),
		{Name: "rope_scaling", Type: "mapping", target: &c.ropeScaling, Doc: "Slower rotary positions for longer samples: rope_type linear with factor, or llama3 with factor, low_freq_factor, high_freq_factor and original_max_position_embeddings; null: none."},
		number("initializer_range", &c.initializerRange, 0.02, atLeast0, "Standard deviation of fresh weights."),
		flag("tie_word_embeddings", &c.tie, false, "The output projection is the token embedding."),
		number("attention_dropout", &c.attentionDropout, 0, rate, "Probability with which an attention probability is dropped in training."),
	}
	window := func(doc string) Field {
		f := integer("sliding_window", &c.window, 4096, 0, 1<<20, doc)
		f.null = true // no window; without the field, there is the default one
		return f
	}
	switch c.family {
	case "mistral":
		c.inner, c.kvHeads, c.positions = 14336, 8, 131072
		return append(fields, window("Positions that a position sees, itself and those before it; 0 or null: all of them."))
	case "qwen2":
		c.vocabSize, c.inner, c.kvHeads, c.positions = 151936, 22016, 32, 32768
		return append(fields,
			flag("use_sliding_window", &c.windowed, false, "Layers from max_window_layers on look back over sliding_window positions only."),
			window("Positions that a position then sees, itself and those before it."),
			integer("max_window_layers", &c.windowedFrom, 28, 0, 1<<14, "The first layer that does, counted from 0."))
	}
	return append(fields,
		flag("attention_bias", &c.attentionBias, false, "Biases in the four projections of attention."),
		flag("mlp_bias", &c.mlpBias, false, "Biases in the feed-forward branch."))
}

func (c *llama) validate() (err error) {
	if c.headDim == 0 {
		if err := checkMultiple("hidden_size", c.hidden, "num_attention_heads", c.heads); err != nil {
			return err
		}
		c.headDim = c.hidden / c.heads
	}
	if c.kvHeads == 0 {
		c.kvHeads = c.heads
	}
	switch {
	case c.windowed && c.window == 0:
		return &FieldError{Field: "sliding_window", Found: 0, Allowed: "an integer of at least 1, with use_sliding_window", Nearest: "4096"}
	case c.headDim%2 != 0:
		return &FieldError{Field: "head_dim", Found: c.headDim, Allowed: "an even number: rotary positions turn pairs", Nearest: fmt.Sprintf("head_dim %d", c.headDim+1)}
	case c.heads%c.kvHeads != 0:
		return &FieldError{
			Field: "num_key_value_heads", Found: c.kvHeads, Allowed: fmt.Sprintf("a divisor of num_attention_heads, which is %d", c.heads),
			Nearest: fmt.Sprintf("num_key_value_heads %d", divisorBelow(c.heads, c.kvHeads)),
		}
	}
	c.stretch, err = ropeStretch(c.ropeScaling)
	return err
}

// ropeStretch reads rope_scaling, in the spelling of any release.
func ropeStretch(scaling map[string]any) (s device.Stretch, err error) {
	kind, old := "", ""
	numbers := []Field{
		{Name: "rope_type", target: &kind},
		{Name: "type", target: &old},
		{Name: "factor", target: &s.Factor},
		{Name: "low_freq_factor", target: &s.Low},
		{Name: "high_freq_factor", target: &s.High},
		{Name: "original_max_position_embeddings", target: &s.Original},
	}
	if err := decode(numbers, scaling); err != nil {
		return s, fmt.Errorf("rope_scaling: %w", err)
	}
	bad := func(found any, allowed string) error {
		return &FieldError{Field: "rope_scaling", Found: found, Allowed: allowed}
	}
	switch kind = cmp.Or(kind, old); kind {
	case "", "default":
		return device.Stretch{}, nil
	case "linear":
		s = device.Stretch{Factor: s.Factor}
	case "llama3":
		if s.Original < 1 || !(s.High > s.Low) || !(s.Low > 0) {
			return s, bad(fmt.Sprint(scaling), "llama3 with original_max_position_embeddings of at least 1 and high_freq_factor above low_freq_factor above 0")
		}
	default:
		return s, bad(kind, "null, or of rope_type default, linear or llama3")
	}
	if !(s.Factor >= 1) {
		return s, bad(fmt.Sprint(scaling), kind+" with a factor of at least 1")
	}
	return s, nil
}

// divisorBelow is the largest divisor of n that is not above most, which is at least 1.
func divisorBelow(n, most int) int {
	d := min(n, most)
	for n%d != 0 {
		d--
	}
	return d
}

func (c *llama) build(m *Model) {
	const tokens = "model.embed_tokens"
	embedding := layer.Embedding{
		Path: tokens, Tokens: layer.Table{Path: tokens, Rows: c.vocabSize, Init: layer.Init{Deviation: c.initializerRange}}, Width: c.hidden,
	}
	m.language(c.vocabSize, c.positions, embedding, c.layers, c.block,
		languageHead("model.head", c.norm("model.norm"), c.vocabSize, c.initializerRange, c.tie, tokens+".weight"))
	m.behindNorm(c.norm("model.norm"))
	m.prefix, m.window = "model.", c.windowOf
	m.skip = []string{"*.rotary_emb.inv_freq"} // the wavelengths that older Hugging Face files store
	m.config["architectures"], m.config["use_cache"] = []string{architectures[c.family]}, true
	if c.family == "mistral" && c.window == 0 {
		m.config["sliding_window"] = nil // 0 would hide everything
	}
}

func (c *llama) norm(path string) layer.LayerNorm {
	return layer.LayerNorm{RMS: true, Path: path, Width: c.hidden, Epsilon: float32(c.epsilon)}
}

// block is model.layers.i. As in gpt2, the two projections that feed the residual stream start smaller by
// 1/sqrt(2 num_hidden_layers); Hugging Face starts them like the others.
func (c *llama) block(i int) layer.Layer {
	path := fmt.Sprintf("model.layers.%d", i)
	plain, residual := c.initializerRange, c.initializerRange/math.Sqrt(2*float64(c.layers))
	linear := func(name string, in, out int, bias bool, deviation float64) layer.Linear {
		return layer.Linear{Path: path + name, In: in, Out: out, Bias: bias, OutIn: true, Init: layer.Init{Deviation: deviation}}
	}
	q, kv := c.heads*c.headDim, c.kvHeads*c.headDim
	bias := c.attentionBias || c.family == "qwen2" // whose output projection has none
	attention := &layer.SelfAttention{
		Path: path + ".self_attn", Heads: c.heads, KV: c.kvHeads, Theta: c.theta, Stretch: c.stretch, Rate: c.attentionDropout, Window: c.windowOf(i),
		QKV: []layer.Linear{
			linear(".self_attn.q_proj", c.hidden, q, bias, plain), linear(".self_attn.k_proj", c.hidden, kv, bias, plain),
			linear(".self_attn.v_proj", c.hidden, kv, bias, plain),
		},
		Project: linear(".self_attn.o_proj", q, c.hidden, c.attentionBias, residual),
	}
	mlp := &layer.GatedMLP{
		Path: path + ".mlp",
		Gate: linear(".mlp.gate_proj", c.hidden, c.inner, c.mlpBias, plain),
		Up:   linear(".mlp.up_proj", c.hidden, c.inner, c.mlpBias, plain),
		Down: linear(".mlp.down_proj", c.inner, c.hidden, c.mlpBias, residual),
	}
	return layer.NewChain(path,
		layer.NewResidual(layer.NewChain(attention.Path, c.norm(path+".input_layernorm"), attention)),
		layer.NewResidual(layer.NewChain(mlp.Path, c.norm(path+".post_attention_layernorm"), mlp)))
}

// windowOf is how many positions attention in layer i looks back over; 0: all.
func (c *llama) windowOf(i int) int {
	if c.family == "qwen2" && (!c.windowed || i < c.windowedFrom) {
		return 0
	}
	return c.window
}

// architectures are Hugging Face's classes of the families.
var architectures = map[string]string{"llama": "LlamaForCausalLM", "mistral": "MistralForCausalLM", "qwen2": "Qwen2ForCausalLM"}
