package model_test

import (
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/avgpipe/avgpipe/stage"
	"github.com/avgpipe/avgpipe/stage/device"
	"github.com/avgpipe/avgpipe/stage/device/ref"
	"github.com/avgpipe/avgpipe/stage/layer"
	"github.com/avgpipe/avgpipe/stage/model"
	"github.com/avgpipe/avgpipe/stage/stagetest"
)

// torchModels are small models of every family. rates are the fields that drop out, and what they are set to in the second case of
// each model; every other field that testdata/torch_models.py reads is given.
var torchModels = map[string]struct {
	family string
	config map[string]any
	rates  map[string]any
}{
	"gpt2": {"gpt2", map[string]any{
		"n_layer": 2, "n_head": 2, "n_embd": 12, "n_positions": 8, "vocab_size": 17, "n_inner": 20, "layer_norm_epsilon": 1e-5,
	}, map[string]any{"embd_pdrop": 0.1, "attn_pdrop": 0.3, "resid_pdrop": 0.2}},
	"bert": {"bert", map[string]any{
		"architectures": "BertForSequenceClassification", "num_hidden_layers": 2, "num_attention_heads": 2, "hidden_size": 12, "intermediate_size": 20,
		"max_position_embeddings": 8, "vocab_size": 17, "type_vocab_size": 2, "num_labels": 3, "hidden_act": "gelu", "layer_norm_eps": 1e-6,
	}, map[string]any{"hidden_dropout_prob": 0.2, "attention_probs_dropout_prob": 0.3, "classifier_dropout": 0.1}},
	"bert-masked": {"bert", map[string]any{
		"architectures": "BertForMaskedLM", "num_hidden_layers": 2, "num_attention_heads": 3, "hidden_size": 12, "intermediate_size": 16,
		"max_position_embeddings": 8, "vocab_size": 17, "type_vocab_size": 2, "hidden_act": "gelu_new", "layer_norm_eps": 1e-6,
	}, map[string]any{"hidden_dropout_prob": 0.2, "attention_probs_dropout_prob": 0.3}},
	"llama": {"llama", map[string]any{
		"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "hidden_size": 16, "intermediate_size": 20,
		"max_position_embeddings": 8, "vocab_size": 17, "rms_norm_eps": 1e-5, "rope_theta": 500.0, "attention_bias": true, "mlp_bias": true,
	}, map[string]any{"attention_dropout": 0.3}},
	"mistral": {"mistral", map[string]any{
		"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "hidden_size": 16, "intermediate_size": 20,
		"max_position_embeddings": 8, "vocab_size": 17, "rms_norm_eps": 1e-5, "rope_theta": 500.0, "sliding_window": 3,
	}, map[string]any{"attention_dropout": 0.3}},
	"qwen2": {"qwen2", map[string]any{
		"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "hidden_size": 16, "intermediate_size": 20,
		"max_position_embeddings": 8, "vocab_size": 17, "rms_norm_eps": 1e-5, "rope_theta": 500.0,
	}, map[string]any{"attention_dropout": 0.3}},
	"awd-lstm": {"awd-lstm", map[string]any{"ntoken": 17, "ninp": 6, "nhid": 9, "nlayers": 3, "bptt": 8, "alpha": 2.0, "beta": 1.0}, map[string]any{
		"dropout": 0.3, "dropouth": 0.2, "dropouti": 0.25, "dropoute": 0.2, "wdrop": 0.4,
	}},
	"gnmt": {"gnmt", map[string]any{"vocab_size": 17, "hidden_size": 6, "num_layers": 4, "smoothing": 0.1, "max_length": 8}, map[string]any{"dropout": 0.2}},
	"resnet": {"resnet", map[string]any{
		"num_labels": 5, "num_channels": 3, "norm_eps": 1e-5, "norm_momentum": 0.3, "image_size": 16, "stem": "imagenet", "embedding_size": 6,
		"hidden_sizes": []any{8, 16}, "depths": []any{2, 1}, "layer_type": "bottleneck", "norm": "batch",
	}, nil},
	"resnet-group": {"resnet", map[string]any{
		"num_labels": 5, "num_channels": 3, "norm_eps": 1e-5, "image_size": 7, "stem": "cifar", "embedding_size": 4,
		"hidden_sizes": []any{4, 8}, "depths": []any{1, 2}, "layer_type": "basic", "norm": "group", "groups": 2,
	}, nil},
	"vgg": {"vgg", map[string]any{
		"num_labels": 5, "num_channels": 3, "image_size": 8, "hidden_sizes": []any{4, 6}, "depths": []any{1, 2}, "classifier_sizes": []any{10}, "norm": "none",
	}, map[string]any{"dropout": 0.3}},
	"vgg-batch": {"vgg", map[string]any{
		"num_labels": 5, "num_channels": 3, "image_size": 8, "hidden_sizes": []any{4, 6}, "depths": []any{1, 2}, "classifier_sizes": []any{10}, "norm": "batch",
		"norm_eps": 1e-5, "norm_momentum": 0.3,
	}, map[string]any{"dropout": 0.3}},
	"mlp": {"mlp", map[string]any{
		"num_labels": 5, "num_channels": 2, "image_size": 5, "hidden_sizes": []any{24, 16}, "hidden_act": "gelu",
	}, map[string]any{"dropout": 0.3}},
}

