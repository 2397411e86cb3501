package model_test

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/avgpipe/avgpipe/stage"
	"github.com/avgpipe/avgpipe/stage/device"
	"github.com/avgpipe/avgpipe/stage/layer"
	"github.com/avgpipe/avgpipe/stage/model"
	"github.com/avgpipe/avgpipe/stage/stagetest"
)

// tolerance is for every tensor as a whole: |found - recorded| / |recorded|, Euclidean.
const tolerance = 1e-4

// recordings are the files that testdata/record_*.py wrote, testdata/NAME.safetensors. A name is that of the family, or is
// listed in variants.
var recordings = []string{
	"awd-lstm", "bert", "bert-masked", "gnmt", "gpt2", "llama", "llama-untied",
	"mistral", "mlp", "mlp-features", "qwen2", "resnet", "resnet-group", "vgg", "vgg-batch",
}

// variants names the families of further recordings.
var variants = map[string]string{
	"bert-masked": "bert", "llama-untied": "llama", "mlp-features": "mlp", "resnet-group": "resnet", "vgg-batch": "vgg",
}

// eachRecording runs test for every recorded family on every device.
func eachRecording(t *testing.T, test func(t *testing.T, r recording, dev device.Device)) {
	for _, family := range recordings {
		t.Run(family, func(t *testing.T) {
			r := readRecording(t, family)
			stagetest.EachDevice(t, func(t *testing.T, dev device.Device) { test(t, r, dev) })
		})
	}
}

// recording is what a script of testdata wrote.
type recording struct {
	family     string
	model      *model.Model
	clip       float64 // of the gradients' norm, with optimizers
	steps      int     // taken by each optimizer
	micros     int     // that the batch was cut into, where batch norm makes that a difference; else 0
	config     map[string]any
	optimizers map[string]hyper
	tensors    map[string]tensor
}

// hyper is what an optimizer was recorded with, PyTorch's names.
type hyper struct {
	LR          float64    `json:"lr"`
	Betas       [2]float64 `json:"betas"`
	Epsilon     float64    `json:"eps"`
	Momentum    float64    `json:"momentum"`
	Nesterov    bool       `json:"nesterov"`
	WeightDecay float64    `json:"weight_decay"`
	T0          uint64     `json:"t0"`
}

type tensor struct {
	shape  []int
	values []float64
}

func (x tensor) float32s() []float32 {
	out := make([]float32, len(x.values))
	for i, v := range x.values {
		out[i] = float32(v)
	}
	return out
}

func (x tensor) int32s() []int32 {
	out := make([]int32, len(x.values))
	for i, v := range x.values {
		out[i] = int32(v)
	}
	return out
}

func readRecording(t *testing.T, family string) recording {
	t.Helper()
	data, err := os.ReadFile("testdata/" + family + ".safetensors")
	if err != nil {
		t.Fatal(err)
	}
	n := binary.LittleEndian.Uint64(data)
	var header map[string]json.RawMessage
	mustDecode(t, data[8:8+n], &header)
	blob := data[8+n:]
	var metadata struct{ Config, Optimizers, Clip, Steps, Micros string }
	mustDecode(t, header["__metadata__"], &metadata)
	if of, ok := variants[family]; ok {
		family = of
	}
	r := recording{family: family, tensors: map[string]tensor{}}
	mustDecode(t, []byte(metadata.Config), &r.config)
	mustDecode(t, []byte(metadata.Optimizers), &r.optimizers)
	if len(r.optimizers) > 0 {
		mustDecode(t, []byte(metadata.Clip), &r.clip)
		mustDecode(t, []byte(metadata.Steps), &r.steps)
	}
	if r.model, err = model.Build(family, r.config); err != nil {
		t.Fatal(err)
	}
	if metadata.Micros != "" {
		mustDecode(t, []byte(metadata.Micros), &r.micros)
	}
	delete(header, "__metadata__")
	for name, raw := range header {
		var entry struct {
			Type    string `json:"dtype"`
			Shape   []int  `json:"shape"`
			Offsets [2]int `json:"data_offsets"`
		}
		mustDecode(t, raw, &entry)
		r.tensors[name] = tensor{shape: entry.Shape, values: decodeValues(t, entry.Type, blob[entry.Offsets[0]:entry.Offsets[1]])}
	}
	return r
}

