package model

import (
	"fmt"
	"math"
	"slices"

	"github.com/avgpipe/avgpipe/stage/device"
	"github.com/avgpipe/avgpipe/stage/layer"
)

// mlp is the config of fully connected networks on images or on rows of features: hidden layers, each followed by an activation
// and dropout, and the logits. Tensors are named layers.0.weight and so on, in the shapes of PyTorch's nn.Linear.
type mlp struct {
	imageSize, numChannels, numFeatures, numLabels int
	hiddenSizes                                    []int
	hiddenAct                                      string
	dropout                                        float64
}

func (c *mlp) fields() []Field {
	return []Field{
		integer("image_size", &c.imageSize, 28, 1, 1<<12, "Rows, and columns, of an image."),
		integer("num_channels", &c.numChannels, 1, 1, 1<<12, "Channels of an image: 3 for colours, 1 for grey."),
		integer("num_features", &c.numFeatures, 0, 0, 1<<30, "When not 0, samples are rows of so many features instead of images."),
		list("hidden_sizes", &c.hiddenSizes, []int{512, 512}, 0, 1<<20, "Widths of the hidden layers; an empty list makes it softmax regression."),
		word("hidden_act", &c.hiddenAct, "relu", []string{"relu", "gelu", "gelu_new"}, "relu, gelu or gelu_new, the tanh form of GELU."),
		number("dropout", &c.dropout, 0, rate, "Probability with which an output of a hidden layer is dropped."),
		integer("num_labels", &c.numLabels, 10, 1, 1<<24, "Classes: 0 to num_labels-1."),
	}
}

func (c *mlp) build(m *Model) {
	m.Task, m.Loss, m.sequence = Images, layer.Loss{Classes: c.numLabels}, 1
	m.Image = Image{Channels: c.numChannels, Height: c.imageSize, Width: c.imageSize}
	if c.numFeatures > 0 {
		m.Image = Image{Channels: 1, Height: 1, Width: c.numFeatures}
	}
	in := m.Image.Channels * m.Image.Height * m.Image.Width
	for i, width := range slices.Concat(c.hiddenSizes, []int{c.numLabels}) {
		m.Layers = append(m.Layers, c.unit(i, in, width))
		in = width
	}
}

// unit is a linear layer with what follows it. Hidden weights keep the variance of what flows forward (He et al. 2015,
// equation 10).
func (c *mlp) unit(i, in, out int) layer.Layer {
	path := fmt.Sprintf("layers.%d", i)
	linear := layer.Linear{Path: path, In: in, Out: out, Bias: true, OutIn: true, Init: linearInit(in)}
	hidden := i < len(c.hiddenSizes)
	if hidden {
		linear.Init = layer.Init{Deviation: math.Sqrt(2 / float64(in))}
	}
	var first layer.Layer = linear
	if i == 0 {
		first = layer.Data{Layer: linear}
	}
	if !hidden {
		return first
	}
	return layer.NewChain(path+".unit", first, layer.NewDropout(boundary{layer.NewActivation(path+".act", activations[c.hiddenAct], out)}, c.dropout))
}

// boundary is a layer at the end of a unit, which may end a stage: it gives F32 whatever type products compute in.
type boundary struct{ layer.Layer }

// Describe implements layer.Layer.
func (l boundary) Describe(s layer.Size) layer.Description {
	s.Compute = device.F32
	return l.Layer.Describe(s)
}
