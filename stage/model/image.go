package model

import (
	"fmt"
	"math"

	"github.com/avgpipe/avgpipe/stage/layer"
)

// images is what the configs of convolutional networks have in common: the images, the classes, the groups and the norm.
type images struct {
	imageSize, numChannels, numLabels int
	norm                              string
	groups                            int
	epsilon, momentum                 float64
	hiddenSizes, depths               []int // of each group of convolutions
}

const (
	normBatch = "batch"
	normGroup = "group"
	normNone  = "none"
)

func (c *images) fields() []Field {
	return []Field{
		integer("image_size", &c.imageSize, 224, 1, 1<<14, "Rows, and columns, of an image."),
		integer("num_channels", &c.numChannels, 3, 1, 1<<12, "Channels of an image: 3 for colours, 1 for grey."),
		integer("num_labels", &c.numLabels, 1000, 1, 1<<24, "Classes: 0 to num_labels-1."),
	}
}

// groupFields are the groups of convolutions of a family, with their defaults.
func (c *images) groupFields(sizes []int, sizesDoc string, depths []int, depthsDoc string) []Field {
	return []Field{
		list("hidden_sizes", &c.hiddenSizes, sizes, 1, 1<<16, sizesDoc), list("depths", &c.depths, depths, 1, 1<<12, depthsDoc),
	}
}

// normFields are those of the norms that a family has, of which the first is the default.
func (c *images) normFields(norms []string, doc string) []Field {
	return []Field{
		word("norm", &c.norm, norms[0], norms, doc+" Statistics of batch norm are those of a micro-batch, so its size matters."),
		integer("groups", &c.groups, 32, math.MinInt32, math.MaxInt32, "Groups of channels of group norm, a divisor of every width."),
		number("norm_eps", &c.epsilon, 1e-5, above0, "Added to the variance in norms."),
		number("norm_momentum", &c.momentum, 0.1, share, "The share of batch norm's running statistics that a step replaces."),
	}
}

// validate takes the widths that norms see.
func (c *images) validate(widths ...int) error {
	if len(c.depths) != len(c.hiddenSizes) {
		return &FieldError{Field: "depths", Found: c.depths, Allowed: fmt.Sprintf("a list as long as hidden_sizes, %d", len(c.hiddenSizes))}
	}
	if c.norm != normGroup {
		return nil
	}
	for _, width := range widths {
		if c.groups < 1 || width%c.groups != 0 {
			return &FieldError{
				Field: "groups", Found: c.groups, Allowed: fmt.Sprintf("a divisor of every width, of %d too", width), Nearest: "1",
			}
		}
	}
	return nil
}

// begin gives a model what images have in common.
func (c *images) begin(m *Model) {
	m.Task, m.Loss, m.sequence = Images, layer.Loss{Classes: c.numLabels}, 1
	m.skip = []string{"*.num_batches_tracked"} // the counters that PyTorch stores beside running statistics
	m.Image = Image{Channels: c.numChannels, Height: c.imageSize, Width: c.imageSize}
}

// input is the shape of the images.
func (c *images) input() layer.Image {
	return layer.Image{Height: c.imageSize, Width: c.imageSize, Channels: c.numChannels}
}

// normalise is the norm of a convolution's output, with a ReLU after it.
func (c *images) normalise(path string, of layer.Image) layer.ImageNorm {
	n := layer.ImageNorm{Path: path, Of: of, Epsilon: float32(c.epsilon), Momentum: float32(c.momentum), ReLU: true}
	if c.norm == normGroup {
		n.Groups = c.groups
	}
	return n
}

// linearInit is how PyTorch's nn.Linear starts: uniform on +-1/sqrt(in).
func linearInit(in int) layer.Init { return layer.UniformInit(1 / math.Sqrt(float64(in))) }
