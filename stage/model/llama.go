package model

import (
	"fmt"
	"math"
	"strings"

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

func defaultLlama() *llama {
	return &llama{
		family: "llama", vocabSize: 32000, hidden: 4096, inner: 11008, layers: 32, heads: 32, positions: 2048,
		act: "silu", epsilon: 1e-6, initializerRange: 0.02, theta: 10000,
	}
}

func defaultMistral() *llama {
	c := defaultLlama()
	c.family, c.inner, c.kvHeads, c.positions, c.window = "mistral", 14336, 8, 131072, 4096
	return c
}

func defaultQwen2() *llama {
	c := defaultLlama()
	c.family, c.vocabSize, c.inner, c.kvHeads, c.positions = "qwen2", 151936, 22016, 32, 32768
	c.window, c.windowedFrom = 4096, 28
	return c
}

func (c *llama) fields() []Field { return append(c.common(), c.own()...) }

// common are the fields of all three families.
func (c *llama) common() []Field {
	return []Field{
		{Name: "vocab_size", target: &c.vocabSize, Doc: "Token ids: 0 to vocab_size-1."},
		{Name: "max_position_embeddings", target: &c.positions, Doc: "The longest sample, in tokens."},
		{Name: "hidden_size", target: &c.hidden, Doc: "Width of the activations."},
		{Name: "intermediate_size", target: &c.inner, Doc: "Inner width of the feed-forward branch."},
		{Name: "num_hidden_layers", target: &c.layers, Doc: "Transformer blocks."},
		{Name: "num_attention_heads", target: &c.heads, Doc: "Attention heads of a block."},
		{Name: "num_key_value_heads", target: &c.kvHeads, Doc: "Heads of keys and values, a divisor of num_attention_heads; 0 or null: as many."},
		{Name: "head_dim", target: &c.headDim, Doc: "Width of a head, even; 0 or null: hidden_size / num_attention_heads."},
		{Name: "hidden_act", target: &c.act, Doc: "silu is the only one."},
		{Name: "rms_norm_eps", target: &c.epsilon, Doc: "Added to the mean square in norms."},
		{Name: "rope_theta", target: &c.theta, Doc: "The base of the rotary positions' wavelengths."},
		{Name: "rope_scaling", target: &c.ropeScaling, Doc: "Slower rotary positions for longer samples: rope_type linear with factor, or llama3 with factor, low_freq_factor, high_freq_factor and original_max_position_embeddings; null: none."},
		{Name: "initializer_range", target: &c.initializerRange, Doc: "Standard deviation of fresh weights."},
		{Name: "tie_word_embeddings", target: &c.tie, Doc: "The output projection is the token embedding."},
		{Name: "attention_dropout", target: &c.attentionDropout, Doc: "Probability with which an attention probability is dropped in training."},
	}
}

// own are the fields that one family has.
func (c *llama) own() []Field {
	switch c.family {
	case "mistral":
		return []Field{{Name: "sliding_window", target: &c.window, Doc: "Positions that a position sees, itself and those before it; 0 or null: all of them."}}
	case "qwen2":
		return []Field{
			{Name: "use_sliding_window", target: &c.windowed, Doc: "Layers from max_window_layers on look back over sliding_window positions only."},
			{Name: "sliding_window", target: &c.window, Doc: "Positions that a position then sees, itself and those before it."},
			{Name: "max_window_layers", target: &c.windowedFrom, Doc: "The first layer that does, counted from 0."},
		}
	}
	return []Field{
		{Name: "attention_bias", target: &c.attentionBias, Doc: "Biases in the four projections of attention."},
		{Name: "mlp_bias", target: &c.mlpBias, Doc: "Biases in the feed-forward branch."},
	}
}

func llamaFields() []Field   { return describe(defaultLlama().fields()) }
func mistralFields() []Field { return describe(defaultMistral().fields()) }
func qwen2Fields() []Field   { return describe(defaultQwen2().fields()) }

func (c *llama) validate() error {
	if err := checkIntegers([]integerField{
		{"vocab_size", c.vocabSize, 1, 1 << 24},
		{"max_position_embeddings", c.positions, 1, 1 << 20},
		{"hidden_size", c.hidden, 1, 1 << 18},
		{"intermediate_size", c.inner, 1, 1 << 20},
		{"num_hidden_layers", c.layers, 1, 1 << 14},
		{"num_attention_heads", c.heads, 1, 1 << 16},
		{"num_key_value_heads", c.kvHeads, 0, 1 << 16},
		{"head_dim", c.headDim, 0, 1 << 16},
		{"sliding_window", c.window, 0, 1 << 20},
		{"max_window_layers", c.windowedFrom, 0, 1 << 14},
	}); err != nil {
		return err
	}
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
	case c.act != "silu":
		return &FieldError{Field: "hidden_act", Found: c.act, Allowed: `"silu"`, Nearest: "silu"}
	case !(c.theta > 0):
		return &FieldError{Field: "rope_theta", Found: c.theta, Allowed: "a number above 0", Nearest: "10000"}
	}
	var err error
	if c.stretch, err = ropeStretch(c.ropeScaling); err != nil {
		return err
	}
	if err := checkScales("rms_norm_eps", c.epsilon, c.initializerRange); err != nil {
		return err
	}
	return checkRates([]rateField{{"attention_dropout", c.attentionDropout}})
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
	if kind == "" {
		kind = old
	}
	bad := func(found any, allowed string) error {
		return &FieldError{Field: "rope_scaling", Found: found, Allowed: allowed}
	}
	switch kind {
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

// divisorBelow is the largest divisor of n that is not above most.
func divisorBelow(n, most int) int {
	for d := min(n, most); d > 1; d-- {
		if n%d == 0 {
			return d
		}
	}
	return 1
}

func buildLlama(config map[string]any) (*Model, error)   { return defaultLlama().build(config) }
func buildMistral(config map[string]any) (*Model, error) { return defaultMistral().build(config) }
func buildQwen2(config map[string]any) (*Model, error)   { return defaultQwen2().build(config) }

func (c *llama) build(config map[string]any) (*Model, error) {
	if window, given := config["sliding_window"]; given && window == nil {
		c.window = 0 // null is no window; without the field, there is the default one
	}
	if err := read(c, config); err != nil {
		return nil, err
	}
	m := &Model{
		Family: c.family, Task: Language, Loss: layer.Loss{Classes: c.vocabSize},
		vocabulary: c.vocabSize, sequence: c.positions,
		prefix: "model.", skip: llamaBuffer, config: c.export(), window: c.windowOf,
	}
	m.Layers = append(m.Layers, layer.TokenEmbedding{
		Path: "model.embed_tokens", Vocabulary: c.vocabSize, Width: c.hidden, Init: c.init(),
	})
	for i := range c.layers {
		m.Layers = append(m.Layers, c.block(i))
	}
	m.Layers = append(m.Layers, c.head())
	return m, nil
}

func (c *llama) init() layer.Init { return layer.Init{Deviation: c.initializerRange} }

func (c *llama) norm(path string) layer.RMSNorm {
	return layer.RMSNorm{Path: path, Width: c.hidden, Epsilon: float32(c.epsilon)}
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
	attention := &layer.GroupedAttention{
		Path: path + ".self_attn", Heads: c.heads, KV: c.kvHeads, Theta: c.theta, Stretch: c.stretch, Rate: c.attentionDropout, Window: c.windowOf(i),
		Q:       linear(".self_attn.q_proj", c.hidden, q, bias, plain),
		K:       linear(".self_attn.k_proj", c.hidden, kv, bias, plain),
		V:       linear(".self_attn.v_proj", c.hidden, kv, bias, plain),
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

func (c *llama) head() layer.Layer {
	logits := layer.Linear{Path: "lm_head", In: c.hidden, Out: c.vocabSize, OutIn: true, Init: c.init()}
	if c.tie {
		logits.TiedTo = "model.embed_tokens.weight"
	}
	return layer.NewChain("model.head", c.norm("model.norm"), logits)
}

// architectures are Hugging Face's classes of the families.
var architectures = map[string]string{"llama": "LlamaForCausalLM", "mistral": "MistralForCausalLM", "qwen2": "Qwen2ForCausalLM"}

// export is the config.json that from_pretrained of the family's class reads.
func (c *llama) export() map[string]any {
	config := exported(c.family, c.fields())
	config["architectures"], config["use_cache"] = []string{architectures[c.family]}, true
	if c.family == "mistral" && c.window == 0 {
		config["sliding_window"] = nil // 0 would hide everything
	}
	return config
}

// llamaBuffer recognises the wavelengths that older Hugging Face files store beside the parameters.
func llamaBuffer(tensor string) bool { return strings.HasSuffix(tensor, ".rotary_emb.inv_freq") }