func mustDecode(t *testing.T, data []byte, into any) {
	t.Helper()
	if err := json.Unmarshal(data, into); err != nil {
		t.Fatal(err)
	}
}

func decodeValues(t *testing.T, kind string, b []byte) []float64 {
	t.Helper()
	var out []float64
	for len(b) > 0 {
		switch kind {
		case "F32":
			out, b = append(out, float64(math.Float32frombits(binary.LittleEndian.Uint32(b)))), b[4:]
		case "F64":
			out, b = append(out, math.Float64frombits(binary.LittleEndian.Uint64(b))), b[8:]
		case "I32":
			out, b = append(out, float64(int32(binary.LittleEndian.Uint32(b)))), b[4:]
		default:
			t.Fatalf("tensor type %q", kind)
		}
	}
	return out
}

func (r recording) batch() stagetest.Batch {
	return stagetest.Batch{
		IDs: r.tensors["ids"].int32s(), Types: r.tensors["token_types"].int32s(), Mask: r.tensors["mask"].int32s(),
		Decoder: r.tensors["decoder_ids"].int32s(), Pixels: r.tensors["pixels"].float32s(), Targets: r.tensors["labels"].int32s(),
	}
}

// group cuts "weights/..." and the like.
func (r recording) group(name string) map[string]tensor {
	out := map[string]tensor{}
	for full, x := range r.tensors {
		if short, ok := strings.CutPrefix(full, name+"/"); ok {
			out[short] = x
		}
	}
	return out
}

// shape is how many samples the batch has, of how many positions.
func (r recording) shape() (samples, positions int) {
	if ids, ok := r.tensors["ids"]; ok {
		return ids.shape[0], ids.shape[1]
	}
	return r.tensors["pixels"].shape[0], 1
}

