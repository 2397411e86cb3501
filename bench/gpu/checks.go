package main

import (
	"errors"
	"flag"
	"fmt"
	"maps"
	"math"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/avgpipe/avgpipe/stage/device"
	"github.com/avgpipe/avgpipe/stage/device/cuda"
	"github.com/avgpipe/avgpipe/stage/device/pick"
	"github.com/avgpipe/avgpipe/stage/device/ref"
	"github.com/avgpipe/avgpipe/stage/model"
	"github.com/avgpipe/avgpipe/stage/stagetest"
)

// findDriver loads the driver. Its error names the functions that are missing.
func findDriver(o options) (values, error) {
	all, err := cuda.Processors(o.config())
	if err != nil {
		return nil, err
	}
	if o.ordinal >= len(all) {
		return values{"gpus": all}, fmt.Errorf("the driver shows %d GPUs of compute capability 8.0 or above, expected GPU %d", len(all), o.ordinal)
	}
	p := all[o.ordinal]
	return values{"gpus": all, "headline": fmt.Sprintf("%d: %s, compute %s, %.1f GiB", len(all), p.Name, p.Capability, float64(p.MemoryBytes)/(1<<30))}, nil
}

// compileKernels opens a device, without what the driver keeps of earlier compilations.
func compileKernels(o options) (values, error) {
	if err := os.Setenv("CUDA_CACHE_DISABLE", "1"); err != nil {
		return nil, fmt.Errorf("turn off the cache of kernels: %w", err)
	}
	begun := time.Now()
	dev, err := o.open(1)
	if err != nil {
		return nil, err
	}
	took := time.Since(begun).Seconds()
	v := values{"device": dev.Name(), "open_s": took, "headline": fmt.Sprintf("%.2f s to open: %s", took, dev.Name())}
	return v, dev.Close()
}

// findLibraries says which libraries a device uses.
func findLibraries(o options) (values, error) {
	dev, err := o.open(1)
	if err != nil {
		return nil, err
	}
	name := dev.Name()
	var missing []error
	for _, library := range []string{"cuBLAS", "cuDNN"} {
		if !strings.Contains(name, "by "+library) {
			missing = append(missing, fmt.Errorf("%s is not used: %s", library, name))
		}
	}
	return values{"device": name, "headline": name}, errors.Join(append(missing, dev.Close())...)
}

// conform runs the conformance suite with each choice of who multiplies. It ends the process: the parent reads its status and what it printed.
func conform(o options) (values, error) {
	testing.Init()
	if err := flag.Set("test.v", "true"); err != nil {
		return nil, fmt.Errorf("have tests say more: %w", err)
	}
	suite := func(name string, c cuda.Config, only ...string) testing.InternalTest {
		if o.toy {
			only = []string{"memory", "events", "element-wise"}
		}
		return testing.InternalTest{Name: name, F: func(t *testing.T) {
			dev, err := cuda.Open(c) // nothing else makes sense where this fails
			if err != nil {
				t.Fatal(err)
			}
			if err := dev.Close(); err != nil {
				t.Fatal(err)
			}
			stagetest.Device(t, func() device.Device {
				dev, err := cuda.Open(c)
				if err != nil {
					t.Fatal(err)
				}
				return dev
			}, only...)
		}}
	}
	libraries, products, convolutions := o.config(), o.config(), o.config()
	products.OwnProducts, convolutions.OwnConvolutions = true, true
	testing.Main(func(string, string) (bool, error) { return true, nil }, []testing.InternalTest{
		suite("libraries", libraries),
		suite("own-products", products, "products", "products of BF16", "nothing allocates", "LSTM", "convolutions"),
		suite("own-convolutions", convolutions, "convolutions", "a convolution sees its window", "nothing for images allocates"),
	}, nil, nil)
	panic("gpu-smoke: testing.Main returned")
}

// families are small models, one of each family at least.
var families = map[string]map[string]any{
	"awd-lstm": {"ntoken": 17, "ninp": 8, "nhid": 16, "nlayers": 2, "bptt": 6},
	"bert":     transformer(map[string]any{}),
	"gnmt":     {"vocab_size": 17, "hidden_size": 8, "num_layers": 3, "max_length": 5},
	"gpt2":     {"n_layer": 2, "n_head": 2, "n_embd": 32, "n_positions": 8, "vocab_size": 17, "resid_pdrop": 0.1, "attn_pdrop": 0.1},
	"llama":    transformer(map[string]any{"num_key_value_heads": 1}),
	"mistral":  transformer(map[string]any{"num_key_value_heads": 1, "sliding_window": 3}),
	"mlp":      {"image_size": 4, "hidden_sizes": []int{16, 8}, "num_labels": 5},
	"qwen2":    transformer(map[string]any{"num_key_value_heads": 1}),
	"resnet": {
		"image_size": 8, "stem": "cifar", "layer_type": "basic", "embedding_size": 8, "hidden_sizes": []int{8, 16}, "depths": []int{1, 1}, "num_labels": 5,
	},
	"vgg": {"image_size": 8, "hidden_sizes": []int{8, 16}, "depths": []int{1, 1}, "classifier_sizes": []int{16}, "num_labels": 5, "norm": "batch"},
}

// transformer adds to fields the sizes of a small transformer.
func transformer(fields map[string]any) map[string]any {
	maps.Copy(fields, map[string]any{
		"num_hidden_layers": 2, "hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 48, "vocab_size": 17, "max_position_embeddings": 8,
	})
	return fields
}

