package generate

import (
	"context"
	"errors"
	"fmt"
	"math"

	"github.com/avgpipe/avgpipe/stage"
	"github.com/avgpipe/avgpipe/stage/device"
	"github.com/avgpipe/avgpipe/stage/model"
)

// Classification says how to classify images.
type Classification struct {
	Device  device.Device // not closed by Run
	Model   *model.Model  // of the task Images
	Weights stage.Lookup  // tensors with the names of the model's files
	// Together is how many images are classified at once; 0: 32, or all of fewer.
	Together int
}

// Class is the likeliest class of an image and the probability that the model gives it.
type Class struct {
	Label       int32
	Probability float64
}

// Validate reports the first field that is missing or out of range.
func (c Classification) Validate() error {
	switch {
	case c.Device == nil || c.Model == nil || c.Weights == nil:
		return errors.New("classify: Classification needs a Device, a Model and Weights")
	case c.Model.Task != model.Images:
		return fmt.Errorf("classify: a %s model, of the task %s; one of the task %s is needed", c.Model.Family, c.Model.Task, model.Images)
	case c.Together < 0:
		return fmt.Errorf("classify: %d images at once; at least 1 is needed, or 0 for a default", c.Together)
	}
	return nil
}

// Run classifies images, pixels (count,C,H,W) scaled as those that the model was trained with, and hands the class of each to
// emit, in order. It returns early with the error of emit or ctx. It computes on the calling goroutine.
func (c Classification) Run(ctx context.Context, pixels []float32, emit func(Class) error) (err error) {
	if err := c.Validate(); err != nil {
		return err
	}
	i := c.Model.Image
	each := i.Channels * i.Height * i.Width
	if len(pixels)%each != 0 {
		return fmt.Errorf("classify: %d pixels; images of %d channels, %d rows and %d columns are %d each",
			len(pixels), i.Channels, i.Height, i.Width, each)
	}
	count := len(pixels) / each
	if c.Together == 0 {
		c.Together = 32
	}
	together := max(min(c.Together, count), 1)
	s, err := stage.New(stage.Config{Device: c.Device, Model: c.Model, Samples: together, ForwardOnly: true})
	if err != nil {
		return fmt.Errorf("classify: %w", err)
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	if err := s.Load(c.Weights); err != nil {
		return fmt.Errorf("classify: %w", err)
	}
	input, logits := stage.NewBoundary(s.Shape().InputBytes), stage.NewBoundary(s.Shape().OutputBytes)
	rows := make([]float32, len(logits)/device.F32.Bytes())
	for from := 0; from < count; from += together {
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("classify: %w", err)
		}
		// What a last batch leaves over of the buffer is an earlier image's; its class is not looked at.
		images := min(together, count-from)
		copy(input, device.FloatBytes(pixels[from*each:(from+images)*each]))
		if _, err := s.Evaluate(nil, input, nil, logits); err != nil {
			return fmt.Errorf("classify: %w", err)
		}
		copy(device.FloatBytes(rows), logits)
		classes := len(rows) / together
		for n := range images {
			class, err := likeliest(rows[n*classes : (n+1)*classes])
			if err != nil {
				return fmt.Errorf("classify: image %d: %w", from+n, err)
			}
			if err := emit(class); err != nil {
				return err
			}
		}
	}
	return nil
}

// likeliest takes the first of equal logits.
func likeliest(logits []float32) (Class, error) {
	best := 0
	for i, l := range logits {
		if x := float64(l); math.IsNaN(x) || math.IsInf(x, 0) {
			return Class{}, fmt.Errorf("the logit of class %d is %v: the weights are not those of a model trained with finite losses", i, l)
		}
		if l > logits[best] {
			best = i
		}
	}
	sum := 0.0
	for _, l := range logits {
		sum += math.Exp(float64(l) - float64(logits[best]))
	}
	return Class{Label: int32(best), Probability: 1 / sum}, nil
}