// pipeline starts from the recorded weights, the batch of 4 samples cut into micros micro-batches.
func (r recording) pipeline(t *testing.T, dev device.Device, stages, micros int, o stage.Optimizer) *stagetest.Pipeline {
	t.Helper()
	samples, positions := r.shape()
	p := stagetest.NewPipeline(t, stagetest.PipelineConfig{
		Device: dev, Model: r.model, Stages: stages, Samples: samples / micros, Sequence: positions, Micros: micros,
		Optimizer: o,
	})
	weights := r.group("weights")
	for _, s := range p.Stages {
		err := s.Load(func(name string) ([]int, []float32, bool, error) {
			x, ok := weights[name]
			return x.shape, x.float32s(), ok, nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return p
}

// compare holds tensors of a pipeline against recorded ones; tied copies against their originals.
func (r recording) compare(t *testing.T, what string, found map[string][]float32, recorded map[string]tensor) {
	t.Helper()
	found, want := maps.Clone(found), maps.Clone(recorded)
	for _, p := range r.model.Params() {
		if p.TiedTo != "" {
			want[p.Name] = recorded[p.TiedTo]
		}
	}
	worst := 0.0
	for _, name := range slices.Sorted(maps.Keys(want)) {
		values, ok := found[name]
		if !ok {
			t.Errorf("%s of %s: there is none", what, name)
			continue
		}
		delete(found, name)
		e := relative(values, want[name].values)
		worst = max(worst, e)
		if !(e <= tolerance) {
			t.Errorf("%s of %s: relative error %.3g, tolerance %.1g", what, name, e, tolerance)
		}
	}
	if len(found) > 0 {
		t.Errorf("%s of %v: not recorded", what, slices.Sorted(maps.Keys(found)))
	}
	t.Logf("%s: largest relative error %.2g, tolerance %.1g", what, worst, tolerance)
}

func relative(found []float32, want []float64) float64 {
	if len(found) != len(want) {
		return math.Inf(1)
	}
	var off, size float64
	for i, w := range want {
		off += (float64(found[i]) - w) * (float64(found[i]) - w)
		size += w * w
	}
	if size < 1e-24 { // 0 but for rounding in float64, as the gradients of the biases of attention's keys are
		size = 1e-4
	}
	return math.Sqrt(off / size)
}

func TestLossAndGradientsArePyTorchs(t *testing.T) {
	eachRecording(t, func(t *testing.T, r recording, dev device.Device) {
		for _, c := range []struct{ stages, micros int }{{1, 1}, {1, 2}, {3, 2}, {4, 2}, {4, 4}} {
			if r.micros > 0 && r.micros != c.micros {
				continue
			}
			t.Run(fmt.Sprintf("K=%d M=%d", c.stages, c.micros), func(t *testing.T) {
				p := r.pipeline(t, dev, c.stages, c.micros, stage.Optimizer{})
				loss, squared, err := p.Run(r.batch())
				if err != nil {
					t.Fatal(err)
				}
				for _, x := range []struct {
					name        string
					found, want float64
				}{{"loss", loss, r.tensors["loss"].values[0]}, {"norm", math.Sqrt(squared), r.tensors["norm"].values[0]}} {
					if e := math.Abs(x.found-x.want) / x.want; !(e <= tolerance) {
						t.Errorf("%s is %v, recorded %v", x.name, x.found, x.want)
					}
				}
				r.compare(t, "gradient", p.Gradients(), r.group("gradients"))
			})
		}
	})
}

// evaluationLoss is the recorded loss without what only training adds to it.
func (r recording) evaluationLoss() float64 {
	if plain, ok := r.tensors["evaluation_loss"]; ok {
		return plain.values[0]
	}
	return r.tensors["loss"].values[0]
}

func TestLogitsArePyTorchs(t *testing.T) {
	eachRecording(t, func(t *testing.T, r recording, dev device.Device) {
		p := r.pipeline(t, dev, 1, 1, stage.Optimizer{})
		b := r.batch()
		logits := make([]float32, len(r.tensors["logits"].values))
		input := b.Input(r.model.Layers[0], layer.Size{B: p.Samples, T: p.Sequence}, 0)
		score, err := p.Stages[0].Evaluate(nil, input, stagetest.Int32Bytes(b.Targets), device.FloatBytes(logits))
		if err != nil {
			t.Fatal(err)
		}
		if e := relative(logits, r.tensors["logits"].values); !(e <= tolerance) {
			t.Errorf("logits: relative error %.3g, tolerance %.1g", e, tolerance)
		}
		valid := 0
		for _, target := range b.Targets {
			if target >= 0 {
				valid++
			}
		}
		want := r.evaluationLoss()
		if mean := score.MeanLoss(); math.Abs(mean-want) > tolerance*want || score.Targets != valid {
			t.Errorf("evaluation loss is %v over %d targets, recorded %v over %d", mean, score.Targets, want, valid)
		}
	})
}

func TestUpdatesArePyTorchs(t *testing.T) {
	eachRecording(t, func(t *testing.T, r recording, dev device.Device) {
		for name, h := range r.optimizers {
			t.Run(name, func(t *testing.T) {
				p := r.pipeline(t, dev, 2, 2, stage.Optimizer{
					Name: name, Momentum: h.Momentum, Nesterov: h.Nesterov, WeightDecay: h.WeightDecay,
					Betas: h.Betas[:], Epsilon: h.Epsilon, T0: h.T0,
				})
				for range r.steps {
					_, squared, err := p.Run(r.batch())
					if err != nil {
						t.Fatal(err)
					}
					if err := p.Update(float32(h.LR), squared, r.clip); err != nil {
						t.Fatal(err)
					}
				}
				r.compare(t, fmt.Sprintf("weights after %d steps", r.steps), p.Parameters(), r.group(name))
			})
		}
	})
}
