//go:build onednn && cgo && linux && amd64

package cpu_test

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/avgpipe/avgpipe/stage"
	"github.com/avgpipe/avgpipe/stage/device"
	"github.com/avgpipe/avgpipe/stage/device/cpu"
	"github.com/avgpipe/avgpipe/stage/model"
)

// trainer is a whole model as one stage on one thread, with a micro-batch.
type trainer struct {
	*stage.Computed
	input, labels []byte
	steps         uint64
}

func newTrainer(b *testing.B, m *model.Model, compute device.Type, samples int) *trainer {
	b.Helper()
	d, err := cpu.Open(cpu.Config{Threads: 1})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = d.Close() })
	s, err := stage.New(stage.Config{Device: d, Model: m, Samples: samples, Slots: 1, Compute: compute, Optimizer: stage.Optimizer{Name: "sgd"}, Seed: 1})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = s.Close() })
	t := &trainer{Computed: s, input: stage.NewBoundary(s.Shape().InputBytes), labels: stage.NewBoundary(s.Shape().LabelBytes)}
	random := rand.New(rand.NewPCG(1, 2))
	for i := range device.Values[int32](t.labels) {
		device.Values[int32](t.labels)[i] = int32(random.IntN(2))
	}
	if m.Task == model.Images {
		for i := range device.Values[float32](t.input) {
			device.Values[float32](t.input)[i] = float32(random.NormFloat64())
		}
		return t
	}
	for i := range device.Values[int32](t.input) {
		device.Values[int32](t.input)[i] = 1 // every port takes it: ids, types and masks
	}
	return t
}

// step trains one micro-batch and returns how long it took.
func (t *trainer) step(b *testing.B) time.Duration {
	b.Helper()
	start := time.Now()
	micro := stage.Micro{Step: t.steps, Weight: 1, Last: true}
	t.ZeroGradients()
	if err := t.Forward(micro, stage.OnHost(t.input), t.labels, stage.Boundary{}); err != nil {
		b.Fatal(err)
	}
	if err := t.Backward(micro, stage.Whole, stage.Boundary{}, stage.Boundary{}); err != nil {
		b.Fatal(err)
	}
	if err := t.Step(stage.Hyper{Step: t.steps, LearningRate: 1e-6, GradScale: 1}, nil); err != nil {
		b.Fatal(err)
	}
	t.steps++
	return time.Since(start)
}

// BenchmarkFamilies trains each family in f32 and in bf16, in turn, and reports how many times faster bf16 is.
func BenchmarkFamilies(b *testing.B) {
	for _, f := range []struct {
		family  string
		samples int
		config  map[string]any
	}{
		{"awd-lstm", 16, map[string]any{"ntoken": 4096, "ninp": 256, "nhid": 512, "nlayers": 2, "bptt": 64}},
		{"bert", 8, map[string]any{
			"vocab_size": 4096, "max_position_embeddings": 128, "hidden_size": 384, "num_hidden_layers": 4, "num_attention_heads": 6, "intermediate_size": 1536,
		}},
		{"gnmt", 16, map[string]any{"vocab_size": 4096, "hidden_size": 512, "num_layers": 2, "max_length": 32}},
		{"gpt2", 8, map[string]any{"vocab_size": 4096, "n_positions": 128, "n_embd": 512, "n_layer": 4, "n_head": 8}},
		{"llama", 8, map[string]any{
			"vocab_size": 4096, "max_position_embeddings": 128, "hidden_size": 512, "num_hidden_layers": 4, "num_attention_heads": 8,
			"num_key_value_heads": 4, "intermediate_size": 1408,
		}},
		{"mlp", 256, map[string]any{"image_size": 28, "num_channels": 1, "hidden_sizes": []any{1024, 1024}, "num_labels": 10}},
		{"resnet", 16, map[string]any{"image_size": 64, "num_labels": 10}},
		{"vgg", 16, map[string]any{"image_size": 32, "num_labels": 10}},
	} {
		b.Run(f.family, func(b *testing.B) {
			m, err := model.Build(f.family, f.config)
			if err != nil {
				b.Fatal(err)
			}
			var trainers [2]*trainer
			var took [2][]time.Duration
			for i, compute := range []device.Type{device.F32, device.BF16} {
				trainers[i] = newTrainer(b, m, compute, f.samples)
				trainers[i].step(b) // builds oneDNN's primitives
			}
			for b.Loop() {
				for i, t := range trainers {
					took[i] = append(took[i], t.step(b))
				}
			}
			for i := range took {
				slices.Sort(took[i])
			}
			middle := len(took[0]) / 2
			b.ReportMetric(took[0][middle].Seconds()*1e3, "f32-ms")
			b.ReportMetric(took[1][middle].Seconds()*1e3, "bf16-ms")
			b.ReportMetric(took[0][middle].Seconds()/took[1][middle].Seconds(), "f32/bf16")
		})
	}
}
