package model

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/avgpipe/avgpipe/stage/device"
	"github.com/avgpipe/avgpipe/stage/layer"
)

// What architectures can be in a bert config: which head follows the blocks.
const (
	bertClassifier = "BertForSequenceClassification"
	bertMasked     = "BertForMaskedLM"
)

const exactGELU = "gelu"

// bert is the config of the BERT family (Devlin et al. 2019), with the field names and defaults of Hugging Face's BertConfig.
type bert struct {
	architecture, act                                  string
	vocabSize, hidden, inner, layers, heads, positions int
	types, labels                                      int
	epsilon, initializerRange                          float64
	hiddenDropout, attentionDropout, classifierDropout float64
	tie                                                bool
}

func (c *bert) fields() []Field {
	return []Field{
		word("architectures", &c.architecture, bertClassifier, []string{bertMasked, bertClassifier},
			bertClassifier+": the class of a text or of a pair of texts; "+bertMasked+": hidden tokens."),
		integer("vocab_size", &c.vocabSize, 30522, 1, 1<<24, "Token ids: 0 to vocab_size-1."),
		integer("type_vocab_size", &c.types, 2, 1, 1<<16, "Token types: 0 to type_vocab_size-1, 2 to tell the texts of a pair apart."),
		integer("num_labels", &c.labels, 2, 1, 1<<20, "Classes, with "+bertClassifier+"."),
		integer("max_position_embeddings", &c.positions, 512, 1, 1<<20, "The longest sample, in tokens."),
		integer("hidden_size", &c.hidden, 768, 1, 1<<18, "Width of the activations; a multiple of num_attention_heads."),
		integer("num_hidden_layers", &c.layers, 12, 1, 1<<14, "Transformer blocks."),
		integer("num_attention_heads", &c.heads, 12, 1, 1<<16, "Attention heads of a block."),
		integer("intermediate_size", &c.inner, 3072, 1, 1<<20, "Inner width of the feed-forward branch."),
		word("hidden_act", &c.act, exactGELU, append([]string{exactGELU}, tanhGELU...),
			"gelu, or its tanh form as gelu_new, gelu_pytorch_tanh or gelu_fast."),
		number("layer_norm_eps", &c.epsilon, 1e-12, above0, "Added to the variance in layer norms."),
		number("initializer_range", &c.initializerRange, 0.02, atLeast0, "Standard deviation of fresh weights."),
		number("hidden_dropout_prob", &c.hiddenDropout, 0.1, rate, "Dropout of the embeddings and of both branches of a block."),
		number("attention_probs_dropout_prob", &c.attentionDropout, 0.1, rate, "Dropout of the attention probabilities."),
		number("classifier_dropout", &c.classifierDropout, -1, rateOrOff, "Dropout before the classifier; -1 or null: hidden_dropout_prob."),
		flag("tie_word_embeddings", &c.tie, true,
			"The projection to the vocabulary is the token embedding, with "+bertMasked+"; true is the only value."),
	}
}

func (c *bert) validate() error {
	if !c.tie {
		return &FieldError{Field: "tie_word_embeddings", Found: false, Allowed: "true", Nearest: "true"}
	}
	if c.classifierDropout == -1 {
		c.classifierDropout = c.hiddenDropout
	}
	return checkMultiple("hidden_size", c.hidden, "num_attention_heads", c.heads)
}

func (c *bert) build(m *Model) {
	// The buffer of positions, the stored copies of what is tied, and the parts of a file of BertForPreTraining that the architecture does not
	// have, which Hugging Face passes over too.
	if m.skip = []string{"*embeddings.position_ids"}; c.architecture == bertMasked {
		m.skip = append(m.skip, "cls.predictions.decoder.*", "cls.seq_relationship.*", "bert.pooler.*", "pooler.*")
		m.language(c.vocabSize, c.positions, c.embedding(), c.layers, c.block, c.predictions())
		m.Task = MaskedLanguage
	} else {
		m.skip = append(m.skip, "cls.*")
		m.language(c.vocabSize, c.positions, c.embedding(), c.layers, c.block, c.classifier())
		m.Task, m.Loss = Classification, layer.Loss{Classes: c.labels, PerSample: true}
		m.heads = heads{own: []string{"bert.pooler.", "classifier."}, other: "cls."} // fine-tuned from a masked language model
	}
	m.frontOf(c.hidden, func(last layer.Layer) layer.Layer { return layer.PassMask{Layer: last} }, true, "cls.*", "classifier.*", "bert.pooler.*", "pooler.*")
	m.prefix, m.aliases = "bert.", bertAliases
	c.export(m.config)
}

