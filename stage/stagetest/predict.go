package stagetest

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/avgpipe/avgpipe/stage"
	"github.com/avgpipe/avgpipe/stage/device"
	"github.com/avgpipe/avgpipe/stage/flat"
	"github.com/avgpipe/avgpipe/stage/layer"
	"github.com/avgpipe/avgpipe/stage/model"
)

// Predictions holds stages on a device to what Stage.Predict promises.
func Predictions(t *testing.T, dev device.Device) {
	optimizers := map[string]stage.Optimizer{
		"adamw":    {Name: "adamw", WeightDecay: 0.1},
		"adam":     {Name: "adam", WeightDecay: 0.1},
		"sgd":      {Name: "sgd", WeightDecay: 0.1},
		"momentum": {Name: "sgd", Momentum: 0.9, WeightDecay: 0.1},
		"nesterov": {Name: "sgd", Momentum: 0.9, Nesterov: true},
	}
	for name, o := range optimizers {
		for family, m := range predictedModels(t) {
			p := predictions{config: stage.Config{Device: dev, Model: m, Samples: 2, Slots: 1, Seed: 3, Optimizer: o, Predicts: true}}
			t.Run(name+" of "+family, func(t *testing.T) {
				p.T = t
				for _, r := range p.ranges() {
					p.nextStep(r)
				}
			})
		}
	}
	for family, m := range predictedModels(t) {
		for _, compute := range []device.Type{device.F32, device.BF16} {
			p := predictions{config: stage.Config{
				Device: dev, Model: m, Samples: 2, Slots: 1, Seed: 3, Optimizer: optimizers["adamw"], Compute: compute, Predicts: true,
			}}
			t.Run(fmt.Sprintf("%s in %v", family, compute), func(t *testing.T) {
				p.T = t
				p.passes()
			})
		}
	}
}

// predictedModels have tied tensors, running statistics, and a tensor that is predicted in parts.
func predictedModels(t *testing.T) map[string]*model.Model {
	t.Helper()
	all := map[string]*model.Model{}
	for family, config := range map[string]map[string]any{
		"gpt2": {"n_layer": 1, "n_head": 2, "n_embd": 12, "n_positions": 6, "vocab_size": 11},
		"vgg": {
			"image_size": 8, "hidden_sizes": []int{4}, "depths": []int{1}, "classifier_sizes": []int{9}, "num_labels": 5, "norm": "batch", "dropout": 0.0,
		},
		"mlp": {"image_size": 28, "hidden_sizes": []int{170}, "num_labels": 5},
	} {
		m, err := model.Build(family, config)
		if err != nil {
			t.Fatal(err)
		}
		all[family] = m
	}
	return all
}

// predictions tests stages of one config.
type predictions struct {
	*testing.T
	config stage.Config
}

// must fails the test on an error.
func (p *predictions) must(errs ...error) {
	p.Helper()
	if err := errors.Join(errs...); err != nil {
		p.Fatal(err)
	}
}

func (p *predictions) open(predicts bool) *stage.Computed {
	p.Helper()
	c := p.config
	c.Predicts = predicts
	s, err := stage.New(c)
	p.must(err)
	p.Cleanup(func() { p.must(s.Close()) })
	return s
}

// elements reads a vector.
func elements(v flat.Vector) []float32 {
	values := make([]float32, v.Len())
	v.Read(values, 0)
	return values
}

// same compares the bits of vectors.
func (p *predictions) same(what string, found, want []float32) {
	p.Helper()
	for i := range want {
		if math.Float32bits(found[i]) != math.Float32bits(want[i]) {
			p.Fatalf("%s: element %d is %v, want %v", what, i, found[i], want[i])
		}
	}
}

// gradient is random, the same at both copies of a tied tensor.
func (p *predictions) gradient(s *stage.Computed, seed uint64) []float32 {
	rng := rand.New(rand.NewPCG(seed, 7))
	g, drawn := make([]float32, s.Parameters().Len()), map[string][]float32{}
	for _, tensor := range s.Tensors() {
		own := g[tensor.Offset:][:tensor.Len()]
		for i := range own {
			own[i] = float32(rng.NormFloat64())
		}
		copy(own, drawn[tensor.TiedTo])
		drawn[tensor.Name] = own
	}
	return g
}

