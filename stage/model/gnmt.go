package model

import (
	"fmt"

	"github.com/avgpipe/avgpipe/stage/device"
	"github.com/avgpipe/avgpipe/stage/layer"
)

// gnmt is the config of the recurrent translator of Wu et al. 2016 in the form of the MLPerf training reference, with that
// one's field and tensor names and defaults: a bidirectional first encoder layer, residual connections from the third layer
// on, normalised additive attention that is computed from the first decoder layer's output and feeds every layer above it.
//
// Deviations: weights start normally distributed with the variance of the reference's uniform distribution; smoothing, there
// a flag of training, and max_length are fields; the padding id has no meaning here, since the mask tells where padding is.
type gnmt struct {
	vocabSize, hiddenSize, numLayers, maxLength int
	dropout, smoothing                          float64
	shareEmbedding                              bool
}

func (c *gnmt) fields() []Field {
	return []Field{
		integer("vocab_size", &c.vocabSize, 32320, 1, 1<<24, "Token ids of both languages: 0 to vocab_size-1."),
		integer("hidden_size", &c.hiddenSize, 1024, 1, 1<<14, "Width of the embeddings, of every LSTM and of the attention."),
		integer("num_layers", &c.numLayers, 4, 2, 1<<10, "LSTM layers of the encoder, and as many of the decoder; at least 2."),
		number("dropout", &c.dropout, 0.2, rate, "Probability with which an input of an LSTM layer is dropped."),
		flag("share_embedding", &c.shareEmbedding, true, "One table of embeddings for both languages. "+
			"It then looks up the target as well, on the first stage, and the embedded target travels past the encoder; "+
			"else the target's ids do."),
		number("smoothing", &c.smoothing, 0.1, rate, "Label smoothing of the training loss; evaluations use none."),
		integer("max_length", &c.maxLength, 50, 1, 1<<16, "The longest sentence of either language, in tokens."),
	}
}

func (c *gnmt) build(m *Model) {
	m.Task, m.Loss, m.vocabulary, m.sequence = Translation, layer.Loss{Classes: c.vocabSize, Smoothing: c.smoothing}, c.vocabSize, c.maxLength
	looked := []int{0}
	if c.shareEmbedding {
		looked = append(looked, 2)
	}
	m.Layers = append(m.Layers, c.lookup("encoder.embedder", c.ids("ids"), looked...))
	for i := range c.numLayers {
		m.Layers = append(m.Layers, c.encoder(i))
	}
	if !c.shareEmbedding {
		m.Layers = append(m.Layers, c.lookup("decoder.embedder", c.rows("encoder"), 2))
	}
	m.Layers = append(m.Layers, c.attention())
	for i := range c.numLayers - 1 {
		m.Layers = append(m.Layers, c.decoder(i))
	}
	m.Layers = append(m.Layers, layer.Linear{
		Path: "decoder.classifier.classifier", In: c.hiddenSize, Out: c.vocabSize, Bias: true, OutIn: true, Init: c.init(),
	})
}

// init is what the reference fills every weight with: uniform on [-0.1, 0.1].
func (c *gnmt) init() layer.Init { return layer.UniformInit(0.1) }

// The streams that cross boundaries: ids and masks as they come in, rows of hidden_size elements elsewhere.
func (c *gnmt) ids(name string) layer.Stream {
	return layer.Stream{Name: name, Type: device.I32, Width: 1, Limit: c.vocabSize}
}

func (c *gnmt) mask() layer.Stream { return layer.Stream{Name: "mask", Type: device.I32, Width: 1} }

func (c *gnmt) rows(name string) layer.Stream { return layer.Stream{Name: name, Width: c.hiddenSize} }

// target is what the decoder begins with, as it passes the encoder.
func (c *gnmt) target() layer.Stream {
	if c.shareEmbedding {
		return c.rows("target")
	}
	return c.ids("decoder_ids")
}

// lookup is the embedding of some of three streams: of source, and of what the decoder begins with.
func (c *gnmt) lookup(path string, source layer.Stream, looked ...int) layer.Layer {
	in := []layer.Stream{source, c.mask(), c.ids("decoder_ids")}
	return &layer.Lookup{Path: path, Vocabulary: c.vocabSize, Width: c.hiddenSize, In: in, Looked: looked, Init: c.init()}
}

func (c *gnmt) lstm(path string, in int) layer.LSTM {
	return layer.LSTM{Path: path, In: in, Hidden: c.hiddenSize, Init: c.init()}
}

// encoder is layer i of the encoder: both ways, with the mask, at i = 0; twice as wide an input at i = 1; residual after that.
func (c *gnmt) encoder(i int) layer.Layer {
	path := fmt.Sprintf("encoder.rnn_layers.%d", i)
	l := &layer.Recurrence{
		LSTM: c.lstm(path, c.hiddenSize), Dropout: c.dropout, Residual: i >= 2,
		In: []layer.Stream{c.rows("x"), c.mask(), c.target()}, Passed: []int{1, 2},
	}
	switch i {
	case 0:
		l.LSTM.Bidirectional, l.Mask = true, 1
	case 1:
		l.LSTM.In, l.In[0].Width = 2*c.hiddenSize, 2*c.hiddenSize
	}
	return l
}

func (c *gnmt) attention() layer.Layer {
	return &layer.AttendingLSTM{
		Path: "decoder.att_rnn", LSTM: c.lstm("decoder.att_rnn.rnn", c.hiddenSize), Keys: c.hiddenSize, Units: c.hiddenSize,
		Dropout: c.dropout, Init: c.init(),
	}
}

// decoder is layer i of the decoder above the attending one: its input is joined by the context, which it passes on but for
// the last.
func (c *gnmt) decoder(i int) layer.Layer {
	l := &layer.Recurrence{
		LSTM: c.lstm(fmt.Sprintf("decoder.rnn_layers.%d", i), 2*c.hiddenSize), Dropout: c.dropout, Residual: i >= 1,
		In: []layer.Stream{c.rows("x"), c.rows("context")}, Joined: 1,
	}
	if i < c.numLayers-2 {
		l.Passed = []int{1}
	}
	return l
}
