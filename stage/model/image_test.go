package model_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/avgpipe/avgpipe/stage"
	"github.com/avgpipe/avgpipe/stage/device/ref"
	"github.com/avgpipe/avgpipe/stage/layer"
	"github.com/avgpipe/avgpipe/stage/model"
	"github.com/avgpipe/avgpipe/stage/stagetest"
)

func TestNetworksForImagesHaveTheirPublishedSizes(t *testing.T) {
	cifar := map[string]any{
		"stem": "cifar", "layer_type": "basic", "embedding_size": 16, "hidden_sizes": []any{16, 32, 64}, "depths": []any{3, 3, 3},
		"image_size": 32, "num_labels": 10,
	}
	basic := map[string]any{"layer_type": "basic", "hidden_sizes": []any{64, 128, 256, 512}, "depths": []any{2, 2, 2, 2}}
	// Of torchvision's models; ResNet-20 has 269,722 with identity skips, and two projections with their norms here.
	for _, c := range []struct {
		what, family string
		config       map[string]any
		weights      int
		units        int
	}{
		{"ResNet-50", "resnet", nil, 25557032, 18},
		{"ResNet-18", "resnet", basic, 11689512, 10},
		{"ResNet-20 for CIFAR", "resnet", cifar, 269722 + 16*32 + 32*64 + 2*(32+64), 11},
		{"VGG-16", "vgg", nil, 138357544, 16},
		{"VGG-16 with batch norm", "vgg", map[string]any{"norm": "batch"}, 138365992, 16},
		{"VGG-16 for CIFAR", "vgg", map[string]any{
			"norm": "batch", "image_size": 32, "num_labels": 10, "classifier_sizes": []any{},
		}, 14728266, 14},
		{"an MLP", "mlp", nil, 784*512 + 512 + 512*512 + 512 + 512*10 + 10, 3},
	} {
		m, err := model.Build(c.family, c.config)
		if err != nil {
			t.Errorf("%s: %v", c.what, err)
			continue
		}
		if m.Weights() != c.weights || len(m.Layers) != c.units || m.Task != model.Images || m.Sequence() != 1 {
			t.Errorf("%s: %d weights in %d units, want %d in %d", c.what, m.Weights(), len(m.Layers), c.weights, c.units)
		}
	}
}

func TestNetworksForImagesHaveTorchvisionsNames(t *testing.T) {
	for family, want := range map[string][]string{
		"resnet": {
			"conv1.weight [64 3 7 7]", "bn1.running_var [64]", "layer1.0.conv1.weight [64 64 1 1]",
			"layer1.0.downsample.0.weight [256 64 1 1]", "layer1.0.downsample.1.running_mean [256]", "layer2.0.conv2.weight [128 128 3 3]",
			"layer4.2.bn3.bias [2048]", "fc.weight [1000 2048]", "fc.bias [1000]",
		},
		"vgg": {
			"features.0.weight [64 3 3 3]", "features.28.bias [512]", "classifier.0.weight [4096 25088]", "classifier.6.weight [1000 4096]",
		},
		"mlp": {"layers.0.weight [512 784]", "layers.2.bias [10]"},
	} {
		m, err := model.Build(family, nil)
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		tensors := file(m)
		for name, shape := range tensors {
			names = append(names, fmt.Sprint(name, " ", shape))
		}
		for _, name := range want {
			if !slices.Contains(names, name) {
				t.Errorf("%s has no tensor %s", family, name)
			}
		}
		if family == "resnet" {
			tensors["bn1.num_batches_tracked"] = nil
		}
		if err := m.CheckTensors(tensors); err != nil {
			t.Errorf("%s: %v", family, err)
		}
	}
}

func TestBadConfigsOfImageFamiliesAreNamed(t *testing.T) {
	for _, c := range []struct {
		family, field string
		value         any
		want          string
	}{
		{"resnet", "depths", []any{1, 1}, "a list as long as hidden_sizes, 4"},
		{"vgg", "depths", []any{1, 1}, "a list as long as hidden_sizes, 5"},
		{"vgg", "hidden_sizes", []any{64, 0, 256, 512, 512}, "a list of at least 1 integers from 1 to 65536"},
		{"resnet", "depths", []any{1, 1, 0, 1}, "a list of at least 1 integers from 1"},
		{"resnet", "depths", "three", "a list of integers"},
		{"resnet", "hidden_sizes", []any{256, 512, 1024.5, 2048}, "a list of integers"},
		{"resnet", "hidden_sizes", []any{256, 512, 1022, 2048}, "a multiple of the bottleneck's reduction, which is 4"},
		{"resnet", "layer_type", "wide", "one of bottleneck, basic"},
		{"resnet", "stem", "mnist", "one of imagenet, cifar"},
		{"resnet", "hidden_act", "gelu", `allowed is "relu"`},
		{"resnet", "norm", "none", "one of batch, group"},
		{"resnet", "norm_momentum", 0, "a number above 0, at most 1"},
		{"resnet", "norm_eps", 0, "a number from 1e-30 to 1e30"},
		{"resnet", "image_size", 0, "an integer from 1"},
		{"vgg", "image_size", 31, "at least 32, since 5 pools halve it"},
		{"vgg", "dropout", 1, "at least 0 and below 1"},
		{"vgg", "norm", "layer", "one of none, batch, group"},
		{"vgg", "classifier_sizes", []any{0}, "a list of at least 0 integers from 1"},
		{"mlp", "hidden_act", "swish", "one of relu, gelu, gelu_new"},
		{"mlp", "num_features", -1, "an integer from 0"},
	} {
		_, err := model.Build(c.family, map[string]any{c.field: c.value})
		var found *model.FieldError
		if !errors.As(err, &found) || found.Field != c.field || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s with %s %v: error %v, want %q", c.family, c.field, c.value, err, c.want)
		}
	}
	_, err := model.Build("resnet", map[string]any{"norm": "group", "groups": 48})
	if err == nil || !strings.Contains(err.Error(), "groups is 48; allowed is a divisor of every width, of 64 too") {
		t.Errorf("48 groups: %v", err)
	}
}

