package model

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/avgpipe/avgpipe/internal/nearest"
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

func defaultBERT() *bert {
	return &bert{
		architecture: bertClassifier, act: "gelu", vocabSize: 30522, hidden: 768, inner: 3072, layers: 12, heads: 12,
		positions: 512, types: 2, labels: 2, epsilon: 1e-12, initializerRange: 0.02,
		hiddenDropout: 0.1, attentionDropout: 0.1, classifierDropout: -1, tie: true,
	}
}

func (c *bert) fields() []Field {
	return []Field{
		{Name: "architectures", target: &c.architecture, Doc: bertClassifier + ": the class of a text or of a pair of texts; " + bertMasked + ": hidden tokens."},
		{Name: "vocab_size", target: &c.vocabSize, Doc: "Token ids: 0 to vocab_size-1."},
		{Name: "type_vocab_size", target: &c.types, Doc: "Token types: 0 to type_vocab_size-1, 2 to tell the texts of a pair apart."},
		{Name: "num_labels", target: &c.labels, Doc: "Classes, with " + bertClassifier + "."},
		{Name: "max_position_embeddings", target: &c.positions, Doc: "The longest sample, in tokens."},
		{Name: "hidden_size", target: &c.hidden, Doc: "Width of the activations; a multiple of num_attention_heads."},
		{Name: "num_hidden_layers", target: &c.layers, Doc: "Transformer blocks."},
		{Name: "num_attention_heads", target: &c.heads, Doc: "Attention heads of a block."},
		{Name: "intermediate_size", target: &c.inner, Doc: "Inner width of the feed-forward branch."},
		{Name: "hidden_act", target: &c.act, Doc: "gelu, or its tanh form as gelu_new, gelu_pytorch_tanh or gelu_fast."},
		{Name: "layer_norm_eps", target: &c.epsilon, Doc: "Added to the variance in layer norms."},
		{Name: "initializer_range", target: &c.initializerRange, Doc: "Standard deviation of fresh weights."},
		{Name: "hidden_dropout_prob", target: &c.hiddenDropout, Doc: "Dropout of the embeddings and of both branches of a block."},
		{Name: "attention_probs_dropout_prob", target: &c.attentionDropout, Doc: "Dropout of the attention probabilities."},
		{Name: "classifier_dropout", target: &c.classifierDropout, Doc: "Dropout before the classifier; -1 or null: hidden_dropout_prob."},
		{Name: "tie_word_embeddings", target: &c.tie, Doc: "The projection to the vocabulary is the token embedding, with " + bertMasked + "; true is the only value."},
	}
}

func bertFields() []Field { return describe(defaultBERT().fields()) }

func (c *bert) validate() error {
	if err := checkIntegers([]integerField{
		{"vocab_size", c.vocabSize, 1, 1 << 24},
		{"type_vocab_size", c.types, 1, 1 << 16},
		{"num_labels", c.labels, 1, 1 << 20},
		{"max_position_embeddings", c.positions, 1, 1 << 20},
		{"hidden_size", c.hidden, 1, 1 << 18},
		{"num_hidden_layers", c.layers, 1, 1 << 14},
		{"num_attention_heads", c.heads, 1, 1 << 16},
		{"intermediate_size", c.inner, 1, 1 << 20},
	}); err != nil {
		return err
	}
	if err := checkMultiple("hidden_size", c.hidden, "num_attention_heads", c.heads); err != nil {
		return err
	}
	if known := []string{bertMasked, bertClassifier}; !slices.Contains(known, c.architecture) {
		return &FieldError{Field: "architectures", Found: c.architecture, Allowed: oneOf(known), Nearest: nearest.Word(c.architecture, known)}
	}
	if err := checkActivation("hidden_act", c.act, append([]string{exactGELU}, tanhGELU...)); err != nil {
		return err
	}
	if !c.tie {
		return &FieldError{Field: "tie_word_embeddings", Found: false, Allowed: "true", Nearest: "true"}
	}
	if err := checkScales("layer_norm_eps", c.epsilon, c.initializerRange); err != nil {
		return err
	}
	if c.classifierDropout == -1 {
		c.classifierDropout = c.hiddenDropout
	}
	return checkRates([]rateField{
		{"hidden_dropout_prob", c.hiddenDropout},
		{"attention_probs_dropout_prob", c.attentionDropout},
		{"classifier_dropout", c.classifierDropout},
	})
}