// torchOptimizers are those that every model is trained with. Adam's epsilon is large, as in the recordings: it would turn the
// rounding noise of gradients that are 0 into steps of full size.
var torchOptimizers = map[string]map[string]any{
	"sgd":      {"kind": "sgd", "lr": 0.1},
	"momentum": {"kind": "sgd", "lr": 0.1, "momentum": 0.9, "weight_decay": 0.1},
	"nesterov": {"kind": "sgd", "lr": 0.1, "momentum": 0.8, "nesterov": true, "weight_decay": 0.1},
	"adam":     {"kind": "adam", "lr": 1e-2, "betas": []float64{0.8, 0.99}, "eps": 1e-4, "weight_decay": 0.1},
	"adamw":    {"kind": "adamw", "lr": 1e-2, "betas": []float64{0.9, 0.95}, "eps": 1e-4, "weight_decay": 0.1},
	"asgd":     {"kind": "asgd", "lr": 0.1, "t0": 1, "weight_decay": 0.1},
}

func torchOptimizer(h map[string]any) stage.Optimizer {
	o := stage.Optimizer{Name: h["kind"].(string)}
	if betas, ok := h["betas"].([]float64); ok {
		o.Betas, o.Epsilon = betas, h["eps"].(float64)
	}
	o.Momentum, _ = h["momentum"].(float64)
	o.Nesterov, _ = h["nesterov"].(bool)
	o.WeightDecay, _ = h["weight_decay"].(float64)
	if t0, ok := h["t0"].(int); ok {
		o.T0 = uint64(t0)
	}
	return o
}

const (
	torchSamples = 4
	torchSteps   = 4
	torchClip    = 0.5
)

type torchTensor struct {
	Shape  []int `json:"shape"`
	Values any   `json:"values"`
}

// torchQuestion and torchAnswer are what testdata/torch_models.py reads and writes.
type torchQuestion struct {
	Family     string                    `json:"family"`
	Config     map[string]any            `json:"config"`
	Weights    map[string]torchTensor    `json:"weights"`
	Batch      map[string]torchTensor    `json:"batch"`
	Masks      [][]float32               `json:"masks"`
	Optimizers map[string]map[string]any `json:"optimizers"`
	Clip       float64                   `json:"clip"`
	Steps      int                       `json:"steps"`
	BF16       bool                      `json:"bf16"`

	model *model.Model
	batch stagetest.Batch
}

type torchGradients struct {
	Loss      float64              `json:"loss"`
	Norm      float64              `json:"norm"`
	Gradients map[string][]float64 `json:"gradients"`
}

type torchAnswer struct {
	torchGradients
	Updates map[string]map[string][]float64 `json:"updates"`
	BF16    *torchGradients                 `json:"bf16"`
}

