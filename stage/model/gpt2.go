package model

import (
	"fmt"
	"math"
	"strings"

	"github.com/avgpipe/avgpipe/stage/layer"
)

// gpt2 is the config of the GPT-2 family (Radford et al. 2019), with the defaults of Hugging Face's GPT2Config. The one
// deviation: the three dropout probabilities default to 0 instead of 0.1, as in training over data that do not repeat.
type gpt2 struct {
	vocabSize, nPositions, nEmbd, nLayer, nHead, nInner int
	activation                                          string
	epsilon, initializerRange                           float64
	tie                                                 bool
	residDropout, embdDropout, attnDropout              float64
}

func defaultGPT2() *gpt2 {
	return &gpt2{
		vocabSize: 50257, nPositions: 1024, nEmbd: 768, nLayer: 12, nHead: 12,
		activation: "gelu_new", epsilon: 1e-5, initializerRange: 0.02, tie: true,
	}
}

// fields is the one place where the family's fields are listed.
func (c *gpt2) fields() []Field {
	return []Field{
		{Name: "vocab_size", target: &c.vocabSize, Doc: "Token ids: 0 to vocab_size-1."},
		{Name: "n_positions", target: &c.nPositions, Doc: "The longest sample, in tokens."},
		{Name: "n_embd", target: &c.nEmbd, Doc: "Width of the activations; a multiple of n_head."},
		{Name: "n_layer", target: &c.nLayer, Doc: "Transformer blocks."},
		{Name: "n_head", target: &c.nHead, Doc: "Attention heads of a block."},
		{Name: "n_inner", target: &c.nInner, Doc: "Inner width of the feed-forward branch; 0 or null: 4 * n_embd."},
		{Name: "activation_function", target: &c.activation, Doc: "The tanh form of GELU, as gelu_new, gelu_pytorch_tanh or gelu_fast."},
		{Name: "layer_norm_epsilon", target: &c.epsilon, Doc: "Added to the variance in layer norms."},
		{Name: "initializer_range", target: &c.initializerRange, Doc: "Standard deviation of fresh weights."},
		{Name: "tie_word_embeddings", target: &c.tie, Doc: "The output projection is the token embedding."},
		{Name: "resid_pdrop", target: &c.residDropout, Doc: "Dropout of both branches of a block."},
		{Name: "embd_pdrop", target: &c.embdDropout, Doc: "Dropout of the embeddings."},
		{Name: "attn_pdrop", target: &c.attnDropout, Doc: "Dropout of the attention probabilities."},
	}
}

func gpt2Fields() []Field { return describe(defaultGPT2().fields()) }

func (c *gpt2) validate() error {
	if err := checkIntegers([]integerField{
		{"vocab_size", c.vocabSize, 1, 1 << 24},
		{"n_positions", c.nPositions, 1, 1 << 20},
		{"n_embd", c.nEmbd, 1, 1 << 18},
		{"n_layer", c.nLayer, 1, 1 << 14},
		{"n_head", c.nHead, 1, 1 << 16},
		{"n_inner", c.nInner, 0, 1 << 20},
	}); err != nil {
		return err
	}
	if err := checkMultiple("n_embd", c.nEmbd, "n_head", c.nHead); err != nil {
		return err
	}
	if err := checkActivation("activation_function", c.activation, tanhGELU); err != nil {
		return err
	}
	if err := checkScales("layer_norm_epsilon", c.epsilon, c.initializerRange); err != nil {
		return err
	}
	return checkRates([]rateField{
		{"resid_pdrop", c.residDropout}, {"embd_pdrop", c.embdDropout}, {"attn_pdrop", c.attnDropout},
	})
}

