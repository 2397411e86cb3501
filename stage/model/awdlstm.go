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

func defaultAWDLSTM() *awdLSTM {
	return &awdLSTM{
		ntoken: 33278, ninp: 400, nhid: 1150, nlayers: 3, bptt: 70,
		dropout: 0.4, dropouth: 0.3, dropouti: 0.65, dropoute: 0.1, wdrop: 0.5, alpha: 2, beta: 1, tieWeights: true,
	}
}

func (c *awdLSTM) fields() []Field {
	return []Field{
		{Name: "ntoken", target: &c.ntoken, Doc: "Token ids: 0 to ntoken-1."},
		{Name: "ninp", target: &c.ninp, Doc: "Width of the embeddings, and of the last layer when weights are tied."},
		{Name: "nhid", target: &c.nhid, Doc: "Cells of an LSTM layer."},
		{Name: "nlayers", target: &c.nlayers, Doc: "LSTM layers."},
		{Name: "bptt", target: &c.bptt, Doc: "The longest sample, in tokens: each starts from a state of zeros."},
		{Name: "dropout", target: &c.dropout, Doc: "Variational dropout of the last layer's output."},
		{Name: "dropouth", target: &c.dropouth, Doc: "Variational dropout between LSTM layers."},
		{Name: "dropouti", target: &c.dropouti, Doc: "Variational dropout of the embedded input."},
		{Name: "dropoute", target: &c.dropoute, Doc: "Probability with which all occurrences of a word are dropped."},
		{Name: "wdrop", target: &c.wdrop, Doc: "Probability with which a recurrent weight is dropped, once per step."},
		{Name: "alpha", target: &c.alpha, Doc: "Activation regularisation; the reported loss is without it."},
		{Name: "beta", target: &c.beta, Doc: "Temporal activation regularisation; the reported loss is without it."},
		{Name: "tie_weights", target: &c.tieWeights, Doc: "The output projection is the token embedding."},
	}
}

func awdLSTMFields() []Field { return describe(defaultAWDLSTM().fields()) }

func (c *awdLSTM) validate() error {
	if err := checkIntegers([]integerField{
		{"ntoken", c.ntoken, 1, 1 << 24},
		{"ninp", c.ninp, 1, 1 << 14},
		{"nhid", c.nhid, 1, 1 << 14},
		{"nlayers", c.nlayers, 1, 1 << 10},
		{"bptt", c.bptt, 1, 1 << 16},
	}); err != nil {
		return err
	}
	for _, f := range []struct {
		name  string
		value float64
	}{{"alpha", c.alpha}, {"beta", c.beta}} {
		if !(f.value >= 0) {
			return &FieldError{Field: f.name, Found: f.value, Allowed: "a number of at least 0", Nearest: "0"}
		}
	}
	return checkRates([]rateField{
		{"dropout", c.dropout}, {"dropouth", c.dropouth}, {"dropouti", c.dropouti}, {"dropoute", c.dropoute}, {"wdrop", c.wdrop},
	})
}

func buildAWDLSTM(config map[string]any) (*Model, error) {
	c := defaultAWDLSTM()
	if err := read(c, config); err != nil {
		return nil, err
	}
	m := &Model{
		Family: "awd-lstm", Task: Language, Loss: layer.Loss{Classes: c.ntoken},
		vocabulary: c.ntoken, sequence: c.bptt, skip: noBuffer, config: exported("awd-lstm", c.fields()),
	}
	m.Layers = append(m.Layers, layer.NewChain("embedding",
		layer.WordEmbedding{
			Path: "embedding.words", TokenPath: "encoder", Vocabulary: c.ntoken, Width: c.ninp, Drop: c.dropoute,
			Init: layer.UniformInit(0.1),
		},
		layer.VariationalDropout{Path: "embedding.dropout", Width: c.ninp, Rate: c.dropouti}))
	for i := range c.nlayers {
		m.Layers = append(m.Layers, c.layer(i))
	}
	logits := layer.Linear{
		Path: "decoder", In: c.width(c.nlayers - 1), Out: c.ntoken, Bias: true, OutIn: true, Init: layer.UniformInit(0.1),
	}
	if c.tieWeights {
		logits.TiedTo = "encoder.weight"
	}
	m.Layers = append(m.Layers, logits)
	return m, nil
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