func (c *bert) init() layer.Init { return layer.Init{Deviation: c.initializerRange} }

func (c *bert) linear(path string, in, out int) layer.Linear {
	return layer.Linear{Path: path, In: in, Out: out, Bias: true, OutIn: true, Init: c.init()}
}

func (c *bert) norm(path string) layer.LayerNorm {
	return layer.LayerNorm{Path: path + ".LayerNorm", Width: c.hidden, Epsilon: float32(c.epsilon)}
}

func (c *bert) embedding() layer.Layer {
	const path = "bert.embeddings"
	table := func(name string, rows int) layer.Table {
		return layer.Table{Path: path + name, Rows: rows, Init: c.init()}
	}
	sum := layer.Embedding{
		Path: path, Tokens: table(".word_embeddings", c.vocabSize), Positions: table(".position_embeddings", c.positions),
		Types: table(".token_type_embeddings", c.types), Width: c.hidden,
	}
	return layer.PassMask{Layer: layer.NewDropout(layer.NewChain(path, sum, c.norm(path)), c.hiddenDropout)}
}

// block is bert.encoder.layer.i. All but the last give the mask on.
func (c *bert) block(i int) layer.Layer {
	path := fmt.Sprintf("bert.encoder.layer.%d", i)
	self := path + ".attention.self"
	attention := &layer.SelfAttention{
		Path: self, Heads: c.heads, KV: c.heads, Bidirectional: true, Masked: true, Rate: c.attentionDropout,
		QKV: []layer.Linear{
			c.linear(self+".query", c.hidden, c.hidden), c.linear(self+".key", c.hidden, c.hidden), c.linear(self+".value", c.hidden, c.hidden),
		},
		Project: c.linear(path+".attention.output.dense", c.hidden, c.hidden),
	}
	mlp := layer.NewChain(path+".output", c.linear(path+".intermediate.dense", c.hidden, c.inner),
		layer.NewActivation(path+".intermediate.act", activations[c.act], c.inner), c.linear(path+".output.dense", c.inner, c.hidden))
	block := layer.NewChain(path,
		layer.NewPostNorm(layer.NewDropout(attention, c.hiddenDropout), c.norm(path+".attention.output")),
		layer.NewPostNorm(layer.NewDropout(mlp, c.hiddenDropout), c.norm(path+".output")))
	if i == c.layers-1 {
		return block
	}
	return layer.PassMask{Layer: block}
}

// classifier is the pooler and the projection to the classes, of the first position.
func (c *bert) classifier() layer.Layer {
	pooler := layer.NewChain("bert.pooler", c.linear("bert.pooler.dense", c.hidden, c.hidden),
		layer.NewActivation("bert.pooler.act", device.Tanh, c.hidden))
	return layer.NewFirst(layer.NewChain("classifier", layer.NewDropout(pooler, c.classifierDropout),
		c.linear("classifier", c.hidden, c.labels)))
}

// predictions is the projection to the vocabulary. Its weight is the token embedding, and has no name of its own in files
// of ours.
func (c *bert) predictions() layer.Layer {
	const path, transform = "cls.predictions", "cls.predictions.transform"
	logits := c.linear(path, c.hidden, c.vocabSize)
	logits.TiedTo = "bert.embeddings.word_embeddings.weight"
	return layer.NewChain(path, c.linear(transform+".dense", c.hidden, c.hidden),
		layer.NewActivation(transform+".act", activations[c.act], c.hidden), layer.NewWiden(transform+".wide", c.hidden), c.norm(transform), logits)
}

// export completes the config.json that from_pretrained of the architecture reads.
func (c *bert) export(config map[string]any) {
	config["architectures"], config["position_embedding_type"] = []string{c.architecture}, "absolute"
	ids, names := map[string]any{}, map[string]any{}
	for i := range c.labels {
		name := "LABEL_" + strconv.Itoa(i)
		ids[strconv.Itoa(i)], names[name] = name, i
	}
	config["id2label"], config["label2id"] = ids, names
}

// bertAliases are the names of norms in the files of the first releases, converted from TensorFlow's.
func bertAliases(name string) []string {
	for now, then := range map[string]string{".LayerNorm.weight": ".LayerNorm.gamma", ".LayerNorm.bias": ".LayerNorm.beta"} {
		if path, ok := strings.CutSuffix(name, now); ok {
			return []string{path + then}
		}
	}
	return nil
}

// relax counts the labels that a config.json names.
func (c *bert) relax(config map[string]any) {
	if labels, ok := config["id2label"].(map[string]any); ok && config["num_labels"] == nil {
		config["num_labels"] = len(labels)
	}
}