// tolerance is by how much, of its length, a gradient of a type may differ from that of package ref.
var tolerance = map[device.Type]float64{device.F32: 2e-3, device.BF16: 5e-2}

// compareGradients compares whole gradients and losses.
func compareGradients(o options) (values, error) {
	dev, err := o.open(1)
	if err != nil {
		return nil, err
	}
	found := values{}
	var wrong []error
	worst := 0.0
	for _, family := range model.Families() {
		m, err := model.Build(family, families[family])
		if err != nil {
			return found, err
		}
		for _, t := range []device.Type{device.F32, device.BF16} {
			off, err := gradientOff(dev, m, t)
			name := fmt.Sprintf("%s %v", family, t)
			if err == nil && !(off <= tolerance[t]) {
				err = fmt.Errorf("the gradient is off by %.2g of its length, expected at most %g", off, tolerance[t])
			}
			if err != nil {
				wrong = append(wrong, fmt.Errorf("%s: %w", name, err))
				continue
			}
			found[name], worst = off, max(worst, off/tolerance[t])
		}
	}
	found["headline"] = fmt.Sprintf("%d gradients, at most %.2g of their tolerances off", 2*len(model.Families()), worst)
	return found, errors.Join(append(wrong, dev.Close())...)
}

// gradientOff is the length of the difference between the gradients of a batch on dev and on package ref, over that of the latter.
func gradientOff(dev device.Device, m *model.Model, compute device.Type) (float64, error) {
	var gradients [2][]float32
	var losses [2]float64
	for i, on := range []device.Device{dev, ref.New()} {
		t, err := newTrainer(on, training{model: m, samples: 2, micros: 2, compute: compute})
		if err != nil {
			return 0, err
		}
		losses[i], err = t.gradient(0, scattered)
		if err == nil {
			gradients[i] = make([]float32, t.Gradients().Len())
			t.Gradients().Read(gradients[i], 0)
		}
		if err = errors.Join(err, t.Close()); err != nil {
			return 0, err
		}
	}
	var difference, length float64
	for i, want := range gradients[1] {
		d := float64(gradients[0][i] - want)
		difference += d * d
		length += float64(want) * float64(want)
	}
	if length == 0 {
		return 0, errors.New("package ref has a gradient of 0")
	}
	off := math.Sqrt(difference / length)
	if loss := math.Abs(losses[0]-losses[1]) / math.Abs(losses[1]); !(loss <= tolerance[compute]) {
		return off, fmt.Errorf("the loss is %v, expected %v", losses[0], losses[1])
	}
	return off, nil
}

// compareTraining trains one job three times. How far losses may be apart is in parts of what they fall.
func compareTraining(o options) (values, error) {
	curves, err := o.curves()
	if err != nil {
		return nil, err
	}
	cpu := curves["cpu"]
	fall := cpu[0] - cpu[len(cpu)-1]
	found := values{"curves": curves}
	var wrong []error
	if fall < cpu[0]/20 {
		wrong = append(wrong, fmt.Errorf("on the CPU the loss goes from %.3f to %.3f, expected a twentieth less", cpu[0], cpu[len(cpu)-1]))
	}
	for name, most := range map[string]float64{"gpu f32": 0.01, "gpu bf16": 0.05} {
		apart := 0.0
		for i, loss := range curves[name] {
			apart += math.Abs(loss-cpu[i]) / fall / float64(len(cpu))
		}
		found[name+" apart"] = apart
		if !(apart <= most) {
			wrong = append(wrong, fmt.Errorf("%s: losses are %.3g of the fall from those of the CPU in the mean, expected at most %g", name, apart, most))
		}
	}
	found["headline"] = fmt.Sprintf("loss %.3f to %.3f; f32 %.2g, bf16 %.2g of the fall apart", cpu[0], cpu[len(cpu)-1], found["gpu f32 apart"], found["gpu bf16 apart"])
	return found, errors.Join(wrong...)
}

func openCPU() (device.Device, error) {
	dev, _, err := pick.Open("cpu", pick.Config{Threads: 1})
	return dev, err
}

// curves are the losses of a small GPT-2 that learns a sequence, by device.
func (o options) curves() (map[string][]float64, error) {
	j := training{samples: 4, micros: 2, rate: 3e-3}
	steps, width, positions := 200, 64, 32
	if o.toy {
		steps, width, positions = 15, 16, 8
	}
	var err error
	if j.model, err = model.Build("gpt2", map[string]any{"n_layer": 2, "n_head": 2, "n_embd": width, "n_positions": positions, "vocab_size": 32}); err != nil {
		return nil, err
	}
	curves := map[string][]float64{}
	for _, side := range []struct {
		name    string
		compute device.Type
		open    func() (device.Device, error)
	}{
		{"cpu", device.F32, openCPU},
		{"gpu f32", device.F32, func() (device.Device, error) { return o.open(1) }},
		{"gpu bf16", device.BF16, func() (device.Device, error) { return o.open(1) }},
	} {
		dev, err := side.open()
		if err != nil {
			return nil, err
		}
		j.compute = side.compute
		curves[side.name], _, err = train(dev, j, steps, sequence)
		if err = errors.Join(err, dev.Close()); err != nil {
			return nil, fmt.Errorf("%s: %w", side.name, err)
		}
	}
	return curves, nil
}