// newTorchQuestion makes weights and a batch for a model.
func newTorchQuestion(t *testing.T, family string, config map[string]any, random *rand.Rand) *torchQuestion {
	t.Helper()
	m, err := model.Build(family, config)
	if err != nil {
		t.Fatal(err)
	}
	q := &torchQuestion{
		Family: family, Config: config, Weights: map[string]torchTensor{}, Batch: map[string]torchTensor{}, Clip: torchClip, Steps: torchSteps, model: m,
	}
	for _, p := range m.Params() {
		if p.TiedTo == "" {
			q.Weights[p.Name] = torchTensor{p.Shape, torchWeights(p, random)}
		}
	}
	q.fillBatch(random)
	return q
}

// fillBatch makes samples: padded at the end, with some positions that no target counts at.
func (q *torchQuestion) fillBatch(random *rand.Rand) {
	m := q.model
	draw := func(n, limit int) []int32 {
		out := make([]int32, n)
		for i := range out {
			out[i] = random.Int32N(int32(limit))
		}
		return out
	}
	if m.Task == model.Images {
		shape := []int{torchSamples, m.Image.Channels, m.Image.Height, m.Image.Width}
		q.batch.Pixels = make([]float32, shape[0]*shape[1]*shape[2]*shape[3])
		for i := range q.batch.Pixels {
			q.batch.Pixels[i] = float32(random.NormFloat64())
		}
		q.Batch["pixels"] = torchTensor{shape, q.batch.Pixels}
	} else {
		n, t := torchSamples*m.Sequence(), m.Sequence()
		q.batch.IDs, q.batch.Decoder, q.batch.Types, q.batch.Mask = draw(n, m.Vocabulary()), draw(n, m.Vocabulary()), draw(n, 2), make([]int32, n)
		for i := range q.batch.Mask {
			if m.Task == model.Language || i%t < t-i/t {
				q.batch.Mask[i] = 1
			}
		}
		for name, values := range map[string][]int32{"ids": q.batch.IDs, "decoder_ids": q.batch.Decoder, "token_types": q.batch.Types, "mask": q.batch.Mask} {
			q.Batch[name] = torchTensor{[]int{torchSamples, t}, values}
		}
	}
	if m.Task == model.Images || m.Task == model.Classification {
		q.batch.Targets = draw(torchSamples, m.Loss.Classes)
		q.Batch["labels"] = torchTensor{[]int{torchSamples}, q.batch.Targets}
		return
	}
	q.batch.Targets = draw(torchSamples*m.Sequence(), m.Loss.Classes)
	q.batch.Targets[3], q.batch.Targets[len(q.batch.Targets)-1] = -1, -1
	q.Batch["labels"] = torchTensor{[]int{torchSamples, m.Sequence()}, q.batch.Targets}
}

// torchWeights keep activations of order 1: scales of norms are about 1, variances well above 0.
func torchWeights(p layer.Param, random *rand.Rand) []float32 {
	out := make([]float32, p.Len())
	for i := range out {
		x := random.NormFloat64()
		switch {
		case strings.HasSuffix(p.Name, "running_var"):
			x = 0.5 + math.Abs(x)
		case len(p.Shape) == 4:
			x /= math.Sqrt(float64(p.Len() / p.Shape[0]))
		case len(p.Shape) == 1 && p.Init.Mean == 1:
			x = 1 + 0.3*x
		default:
			x *= 0.25
		}
		out[i] = float32(x)
	}
	return out
}

// pipeline starts from the question's weights.
func (q *torchQuestion) pipeline(t *testing.T, dev device.Device, stages, micros int, o stage.Optimizer, compute device.Type) *stagetest.Pipeline {
	t.Helper()
	p := stagetest.NewPipeline(t, stagetest.PipelineConfig{
		Device: dev, Model: q.model, Stages: stages, Samples: torchSamples / micros, Micros: micros, Optimizer: o, Compute: compute,
	})
	q.load(t, p)
	return p
}