// hyper is what a step is taken with.
func hyper(step uint64) stage.Hyper {
	return stage.Hyper{Step: step, LearningRate: 0.01 / float32(step+1), GradScale: 0.75}
}

// vector is one of a stage, with values.
func (p *predictions) vector(s *stage.Computed, values []float32) flat.Vector {
	p.Helper()
	v, err := s.NewVector()
	p.must(err)
	v.Write(values, 0)
	return v
}

// kept are the vectors that a prediction must not change.
func kept(s *stage.Computed, more ...flat.Vector) (all [][]float32) {
	for _, v := range append(append([]flat.Vector{s.Parameters(), s.Gradients()}, s.State()...), more...) {
		all = append(all, elements(v))
	}
	return all
}

// nextStep predicts a range with the gradients that steps then get: what is predicted is what the parameters then are. A stage that is a step ahead
// says what that will be.
func (p *predictions) nextStep(r [2]int) {
	s, ahead := p.open(true), p.open(false)
	for _, of := range []*stage.Computed{s, ahead} {
		_, err := of.SquaredNorm(0) // with it ties are added: what gradients are written from here on are those of a step
		p.must(err)
	}
	delta, err := s.NewVector()
	p.must(err)
	for step := range uint64(4) {
		g := p.gradient(s, step)
		ahead.Gradients().Write(g, 0)
		p.must(ahead.Step(hyper(step), nil), device.Wait(ahead.Ready()))
		guess, next := p.vector(s, g), elements(ahead.Parameters())
		before := kept(s, delta, guess)
		p.must(s.Predict(hyper(step), guess, flat.Range{From: r[0], To: r[1]}), device.Wait(s.Ready()))
		p.same(fmt.Sprintf("step %d, the prediction of elements %v", step, r), elements(s.Predicted()), p.expected(s, r, before[0], next))
		for i, v := range kept(s, delta, guess) {
			p.same(fmt.Sprintf("step %d, vector %d after the prediction of elements %v", step, i, r), v, before[i])
		}
		s.Gradients().Write(g, 0)
		p.must(s.Step(hyper(step), delta), device.Wait(s.Ready()))
		p.same(fmt.Sprintf("the parameters after step %d", step), elements(s.Parameters()), next)
		p.same(fmt.Sprintf("what passes read after step %d", step), elements(s.Predicted()), next)
	}
}

// ranges are all elements, those of all tensors but the last, those of the last half of the tensors, and none.
func (p *predictions) ranges() [][2]int {
	tensors := stage.Layout(p.config.Model.Layers, false)
	last := tensors[len(tensors)-1].Offset
	n := last + layer.Padded(tensors[len(tensors)-1].Len())
	return [][2]int{{0, n}, {0, last}, {tensors[len(tensors)/2].Offset, n}, {last, last}}
}

// expected are parameters, in a range as they are after the next step.
func (p *predictions) expected(s *stage.Computed, r [2]int, now, next []float32) []float32 {
	values, offsets, statistics := slices.Clone(now), map[string]int{}, map[string]bool{}
	for _, param := range layer.Params(p.config.Model.Layers...) {
		statistics[param.Name] = param.Running > 0
	}
	for _, tensor := range s.Tensors() {
		at := tensor.Offset
		if original, ok := offsets[tensor.TiedTo]; ok {
			at = original
		}
		if offsets[tensor.Name] = at; at >= r[0] && at < r[1] && !statistics[tensor.Name] {
			copy(values[tensor.Offset:], next[tensor.Offset:][:tensor.Len()])
		}
	}
	return values
}

