package generate_test

import (
	"context"
	"errors"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/avgpipe/avgpipe/stage"
	"github.com/avgpipe/avgpipe/stage/device/ref"
	"github.com/avgpipe/avgpipe/stage/generate"
	"github.com/avgpipe/avgpipe/stage/model"
	"github.com/avgpipe/avgpipe/stage/stagetest"
)

// stripes draws images of 6 by 6 whose class, one of three, is the pair of rows that is bright.
func stripes(rng *rand.Rand, samples int) (b stagetest.Batch) {
	for range samples {
		class := rng.Int32N(3)
		for i := range 36 {
			v := 0.3 * rng.NormFloat64()
			if i/12 == int(class) {
				v++
			}
			b.Pixels = append(b.Pixels, float32(v))
		}
		b.Targets = append(b.Targets, class)
	}
	return b
}

// classifier trains a tiny residual network to tell stripes apart.
func classifier(t *testing.T) generate.Classification {
	t.Helper()
	m, err := model.Build("resnet", map[string]any{
		"image_size": 6, "num_channels": 1, "num_labels": 3, "stem": "cifar", "layer_type": "basic", "embedding_size": 4,
		"hidden_sizes": []int{4, 8}, "depths": []int{1, 1},
	})
	if err != nil {
		t.Fatal(err)
	}
	dev := ref.New()
	p := stagetest.NewPipeline(t, stagetest.PipelineConfig{
		Device: dev, Model: m, Stages: 1, Samples: 16, Micros: 1, Seed: 1, Optimizer: stage.Optimizer{Name: "adam"},
	})
	rng := rand.New(rand.NewPCG(1, 2))
	for range 60 {
		_, norm, err := p.Run(stripes(rng, 16))
		if err != nil {
			t.Fatal(err)
		}
		if err := p.Update(0.01, norm, 1); err != nil {
			t.Fatal(err)
		}
	}
	trained := p.Parameters()
	return generate.Classification{Device: dev, Model: m, Weights: func(name string) ([]int, []float32, bool, error) {
		for _, tensor := range p.Stages[0].Tensors() {
			if tensor.Name == name {
				return tensor.Shape, trained[name], true, nil
			}
		}
		return nil, nil, false, nil
	}}
}

func TestATrainedNetworkClassifiesImages(t *testing.T) {
	c := classifier(t)
	test := stripes(rand.New(rand.NewPCG(3, 4)), 50)
	var all []generate.Class
	for _, together := range []int{0, 7} { // 7 leaves a batch of 1
		c.Together = together
		var classes []generate.Class
		err := c.Run(t.Context(), test.Pixels, func(class generate.Class) error {
			classes = append(classes, class)
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		right := 0
		for i, class := range classes {
			if class.Label == test.Targets[i] {
				right++
			}
			if class.Probability < 1.0/3 || class.Probability > 1 {
				t.Errorf("image %d: the likeliest of three classes has probability %v", i, class.Probability)
			}
		}
		if len(classes) != 50 || right < 45 {
			t.Errorf("%d together: %d of %d images are classified right, want 45 of 50", together, right, len(classes))
		}
		if all == nil {
			all = classes
		}
		for i, class := range classes {
			if class.Label != all[i].Label || math.Abs(class.Probability-all[i].Probability) > 1e-6 {
				t.Errorf("image %d is %v, %v with another number at once", i, class, all[i])
			}
		}
	}
}

func TestClassifyStopsAndRefuses(t *testing.T) {
	c := classifier(t)
	pixels := make([]float32, 2*36)
	stop := errors.New("stop")
	if err := c.Run(t.Context(), pixels, func(generate.Class) error { return stop }); !errors.Is(err, stop) {
		t.Errorf("emit's error: %v", err)
	}
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	if err := c.Run(canceled, pixels, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("a canceled context: %v", err)
	}
	none := func(string) ([]int, []float32, bool, error) { return nil, nil, false, nil }
	nan := func(name string) ([]int, []float32, bool, error) {
		shape, values, ok, err := c.Weights(name)
		if name == "fc.bias" {
			values = []float32{0, float32(math.NaN()), 0}
		}
		return shape, values, ok, err
	}
	language, err := model.Build("gpt2", nil)
	if err != nil {
		t.Fatal(err)
	}
	for want, change := range map[string]func(*generate.Classification, *[]float32){
		"needs a Device":                    func(c *generate.Classification, _ *[]float32) { c.Device = nil },
		"of the task language":              func(c *generate.Classification, _ *[]float32) { c.Model = language },
		"-1 images at once":                 func(c *generate.Classification, _ *[]float32) { c.Together = -1 },
		"71 pixels":                         func(_ *generate.Classification, p *[]float32) { *p = (*p)[:71] },
		`tensor "conv1.weight" [4 1 3 3]`:   func(c *generate.Classification, _ *[]float32) { c.Weights = none },
		"image 0: the logit of class 1 is ": func(c *generate.Classification, _ *[]float32) { c.Weights = nan },
	} {
		changed, p := c, pixels
		change(&changed, &p)
		err := changed.Run(t.Context(), p, func(generate.Class) error { return nil })
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q", err, want)
		}
	}
}
