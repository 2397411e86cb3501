package model

import (
	"fmt"
	"math"

	"github.com/avgpipe/avgpipe/stage/layer"
)

// awdLSTM is the config of AWD-LSTM (Merity et al. 2018), with the field and tensor names and the defaults of the authors'
// awd-lstm-lm; alpha, beta and bptt are flags of its training. Deviations: every sample starts from a state of zeros, where
// the authors carry the state from one window of text to the next, and bptt is the same for all samples; tensors are named
// as without weight drop, "rnns.0.weight_hh_l0"; weights start normally distributed with the variance of the authors'
// uniform distributions.
type awdLSTM struct {
	ntoken, ninp, nhid, nlayers, bptt            int
	dropout, dropouth, dropouti, dropoute, wdrop float64
	alpha, beta                                  float64
	tieWeights                                   bool
}

func (c *awdLSTM) fields() []Field {
	return []Field{
		integer("ntoken", &c.ntoken, 33278, 1, 1<<24, "Token ids: 0 to ntoken-1."),
		integer("ninp", &c.ninp, 400, 1, 1<<14, "Width of the embeddings, and of the last layer when weights are tied."),
		integer("nhid", &c.nhid, 1150, 1, 1<<14, "Cells of an LSTM layer."),
		integer("nlayers", &c.nlayers, 3, 1, 1<<10, "LSTM layers."),
		integer("bptt", &c.bptt, 70, 1, 1<<16, "The longest sample, in tokens: each starts from a state of zeros."),
		number("dropout", &c.dropout, 0.4, rate, "Variational dropout of the last layer's output."),
		number("dropouth", &c.dropouth, 0.3, rate, "Variational dropout between LSTM layers."),
		number("dropouti", &c.dropouti, 0.65, rate, "Variational dropout of the embedded input."),
		number("dropoute", &c.dropoute, 0.1, rate, "Probability with which all occurrences of a word are dropped."),
		number("wdrop", &c.wdrop, 0.5, rate, "Probability with which a recurrent weight is dropped, once per step."),
		number("alpha", &c.alpha, 2, atLeast0, "Activation regularisation; the reported loss is without it."),
		number("beta", &c.beta, 1, atLeast0, "Temporal activation regularisation; the reported loss is without it."),
		flag("tie_weights", &c.tieWeights, true, "The output projection is the token embedding."),
	}
}

func (c *awdLSTM) build(m *Model) {
	embedding := layer.NewChain("embedding",
		layer.Embedding{
			Path: "embedding.words", Tokens: layer.Table{Path: "encoder", Rows: c.ntoken, Init: layer.UniformInit(0.1)}, Width: c.ninp, Drop: c.dropoute,
		},
		layer.VariationalDropout{Path: "embedding.dropout", Width: c.ninp, Rate: c.dropouti})
	logits := layer.Linear{
		Path: "decoder", In: c.width(c.nlayers - 1), Out: c.ntoken, Bias: true, OutIn: true, Init: layer.UniformInit(0.1),
	}
	if c.tieWeights {
		logits.TiedTo = "encoder.weight"
	}
	m.language(c.ntoken, c.bptt, embedding, c.nlayers, c.layer, logits)
}

// width is the number of cells of LSTM layer i; at -1 the width of the embeddings.
func (c *awdLSTM) width(i int) int {
	if i < 0 || i == c.nlayers-1 && c.tieWeights {
		return c.ninp
	}
	return c.nhid
}

// layer is LSTM layer i with the dropout of its output. The last layer's activations are regularised.
func (c *awdLSTM) layer(i int) layer.Layer {
	path, hidden := fmt.Sprintf("rnns.%d", i), c.width(i)
	drop := layer.VariationalDropout{Path: path + ".dropout", Width: hidden, Rate: c.dropouth}
	if i == c.nlayers-1 {
		drop.Rate, drop.Activation, drop.Temporal = c.dropout, c.alpha, c.beta
	}
	lstm := layer.LSTM{
		Path: path, In: c.width(i - 1), Hidden: hidden, WeightDrop: c.wdrop,
		Init: layer.UniformInit(1 / math.Sqrt(float64(hidden))), // PyTorch's
	}
	return layer.NewChain(path+".layer", lstm, drop)
}