// load gives a pipeline the weights.
func (q *torchQuestion) load(t *testing.T, p *stagetest.Pipeline) {
	t.Helper()
	for _, s := range p.Stages {
		err := s.Load(func(name string) ([]int, []float32, bool, error) {
			x, ok := q.Weights[name]
			values, _ := x.Values.([]float32)
			return x.Shape, values, ok, nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}

// draw notes the masks of all steps. They are the same for any weights, and on any split.
func (q *torchQuestion) draw(t *testing.T) {
	t.Helper()
	masks := stagetest.NewMasks(ref.New())
	p := q.pipeline(t, masks, 1, 1, stage.Optimizer{Name: "sgd"}, device.F32)
	for range torchSteps {
		if _, _, err := p.Run(q.batch); err != nil {
			t.Fatal(err)
		}
		if err := p.Update(0, 0, 0); err != nil {
			t.Fatal(err)
		}
	}
	q.Masks = masks.Drawn
}

// torchComparison is a model with the answer of PyTorch.
type torchComparison struct {
	name    string
	dropout bool
	*torchQuestion
	torchAnswer
}

// micros is how many micro-batches a batch is cut into: batch norm of several is not that of PyTorch, which has none.
func (c *torchComparison) micros() int {
	if c.Config["norm"] == "batch" {
		return 1
	}
	return 2
}

func askTorch(t *testing.T) []torchComparison {
	t.Helper()
	random := rand.New(rand.NewPCG(5, 3))
	var asked []torchComparison
	var questions []*torchQuestion
	for _, name := range slices.Sorted(maps.Keys(torchModels)) {
		of := torchModels[name]
		for _, dropout := range []bool{false, true} {
			if dropout && of.rates == nil {
				continue
			}
			config := maps.Clone(of.config)
			for rate, value := range of.rates {
				if config[rate] = 0.0; dropout {
					config[rate] = value
				}
			}
			q := newTorchQuestion(t, of.family, config, random)
			q.BF16 = !dropout
			if dropout || of.rates == nil {
				q.Optimizers = torchOptimizers
			}
			if dropout {
				q.draw(t)
			}
			asked, questions = append(asked, torchComparison{name: name, dropout: dropout, torchQuestion: q}), append(questions, q)
		}
	}
	var answers []torchAnswer
	stagetest.PyTorch(t, "testdata/torch_models.py", questions, &answers)
	for i := range asked {
		asked[i].torchAnswer = answers[i]
	}
	return asked
}

// TestModelsTrainAsThoseOfPyTorchsModules holds loss, gradients and what optimizers make of the weights in some steps against models
// that are put together from PyTorch's modules, without dropout and with the same masks.
func TestModelsTrainAsThoseOfPyTorchsModules(t *testing.T) {
	asked := askTorch(t)
	stagetest.EachDevice(t, func(t *testing.T, dev device.Device) {
		for _, c := range asked {
			t.Run(fmt.Sprintf("%s dropout=%t", c.name, c.dropout), func(t *testing.T) {
				c.checkGradients(t, dev)
				for name, h := range c.Optimizers {
					t.Run(name, func(t *testing.T) { c.checkUpdates(t, dev, h, c.Updates[name]) })
				}
				if c.torchAnswer.BF16 != nil {
					t.Run("bf16", func(t *testing.T) { c.checkBF16(t, dev) })
				}
			})
		}
	})
}

// errorOf is the distance of all tensors together from those of PyTorch, and of the one that is the furthest off, relative to their
// lengths. Statistics of batch norm have no gradient there.
func (c *torchComparison) errorOf(t *testing.T, found map[string][]float32, want map[string][]float64) (all, worst float64) {
	t.Helper()
	var off, size float64
	for _, p := range c.model.Params() {
		w := want[p.Name]
		if w == nil && (p.TiedTo != "" || p.Running > 0) {
			continue
		}
		if len(w) != p.Len() {
			t.Fatalf("%s: PyTorch has %d elements, expected %d", p.Name, len(w), p.Len())
		}
		e := relative(found[p.Name], w)
		worst = max(worst, e)
		for i, v := range w {
			off, size = off+(float64(found[p.Name][i])-v)*(float64(found[p.Name][i])-v), size+v*v
		}
	}
	return math.Sqrt(off / size), worst
}

func (c *torchComparison) checkGradients(t *testing.T, dev device.Device) {
	t.Helper()
	p := c.pipeline(t, dev, 2, c.micros(), stage.Optimizer{}, device.F32)
	loss, squared, err := p.Run(c.batch)
	if err != nil {
		t.Fatal(err)
	}
	if norm := math.Sqrt(squared); math.Abs(loss-c.Loss) > tolerance*c.Loss || math.Abs(norm-c.Norm) > tolerance*c.Norm {
		t.Errorf("loss %v, norm %v; PyTorch's are %v and %v", loss, norm, c.Loss, c.Norm)
	}
	_, worst := c.errorOf(t, p.Gradients(), c.Gradients)
	t.Logf("gradients: largest relative error %.2g, tolerance %.1g", worst, tolerance)
	if !(worst <= tolerance) {
		t.Errorf("gradients: largest relative error %.3g, tolerance %.1g", worst, tolerance)
	}
}

func (c *torchComparison) checkUpdates(t *testing.T, dev device.Device, h map[string]any, want map[string][]float64) {
	t.Helper()
	p := c.pipeline(t, dev, 2, c.micros(), torchOptimizer(h), device.F32)
	for range torchSteps {
		_, squared, err := p.Run(c.batch)
		if err != nil {
			t.Fatal(err)
		}
		if err := p.Update(float32(h["lr"].(float64)), squared, torchClip); err != nil {
			t.Fatal(err)
		}
	}
	_, worst := c.errorOf(t, p.Parameters(), want)
	t.Logf("weights after %d steps: largest relative error %.2g, tolerance %.1g", torchSteps, worst, tolerance)
	if !(worst <= tolerance) {
		t.Errorf("weights after %d steps: largest relative error %.3g, tolerance %.1g", torchSteps, worst, tolerance)
	}
}

// checkBF16 holds gradients of products of bf16 operands against those of PyTorch's autocast, and both against the exact ones.
//
// An operand is rounded by at most 2^-8 of its size. The gradient of the first layer has passed through the products of the forward
// and those of the backward one after the other, each of which rounds two operands. So many independent roundings add up to the
// root of their number times that bound, doubled for what sums and products of rounded numbers amplify. PyTorch keeps more in bf16 than
// we do, sums among it, so its error may be half as large again. What is 2^-8/16 off or more was not computed in f32, whose error is 1e-6.
//
// A ReLU switches units on and off, and a pool changes winners, where a rounding of relative size e crosses a kink: a share of about e of
// them in each product, whose gradients are then others altogether. Their lengths add up as the root of the share.
func (c *torchComparison) checkBF16(t *testing.T, dev device.Device) {
	t.Helper()
	p := c.pipeline(t, dev, 2, c.micros(), stage.Optimizer{}, device.BF16)
	if _, _, err := p.Run(c.batch); err != nil {
		t.Fatal(err)
	}
	const rounding = 1.0 / 256
	products, kinks := 0, false
	for i := range c.model.Layers {
		for _, op := range layer.Alone(c.model.Layers, i, layer.Size{B: 1, T: c.model.Sequence()}).Forward.Ops() {
			switch o := op.(type) {
			case *device.MatMul, *device.Convolution:
				products++
			case *device.Attention: // scores and values
				products += 2
			case *device.LSTM: // one after the other
				products += o.T
			case *device.MaxPool, *device.GroupNorm:
				kinks = true
			}
		}
	}
	limit := 2 * rounding * math.Sqrt(float64(2*2*products))
	if kinks {
		limit += math.Sqrt(2 * rounding * float64(products))
	}
	ours, _ := c.errorOf(t, p.Gradients(), c.Gradients)
	apart, _ := c.errorOf(t, p.Gradients(), c.torchAnswer.BF16.Gradients)
	t.Logf("gradients are off by %.2g, at most %.2g; by %.2g from PyTorch's, at most %.2g", ours, limit, apart, 1.5*limit)
	if !(ours >= rounding/16 && ours <= limit && apart >= rounding/16 && apart <= 1.5*limit) {
		t.Errorf("gradients are off by %.3g, expected %.2g to %.2g; by %.3g from PyTorch's, expected %.2g to %.2g",
			ours, rounding/16, limit, apart, rounding/16, 1.5*limit)
	}
}