func buildGPT2(config map[string]any) (*Model, error) {
	c := defaultGPT2()
	if err := read(c, config); err != nil {
		return nil, err
	}
	if c.nInner == 0 {
		c.nInner = 4 * c.nEmbd
	}
	m := &Model{
		Family: "gpt2", Task: Language, Loss: layer.Loss{Classes: c.vocabSize},
		vocabulary: c.vocabSize, sequence: c.nPositions,
		prefix: "transformer.", skip: gpt2Buffer, config: c.export(),
	}
	m.Layers = append(m.Layers, c.embedding())
	for i := range c.nLayer {
		m.Layers = append(m.Layers, c.block(i))
	}
	m.Layers = append(m.Layers, c.head())
	return m, nil
}

func (c *gpt2) embedding() layer.Layer {
	init := layer.Init{Deviation: c.initializerRange}
	return layer.NewDropout(layer.Embedding{
		Path: "transformer.embedding", TokenPath: "transformer.wte", PositionPath: "transformer.wpe",
		Vocabulary: c.vocabSize, MaxT: c.nPositions, Width: c.nEmbd, TokenInit: init, PositionInit: init,
	}, c.embdDropout)
}

// block is transformer.h.i. The two projections that feed the residual stream start smaller by 1/sqrt(2 n_layer), since
// that many of them add up in it (Radford et al. 2019, section 2.3).
func (c *gpt2) block(i int) layer.Layer {
	path := fmt.Sprintf("transformer.h.%d", i)
	d := c.nEmbd
	linear := func(name string, in, out int, deviation float64) layer.Linear {
		return layer.Linear{Path: path + name, In: in, Out: out, Bias: true, Init: layer.Init{Deviation: deviation}}
	}
	plain, residual := c.initializerRange, c.initializerRange/math.Sqrt(2*float64(c.nLayer))
	attention := &layer.SelfAttention{
		Path: path + ".attn", Heads: c.nHead, Rate: c.attnDropout,
		QKV: linear(".attn.c_attn", d, 3*d, plain), Project: linear(".attn.c_proj", d, d, residual),
	}
	mlp := layer.NewMLP(path+".mlp", linear(".mlp.c_fc", d, c.nInner, plain), linear(".mlp.c_proj", c.nInner, d, residual))
	norm1, norm2 := c.norm(path+".ln_1"), c.norm(path+".ln_2")
	if c.residDropout == 0 {
		return layer.NewBlock(path, norm1, attention, norm2, mlp)
	}
	return layer.NewChain(path,
		layer.NewResidual(layer.NewDropout(layer.NewChain(attention.Path, norm1, attention), c.residDropout)),
		layer.NewResidual(layer.NewDropout(layer.NewChain(mlp.Name(), norm2, mlp), c.residDropout)))
}

func (c *gpt2) norm(path string) layer.LayerNorm {
	return layer.LayerNorm{Path: path, Width: c.nEmbd, Epsilon: float32(c.epsilon)}
}

func (c *gpt2) head() layer.Layer {
	logits := layer.Linear{
		Path: "lm_head", In: c.nEmbd, Out: c.vocabSize, OutIn: true, Init: layer.Init{Deviation: c.initializerRange},
	}
	if c.tie {
		logits.TiedTo = "transformer.wte.weight"
	}
	return layer.NewHead("transformer.head", c.norm("transformer.ln_f"), logits)
}

// export is the config.json that from_pretrained of GPT2LMHeadModel reads.
func (c *gpt2) export() map[string]any {
	config := map[string]any{
		"model_type": "gpt2", "architectures": []string{"GPT2LMHeadModel"}, "torch_dtype": "float32",
		"n_ctx": c.nPositions, "scale_attn_weights": true, "use_cache": true,
	}
	for _, f := range describe(c.fields()) {
		config[f.Name] = f.Default
	}
	return config
}

// gpt2Buffer recognises the causal masks that older Hugging Face files store beside the parameters.
func gpt2Buffer(tensor string) bool {
	return strings.HasSuffix(tensor, ".attn.bias") || strings.HasSuffix(tensor, ".attn.masked_bias")
}
