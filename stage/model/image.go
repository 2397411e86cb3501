package model

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/avgpipe/avgpipe/stage/layer"
)

// images is what the configs of convolutional networks have in common: the images, the classes and the norm.
type images struct {
	imageSize, numChannels, numLabels int
	norm                              string
	groups                            int
	epsilon, momentum                 float64
}

const (
	normBatch = "batch"
	normGroup = "group"
	normNone  = "none"
)

func (c *images) fields() []Field {
	return []Field{
		{Name: "image_size", target: &c.imageSize, Doc: "Rows, and columns, of an image."},
		{Name: "num_channels", target: &c.numChannels, Doc: "Channels of an image: 3 for colours, 1 for grey."},
		{Name: "num_labels", target: &c.numLabels, Doc: "Classes: 0 to num_labels-1."},
	}
}

func (c *images) normFields(kinds string) []Field {
	return []Field{
		{Name: "norm", target: &c.norm, Doc: kinds + " Statistics of batch norm are those of a micro-batch, so its size matters."},
		{Name: "groups", target: &c.groups, Doc: "Groups of channels of group norm, a divisor of every width."},
		{Name: "norm_eps", target: &c.epsilon, Doc: "Added to the variance in norms."},
		{Name: "norm_momentum", target: &c.momentum, Doc: "The share of batch norm's running statistics that a step replaces."},
	}
}

// validate takes the norms that the family has and the widths that they normalise.
func (c *images) validate(norms []string, widths ...int) error {
	if err := checkIntegers([]integerField{
		{"image_size", c.imageSize, 1, 1 << 14},
		{"num_channels", c.numChannels, 1, 1 << 12},
		{"num_labels", c.numLabels, 1, 1 << 24},
	}); err != nil {
		return err
	}
	if err := checkWord("norm", c.norm, norms); err != nil {
		return err
	}
	if c.norm == normGroup {
		for _, width := range widths {
			if c.groups < 1 || width%c.groups != 0 {
				return &FieldError{
					Field: "groups", Found: c.groups, Allowed: fmt.Sprintf("a divisor of every width, of %d too", width), Nearest: "1",
				}
			}
		}
	}
	if !(c.momentum > 0 && c.momentum <= 1) {
		return &FieldError{Field: "norm_momentum", Found: c.momentum, Allowed: "a number above 0, at most 1", Nearest: "0.1"}
	}
	return checkScales("norm_eps", c.epsilon, 0)
}

// checkWord refuses a string that is none of words.
func checkWord(field, value string, words []string) error {
	if slices.Contains(words, value) {
		return nil
	}
	return &FieldError{Field: field, Found: value, Allowed: oneOf(words), Nearest: words[0]}
}

// checkList refuses a list that is too short or holds what is not from 1 to most.
func checkList(field string, list []int, shortest, most int) error {
	outside := func(v int) bool { return v < 1 || v > most }
	if len(list) >= shortest && !slices.ContainsFunc(list, outside) {
		return nil
	}
	return &FieldError{
		Field: field, Found: list, Allowed: fmt.Sprintf("a list of at least %d integers from 1 to %d", shortest, most),
	}
}

// checkGroups refuses groups of convolutions that do not all have a width and a depth.
func checkGroups(hiddenSizes, depths []int) error {
	if err := checkList("hidden_sizes", hiddenSizes, 1, 1<<16); err != nil {
		return err
	}
	if err := checkList("depths", depths, 1, 1<<12); err != nil {
		return err
	}
	if len(depths) != len(hiddenSizes) {
		return &FieldError{Field: "depths", Found: depths, Allowed: fmt.Sprintf("a list as long as hidden_sizes, %d", len(hiddenSizes))}
	}
	return nil
}

// model begins a model of images.
func (c *images) model(family string, fields []Field) *Model {
	return &Model{
		Family: family, Task: Images, Loss: layer.Loss{Classes: c.numLabels},
		Image:    Image{Channels: c.numChannels, Height: c.imageSize, Width: c.imageSize},
		sequence: 1, skip: batchNormBuffer, config: exported(family, fields),
	}
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

// batchNormBuffer recognises the counters that PyTorch stores beside running statistics.
func batchNormBuffer(tensor string) bool { return strings.HasSuffix(tensor, ".num_batches_tracked") }

// linearInit is how PyTorch's nn.Linear starts: uniform on +-1/sqrt(in).
func linearInit(in int) layer.Init { return layer.UniformInit(1 / math.Sqrt(float64(in))) }