func buildBERT(config map[string]any) (*Model, error) {
	c := defaultBERT()
	if err := read(c, config); err != nil {
		return nil, err
	}
	m := &Model{
		Family: "bert", Task: Classification, Loss: layer.Loss{Classes: c.labels, PerSample: true},
		vocabulary: c.vocabSize, sequence: c.positions,
		prefix: "bert.", aliases: bertAliases, skip: c.skip, config: c.export(),
	}
	head := c.classifier()
	m.heads = heads{own: []string{"bert.pooler.", "classifier."}, other: "cls."} // fine-tuned from a masked language model
	if c.architecture == bertMasked {
		m.heads = heads{}
		m.Task, m.Loss, head = MaskedLanguage, layer.Loss{Classes: c.vocabSize}, c.predictions()
	}
	m.Layers = append(m.Layers, c.embedding())
	for i := range c.layers {
		m.Layers = append(m.Layers, c.block(i))
	}
	m.Layers = append(m.Layers, head)
	return m, nil
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
	sum := layer.TypedEmbedding{
		Path: path, TokenPath: path + ".word_embeddings", PositionPath: path + ".position_embeddings",
		TypePath: path + ".token_type_embeddings", Vocabulary: c.vocabSize, MaxT: c.positions, Types: c.types, Width: c.hidden,
		Init: c.init(),
	}
	return layer.PassMask{Layer: layer.NewDropout(layer.NewChain(path, sum, c.norm(path)), c.hiddenDropout)}
}

// activation is what follows a projection of this width.
func (c *bert) activation(path string, width int) layer.Layer {
	if c.act == exactGELU {
		return layer.Activation{Function: device.GELUErf, Path: path, Width: width}
	}
	return layer.Activation{Function: device.GELU, Path: path, Width: width}
}

// block is bert.encoder.layer.i. All but the last give the mask on.
func (c *bert) block(i int) layer.Layer {
	path := fmt.Sprintf("bert.encoder.layer.%d", i)
	self := path + ".attention.self"
	attention := &layer.GroupedAttention{
		Path: self, Heads: c.heads, KV: c.heads, Bidirectional: true, Masked: true, Rate: c.attentionDropout,
		Q: c.linear(self+".query", c.hidden, c.hidden), K: c.linear(self+".key", c.hidden, c.hidden),
		V:       c.linear(self+".value", c.hidden, c.hidden),
		Project: c.linear(path+".attention.output.dense", c.hidden, c.hidden),
	}
	mlp := layer.NewChain(path+".output", c.linear(path+".intermediate.dense", c.hidden, c.inner),
		c.activation(path+".intermediate.act", c.inner), c.linear(path+".output.dense", c.inner, c.hidden))
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
		layer.Activation{Function: device.Tanh, Path: "bert.pooler.act", Width: c.hidden})
	return layer.NewFirst(layer.NewChain("classifier", layer.NewDropout(pooler, c.classifierDropout),
		c.linear("classifier", c.hidden, c.labels)))
}

// predictions is the projection to the vocabulary. Its weight is the token embedding, and has no name of its own in files
// of ours.
func (c *bert) predictions() layer.Layer {
	const path, transform = "cls.predictions", "cls.predictions.transform"
	logits := c.linear(path, c.hidden, c.vocabSize)
	logits.TiedTo = "bert.embeddings.word_embeddings.weight"
	return layer.NewChain(path, c.linear(transform+".dense", c.hidden, c.hidden), c.activation(transform+".act", c.hidden),
		layer.Widen{Path: transform + ".wide", Width: c.hidden},
		c.norm(transform), logits)
}

// export is the config.json that from_pretrained of the architecture reads.
func (c *bert) export() map[string]any {
	config := exported("bert", c.fields())
	config["architectures"], config["position_embedding_type"] = []string{c.architecture}, "absolute"
	ids, names := map[string]any{}, map[string]any{}
	for i := range c.labels {
		name := "LABEL_" + strconv.Itoa(i)
		ids[strconv.Itoa(i)], names[name] = name, i
	}
	config["id2label"], config["label2id"] = ids, names
	return config
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

// skip recognises the buffer of positions, the stored copies of what is tied, and, as Hugging Face does, the parts of a file
// of BertForPreTraining that this architecture does not have.
func (c *bert) skip(tensor string) bool {
	if strings.HasSuffix(tensor, "embeddings.position_ids") {
		return true
	}
	if c.architecture == bertMasked {
		return strings.HasPrefix(tensor, "cls.predictions.decoder.") || strings.HasPrefix(tensor, "cls.seq_relationship.") ||
			strings.HasPrefix(tensor, "bert.pooler.") || strings.HasPrefix(tensor, "pooler.")
	}
	return strings.HasPrefix(tensor, "cls.")
}

// relaxBERT keeps the fields that Build knows. The architecture is the first one listed, if it is one of ours.
func relaxBERT(config map[string]any) {
	if labels, ok := config["id2label"].(map[string]any); ok && config["num_labels"] == nil {
		config["num_labels"] = len(labels)
	}
	keepFields(bertFields)(config)
}
