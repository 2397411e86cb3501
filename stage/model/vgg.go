package model

import (
	"fmt"
	"slices"

	"github.com/avgpipe/avgpipe/stage/device"
	"github.com/avgpipe/avgpipe/stage/layer"
)

// vgg is the config of the networks of Simonyan and Zisserman 2015, with torchvision's tensor names. The defaults make VGG-16
// (table 1, column D) for ImageNet. For CIFAR-10: image_size 32, num_labels 10, classifier_sizes [], norm batch.
//
// Deviations: weights of convolutions start as in He et al. 2015, as torchvision's do; there is no average pool before the
// classifier, which at 224 pixels would change nothing.
type vgg struct {
	images
	classifierSizes []int
	dropout         float64
}

func (c *vgg) fields() []Field {
	return slices.Concat(c.images.fields(), c.groupFields(
		[]int{64, 128, 256, 512, 512}, "Channels of each group of convolutions; a max pool after each group halves rows and columns.",
		[]int{2, 2, 3, 3, 3}, "Convolutions of each group."), []Field{
		list("classifier_sizes", &c.classifierSizes, []int{4096, 4096}, 0, 1<<20, "Widths of the hidden layers of the classifier; an empty list makes it one layer."),
		number("dropout", &c.dropout, 0.5, rate, "Probability with which an output of a hidden layer of the classifier is dropped."),
	}, c.normFields([]string{normNone, normBatch, normGroup}, "none, batch or group, after each convolution."))
}

func (c *vgg) validate() error {
	if c.imageSize>>len(c.hiddenSizes) == 0 {
		return &FieldError{
			Field: "image_size", Found: c.imageSize,
			Allowed: fmt.Sprintf("at least %d, since %d pools halve it", 1<<len(c.hiddenSizes), len(c.hiddenSizes)),
			Nearest: fmt.Sprintf("image_size %d", 1<<len(c.hiddenSizes)),
		}
	}
	return c.images.validate(c.hiddenSizes...)
}

func (c *vgg) build(m *Model) {
	c.begin(m)
	c.classifier(m, c.features(m))
}

// features appends the convolutions, each a unit with what follows it, and returns their output. Tensors are numbered as in
// torchvision's nn.Sequential, in which norms, ReLUs and pools count.
func (c *vgg) features(m *Model) layer.Image {
	of, at := c.input(), 0
	for group, width := range c.hiddenSizes {
		for i := range c.depths[group] {
			path := fmt.Sprintf("features.%d", at)
			convolution := layer.Convolution{Path: path, Of: of, Out: width, Kernel: 3, Stride: 1, Padding: 1, Bias: true}
			of = convolution.Output()
			unit := []layer.Layer{convolution}
			if len(m.Layers) == 0 {
				unit = []layer.Layer{layer.NewFromPixels("pixels", c.input()), layer.Data{Layer: convolution}}
			}
			if c.norm == normNone {
				unit = append(unit, layer.NewActivation(path+".relu", device.ReLU, of.Elements()))
				at += 2
			} else {
				unit = append(unit, c.normalise(fmt.Sprintf("features.%d", at+1), of))
				at += 3
			}
			if i == c.depths[group]-1 {
				var pool layer.Layer
				pool, of = layer.NewMaxPool(fmt.Sprintf("features.%d", at), of, 2, 2, 0)
				unit = append(unit, pool)
				at++
			}
			m.Layers = append(m.Layers, layer.NewChain(path+".unit", unit...))
		}
	}
	return of
}

// classifier appends the fully connected layers, each a unit; a linear layer, its ReLU and its dropout count.
func (c *vgg) classifier(m *Model, of layer.Image) {
	in := of.Elements()
	for i, width := range slices.Concat(c.classifierSizes, []int{c.numLabels}) {
		path := fmt.Sprintf("classifier.%d", 3*i)
		unit := []layer.Layer{layer.Linear{
			Path: path, In: in, Out: width, Bias: true, OutIn: true, Init: layer.Init{Deviation: 0.01},
		}}
		if i == 0 {
			unit = append([]layer.Layer{layer.NewFlatten("flatten", of)}, unit...)
		}
		if i < len(c.classifierSizes) {
			unit = append(unit, layer.NewDropout(layer.NewActivation(path+".relu", device.ReLU, width), c.dropout))
		}
		m.Layers = append(m.Layers, layer.NewChain(path+".unit", unit...))
		in = width
	}
}