// data of a batch of one micro-batch.
func (p *predictions) data(shape stage.Shape, step uint64) (input, labels []byte) {
	input, labels = stage.NewBoundary(shape.InputBytes), stage.NewBoundary(shape.LabelBytes)
	rng := rand.New(rand.NewPCG(step, 1))
	for i := 0; i < len(input); i += 4 {
		x := rng.Uint32N(5)
		if p.config.Model.Task != model.Language {
			x = math.Float32bits(float32(rng.NormFloat64()))
		}
		binary.NativeEndian.PutUint32(input[i:], x)
	}
	for i := 0; i < len(labels); i += 4 {
		binary.NativeEndian.PutUint32(labels[i:], rng.Uint32N(5))
	}
	return input, labels
}

// trained runs a batch, with an evaluation of the stage's own parameters between its passes, and returns what that says.
func (p *predictions) trained(s *stage.Computed, step uint64) (own stage.Score) {
	p.Helper()
	m := stage.Micro{Step: step, Weight: 1}
	input, labels := p.data(s.Shape(), step)
	s.ZeroGradients()
	p.must(s.Forward(m, stage.OnHost(input), labels, stage.Boundary{}))
	own, err := s.Evaluate(nil, input, labels, nil)
	p.must(err, s.Backward(m, stage.Whole, stage.Boundary{}, stage.Boundary{}), device.Wait(s.Ready()))
	return own
}

// passes trains with predictions. Another stage, whose parameters are what the first one's passes read, has its gradients; and one that is made anew of
// what the first one has goes on as it does.
func (p *predictions) passes() {
	s, other, again := p.open(true), p.open(false), p.open(true)
	n, half := s.Parameters().Len(), s.Tensors()[len(s.Tensors())/2].Offset
	guess, wrong := p.vector(s, p.gradient(s, 9)), p.vector(s, make([]float32, n))
	wrong.Write([]float32{float32(math.NaN())}, 0)
	for step := range uint64(6) {
		other.Parameters().Copy(s.Predicted())
		mean := func(of *stage.Computed) float64 {
			loss, err := of.Loss()
			p.must(err)
			return loss
		}
		own, same := p.trained(s, step), p.trained(other, step)
		p.same(fmt.Sprintf("the gradient of step %d", step), elements(s.Gradients()), elements(other.Gradients()))
		if a, b := mean(s), mean(other); a != b {
			p.Errorf("step %d: the loss is %v, of a stage with those parameters %v", step, a, b)
		}
		if predicted := step > 0 && step != 3; predicted == (own.Loss == same.Loss) {
			p.Errorf("step %d: the loss of an evaluation is %v, of the weights that passes read %v", step, own.Loss, same.Loss)
		}
		p.must(s.Step(hyper(step), nil))
		if step == 2 { // nothing is predicted, so passes see what moves the parameters
			s.Parameters().Scale(0.5)
			continue
		}
		if step == 0 { // what is not finite is gone with the next prediction, also where it was evaluated
			p.must(s.Predict(hyper(step+1), wrong, flat.Range{From: 0, To: n}))
			input, labels := p.data(s.Shape(), step)
			_, err := s.Evaluate(s.Predicted(), input, labels, nil)
			p.must(err)
		}
		p.must(s.Predict(hyper(step+1), guess, flat.Range{From: 0, To: half}), device.Wait(s.Ready()))
		if step == 4 {
			p.restore(again, s)
		}
	}
	p.trained(again, 5)
	p.must(again.Step(hyper(5), nil))
	p.must(again.Predict(hyper(6), guess, flat.Range{From: 0, To: half}), device.Wait(again.Ready()))
	for i, v := range kept(again, again.Predicted()) {
		p.same(fmt.Sprintf("vector %d of a stage that was made anew", i), v, kept(s, s.Predicted())[i])
	}
}

// restore gives a stage what another has.
func (p *predictions) restore(s, from *stage.Computed) {
	s.Predicted().Write(elements(from.Predicted()), 0)
	s.Parameters().Write(elements(from.Parameters()), 0)
	for i, v := range s.State() {
		v.Write(elements(from.State()[i]), 0)
	}
}
