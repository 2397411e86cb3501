package model

import (
	"fmt"
	"slices"

	"github.com/avgpipe/avgpipe/stage/layer"
)

// resnet is the config of residual networks (He et al. 2016a): those for ImageNet (table 1) and those of depth 6n+2 for
// CIFAR-10 (section 4.2). Field names are those of Hugging Face's ResNetConfig, whose defaults make ResNet-50, and tensor
// names torchvision's.
//
// ResNet-18 has layer_type basic, hidden_sizes 64 to 512 and depths 2, 2, 2, 2; the CIFAR form of depth 6n+2 has stem
// cifar, layer_type basic, embedding_size 16, hidden_sizes 16, 32, 64 and depths n, n, n.
//
// Deviations, as in torchvision: where a block changes the shape its skip is a projection (option B), for CIFAR too; the
// stride of a bottleneck lies in its middle convolution unless downsample_in_bottleneck is set.
type resnet struct {
	images
	stem, layerType, hiddenAct        string
	embeddingSize                     int
	downsampleFirst, downsampleBottom bool
}

func (c *resnet) fields() []Field {
	return slices.Concat(c.images.fields(), []Field{
		word("stem", &c.stem, "imagenet", []string{"imagenet", "cifar"}, "imagenet: a 7x7 convolution of stride 2 and a max pool of stride 2; cifar: a 3x3 convolution."),
		integer("embedding_size", &c.embeddingSize, 64, 1, 1<<16, "Channels out of the stem."),
	}, c.groupFields(
		[]int{256, 512, 1024, 2048}, "Channels out of each group of blocks; each group but the first halves rows and columns.",
		[]int{3, 4, 6, 3}, "Blocks of each group."), []Field{
		word("layer_type", &c.layerType, "bottleneck", []string{"bottleneck", "basic"}, "basic: blocks of two 3x3 convolutions; bottleneck: 1x1, 3x3 and 1x1, the inner two a quarter as wide."),
		word("hidden_act", &c.hiddenAct, "relu", []string{"relu"}, "relu is the only one."),
		flag("downsample_in_first_stage", &c.downsampleFirst, false, "The first group halves rows and columns too."),
		flag("downsample_in_bottleneck", &c.downsampleBottom, false, "The stride of a bottleneck lies in its first convolution, as in the paper."),
	}, c.normFields([]string{normBatch, normGroup}, "batch or group."))
}

func (c *resnet) validate() error {
	widths := append([]int{c.embeddingSize}, c.hiddenSizes...)
	if c.layerType == "bottleneck" {
		for _, width := range c.hiddenSizes {
			if err := checkMultiple("hidden_sizes", width, "the bottleneck's reduction", reduction); err != nil {
				return err
			}
			widths = append(widths, width/reduction)
		}
	}
	return c.images.validate(widths...)
}

// reduction is how much narrower the inside of a bottleneck is.
const reduction = 4

func (c *resnet) build(m *Model) {
	c.begin(m)
	stem, of := c.stemLayer()
	m.Layers = append(m.Layers, stem)
	for group, width := range c.hiddenSizes {
		for i := range c.depths[group] {
			stride := 1
			if i == 0 && (group > 0 || c.downsampleFirst) {
				stride = 2
			}
			var block layer.Layer
			block, of = c.block(fmt.Sprintf("layer%d.%d", group+1, i), of, width, stride)
			m.Layers = append(m.Layers, block)
		}
	}
	m.Layers = append(m.Layers, layer.NewChain("head", layer.NewAveragePool("avgpool", of),
		layer.Linear{Path: "fc", In: of.Channels, Out: c.numLabels, Bias: true, OutIn: true, Init: linearInit(of.Channels)}))
}

// stemLayer is what comes before the blocks, and its output.
func (c *resnet) stemLayer() (layer.Layer, layer.Image) {
	convolution := layer.Convolution{Path: "conv1", Of: c.input(), Out: c.embeddingSize, Kernel: 3, Stride: 1, Padding: 1}
	if c.stem == "imagenet" {
		convolution.Kernel, convolution.Stride, convolution.Padding = 7, 2, 3
	}
	of := convolution.Output()
	layers := []layer.Layer{
		layer.NewFromPixels("pixels", c.input()), layer.Data{Layer: convolution}, c.normalise("bn1", of),
	}
	if c.stem == "imagenet" {
		pool, to := layer.NewMaxPool("maxpool", of, 3, 2, 1)
		layers, of = append(layers, pool), to
	}
	return layer.NewChain("stem", layers...), of
}

// block is one block, and its output.
func (c *resnet) block(path string, of layer.Image, width, stride int) (_ layer.Layer, to layer.Image) {
	to, n := of, 0 // where the branch has come to, after so many convolutions
	convolution := func(width, kernel, stride int) layer.Layer {
		n++
		l := layer.Convolution{Path: fmt.Sprintf("%s.conv%d", path, n), Of: to, Out: width, Kernel: kernel, Stride: stride, Padding: kernel / 2}
		to = l.Output()
		return l
	}
	norm := func() layer.ImageNorm { return c.normalise(fmt.Sprintf("%s.bn%d", path, n), to) } // of the convolution before it
	var branch []layer.Layer
	if c.layerType == "basic" {
		branch = append(branch, convolution(width, 3, stride), norm(), convolution(width, 3, 1))
	} else {
		first, second := 1, stride
		if c.downsampleBottom {
			first, second = stride, 1
		}
		branch = append(branch, convolution(width/reduction, 1, first), norm(), convolution(width/reduction, 3, second), norm(), convolution(width, 1, 1))
	}
	var skip layer.Layer
	if of != to {
		projection := layer.Convolution{Path: path + ".downsample.0", Of: of, Out: width, Kernel: 1, Stride: stride}
		norm := c.normalise(path+".downsample.1", to)
		norm.ReLU = false
		skip = layer.NewChain(path+".downsample", projection, norm)
	}
	return layer.NewImageBlock(path, layer.NewChain(path+".branch", branch...), norm(), skip), to
}
