package model

import (
	"fmt"
	"maps"
	"math"

	"github.com/avgpipe/avgpipe/stage/device"
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

func (c *gpt2) fields() []Field {
	return []Field{
		integer("vocab_size", &c.vocabSize, 50257, 1, 1<<24, "Token ids: 0 to vocab_size-1."),
		integer("n_positions", &c.nPositions, 1024, 1, 1<<20, "The longest sample, in tokens."),
		integer("n_embd", &c.nEmbd, 768, 1, 1<<18, "Width of the activations; a multiple of n_head."),
		integer("n_layer", &c.nLayer, 12, 1, 1<<14, "Transformer blocks."),
		integer("n_head", &c.nHead, 12, 1, 1<<16, "Attention heads of a block."),
		integer("n_inner", &c.nInner, 0, 0, 1<<20, "Inner width of the feed-forward branch; 0 or null: 4 * n_embd."),
		word("activation_function", &c.activation, "gelu_new", tanhGELU, "The tanh form of GELU, as gelu_new, gelu_pytorch_tanh or gelu_fast."),
		number("layer_norm_epsilon", &c.epsilon, 1e-5, above0, "Added to the variance in layer norms."),
		number("initializer_range", &c.initializerRange, 0.02, atLeast0, "Standard deviation of fresh weights."),
		flag("tie_word_embeddings", &c.tie, true, "The output projection is the token embedding."),
		number("resid_pdrop", &c.residDropout, 0, rate, "Dropout of both branches of a block."),
		number("embd_pdrop", &c.embdDropout, 0, rate, "Dropout of the embeddings."),
		number("attn_pdrop", &c.attnDropout, 0, rate, "Dropout of the attention probabilities."),
	}
}

func (c *gpt2) validate() error {
	if c.nInner == 0 {
		c.nInner = 4 * c.nEmbd
	}
	return checkMultiple("n_embd", c.nEmbd, "n_head", c.nHead)
}

func (c *gpt2) build(m *Model) {
	m.language(c.vocabSize, c.nPositions, c.embedding(), c.nLayer, c.block,
		languageHead("transformer.head", c.norm("transformer.ln_f"), c.vocabSize, c.initializerRange, c.tie, "transformer.wte.weight"))
	m.behindNorm(c.norm("transformer.ln_f"))
	m.prefix, m.skip = "transformer.", []string{"*.attn.bias", "*.attn.masked_bias"} // the causal masks that older Hugging Face files store
	// what from_pretrained of GPT2LMHeadModel reads besides
	maps.Copy(m.config, map[string]any{
		"architectures": []string{"GPT2LMHeadModel"}, "n_ctx": c.nPositions, "scale_attn_weights": true, "use_cache": true,
	})
}

func (c *gpt2) embedding() layer.Layer {
	table := func(path string, rows int) layer.Table {
		return layer.Table{Path: path, Rows: rows, Init: layer.Init{Deviation: c.initializerRange}}
	}
	return layer.NewDropout(layer.Embedding{
		Path: "transformer.embedding", Tokens: table("transformer.wte", c.vocabSize), Positions: table("transformer.wpe", c.nPositions), Width: c.nEmbd,
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
		QKV: []layer.Linear{linear(".attn.c_attn", d, 3*d, plain)}, Project: linear(".attn.c_proj", d, d, residual),
	}
	mlp := layer.NewChain(path+".mlp", linear(".mlp.c_fc", d, c.nInner, plain), layer.NewActivation(path+".mlp.act", device.GELU, c.nInner),
		linear(".mlp.c_proj", c.nInner, d, residual))
	branch := func(norm string, f layer.Layer) layer.Layer {
		return layer.NewResidual(layer.NewDropout(layer.NewChain(layer.Name(f), c.norm(path+norm), f), c.residDropout))
	}
	return layer.NewChain(path, branch(".ln_1", attention), branch(".ln_2", mlp))
}

func (c *gpt2) norm(path string) layer.LayerNorm {
	return layer.LayerNorm{Path: path, Width: c.nEmbd, Epsilon: float32(c.epsilon)}
}