// tinyImages are small networks with everything that their family has, four units and more.
var tinyImages = map[string]struct {
	family string
	config map[string]any
}{
	"resnet": {"resnet", map[string]any{
		"image_size": 16, "embedding_size": 4, "hidden_sizes": []int{8, 16}, "depths": []int{1, 2}, "num_labels": 5,
	}},
	"resnet-group": {"resnet", map[string]any{
		"image_size": 6, "stem": "cifar", "layer_type": "basic", "embedding_size": 4, "hidden_sizes": []int{4, 6},
		"depths": []int{1, 1}, "num_labels": 5, "norm": "group", "groups": 2,
	}},
	"vgg": {"vgg", map[string]any{
		"image_size": 8, "hidden_sizes": []int{4, 6}, "depths": []int{1, 1}, "classifier_sizes": []int{9, 8}, "num_labels": 5,
		"norm": "batch", "dropout": 0.4,
	}},
	"mlp": {"mlp", map[string]any{"image_size": 4, "hidden_sizes": []int{9, 8, 7}, "num_labels": 5, "dropout": 0.3}},
}

// someImages are four samples.
func someImages(m *model.Model) stagetest.Batch {
	const samples = 4
	rng := rand.New(rand.NewPCG(5, 6))
	var b stagetest.Batch
	for range samples * m.Image.Channels * m.Image.Height * m.Image.Width {
		b.Pixels = append(b.Pixels, float32(rng.NormFloat64()))
	}
	for range samples {
		b.Targets = append(b.Targets, rng.Int32N(5))
	}
	return b
}

// imageSteps takes two steps and returns their losses, and all parameters after them, running statistics among them.
func imageSteps(t *testing.T, c stagetest.PipelineConfig) (losses [2]float64, parameters map[string][]float32) {
	t.Helper()
	c.Device, c.Samples, c.Micros, c.Seed = ref.New(), 2, 2, 5
	c.Optimizer = stage.Optimizer{Name: "sgd"}
	p := stagetest.NewPipeline(t, c)
	for step := range losses {
		loss, norm, err := p.Run(someImages(c.Model))
		if err != nil {
			t.Fatal(err)
		}
		losses[step] = loss
		if err := p.Update(0.1, norm, 1); err != nil {
			t.Fatal(err)
		}
	}
	return losses, p.Parameters()
}

func TestEverySplitOfAnImageModelComputesTheSame(t *testing.T) {
	for name, c := range tinyImages {
		t.Run(name, func(t *testing.T) {
			m, err := model.Build(c.family, c.config)
			if err != nil {
				t.Fatal(err)
			}
			losses, parameters := imageSteps(t, stagetest.PipelineConfig{Model: m, Stages: 1})
			for stages := 1; stages <= 4; stages++ {
				for _, other := range []stagetest.PipelineConfig{
					{}, {Halves: true}, {Recompute: stage.RecomputeBlock}, {Recompute: stage.RecomputeFull, Halves: true},
				} {
					other.Model, other.Stages = m, stages
					what := fmt.Sprintf("K=%d, recompute %q, halves %v", stages, other.Recompute, other.Halves)
					found, after := imageSteps(t, other)
					if found != losses {
						t.Errorf("%s: losses %v, want %v", what, found, losses)
					}
					for name, want := range parameters {
						if !slices.Equal(after[name], want) {
							t.Errorf("%s: %s differs", what, name)
						}
					}
				}
			}
		})
	}
}

func TestImageModelsBeginWithPixels(t *testing.T) {
	for _, family := range []string{"resnet", "vgg", "mlp"} {
		m, err := model.Build(family, nil)
		if err != nil {
			t.Fatal(err)
		}
		ports, _ := layer.Ports(m.Layers[0], layer.Size{B: 2, T: 1})
		want := 2 * m.Image.Channels * m.Image.Height * m.Image.Width
		if len(ports) != 1 || ports[0].Name != layer.PixelsPort || !ports[0].Constant || ports[0].Elements != want {
			t.Errorf("%s takes %+v, want the constant port pixels of %d elements", family, ports, want)
		}
	}
}
