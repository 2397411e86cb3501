package stage_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/avgpipe/avgpipe/stage"
	"github.com/avgpipe/avgpipe/stage/flat"
	"github.com/avgpipe/avgpipe/stage/stagetest"
)

func TestPredictedWeightsAreThoseOfTheNextStep(t *testing.T) {
	stagetest.EachDevice(t, stagetest.Predictions)
}

func TestPredictionsOnADeviceWithAQueue(t *testing.T) { stagetest.Predictions(t, late(t)) }

// plain is an optimizer in float64, of one element.
type plain struct {
	stage.Optimizer
	decay   float64
	p, m, v float64
	steps   int
}

// step is what a step with a gradient makes of the element.
func (o plain) step(rate, g float64) plain {
	o.steps++
	switch o.Name {
	case "sgd":
		g += o.decay * o.p
		if o.m = o.Momentum*o.m + g; o.Nesterov {
			g += o.Momentum * o.m
		} else {
			g = o.m
		}
		o.p -= rate * g
		return o
	case "adam":
		g += o.decay * o.p
	default:
		o.p -= rate * o.decay * o.p
	}
	o.m, o.v = 0.9*o.m+0.1*g, 0.999*o.v+0.001*g*g
	o.p -= rate * (o.m / (1 - math.Pow(0.9, float64(o.steps)))) / (math.Sqrt(o.v/(1-math.Pow(0.999, float64(o.steps)))) + 1e-8)
	return o
}

// The weights that passes read are one step of the optimizer ahead of the parameters, on a trajectory that knows of no prediction (Chen et al. 2022).
func TestPredictionsAreOneStepOfThePlainOptimizerAhead(t *testing.T) {
	for name, o := range map[string]stage.Optimizer{
		"adamw": {Name: "adamw", WeightDecay: 0.1}, "adam": {Name: "adam", WeightDecay: 0.1}, "sgd": {Name: "sgd", WeightDecay: 0.1},
		"momentum": {Name: "sgd", Momentum: 0.9, WeightDecay: 0.1}, "nesterov": {Name: "sgd", Momentum: 0.9, Nesterov: true},
	} {
		t.Run(name, func(t *testing.T) {
			s := single(t, func(c *stage.Config) { c.Model, c.Optimizer, c.Predicts = tiny(t, false), o, true })
			rng, worst := rand.New(rand.NewPCG(3, 4)), 0.0
			start, decays := read(s.Parameters()), map[int]bool{}
			for _, tensor := range s.Tensors() {
				for i := range tensor.Len() {
					decays[tensor.Offset+i] = len(tensor.Shape) > 1
				}
			}
			elements := make([]plain, len(start))
			for i := range elements {
				elements[i] = plain{Optimizer: o, p: float64(start[i])}
				if decays[i] {
					elements[i].decay = o.WeightDecay
				}
			}
			guess, err := s.NewVector()
			if err != nil {
				t.Fatal(err)
			}
			random := func() []float32 {
				g := make([]float32, len(start))
				for i := range g {
					if _, used := decays[i]; used {
						g[i] = float32(rng.NormFloat64())
					}
				}
				return g
			}
			for step := range uint64(8) {
				g, h := random(), stage.Hyper{Step: step, LearningRate: 0.02 / float32(step+1), GradScale: 0.5}
				s.Gradients().Write(g, 0)
				if err := s.Step(h, nil); err != nil {
					t.Fatal(err)
				}
				expected, next := random(), stage.Hyper{Step: step + 1, LearningRate: 0.02 / float32(step+2), GradScale: 0.5}
				guess.Write(expected, 0)
				if err := s.Predict(next, guess, flat.Range{From: 0, To: len(start)}); err != nil {
					t.Fatal(err)
				}
				found, parameters := read(s.Predicted()), read(s.Parameters())
				for i := range elements {
					elements[i] = elements[i].step(float64(h.LearningRate), float64(h.GradScale*g[i]))
					ahead := elements[i].step(float64(next.LearningRate), float64(next.GradScale*expected[i]))
					worst = max(worst, math.Abs(float64(found[i])-ahead.p), math.Abs(float64(parameters[i])-elements[i].p))
				}
			}
			if t.Logf("largest difference %.2g, tolerance 1e-6", worst); worst > 1e-6 {
				t.Error("the weights differ from those of the plain form")
			}
		})
	}
}

func TestPredictionsThatCannotBeAreRefused(t *testing.T) {
	for want, change := range map[string]func(*stage.Config){
		"optimizer asgd, whose passes read its iterates: use sgd":                              func(c *stage.Config) { c.Optimizer.Name = "asgd" },
		"passes read 2 versions of them: use a plan that steps at the end of a batch, or pred": func(c *stage.Config) { c.Versions = 2 },
	} {
		c := stage.Config{Device: late(t), Model: tiny(t, true), Samples: 1, Slots: 1, Predicts: true}
		if err := c.Validate(); err != nil {
			t.Fatal(err)
		}
		if change(&c); c.Validate() == nil || !strings.Contains(c.Validate().Error(), want) {
			t.Errorf("Validate: %v, want %q", c.Validate(), want)
		}
	}
	without := single(t, nil)
	s := single(t, func(c *stage.Config) { c.Predicts = true })
	n, first := s.Parameters().Len(), s.Tensors()[0]
	for _, c := range []struct {
		what, want string
		err        error
	}{
		{"a stage without them", "set Config.Predicts", without.Predict(stage.Hyper{}, without.Gradients(), flat.Range{From: 0, To: n})},
		{"beyond the end", fmt.Sprintf("elements 0 to %d are asked for; the stage has 0 to %d", n+1, n), s.Predict(stage.Hyper{}, s.Gradients(), flat.Range{From: 0, To: n + 1})},
		{"a negative range", "elements 5 to 4", s.Predict(stage.Hyper{}, s.Gradients(), flat.Range{From: 5, To: 4})},
		{"a part of a tensor", "elements 0 to 5 have a part of " + first.Name, s.Predict(stage.Hyper{}, s.Gradients(), flat.Range{From: 0, To: 5})},
		{"no gradient", "gradient: a <nil> was given", s.Predict(stage.Hyper{}, nil, flat.Range{From: 0, To: n})},
	} {
		if c.err == nil || !strings.Contains(c.err.Error(), c.want) {
			t.Errorf("%s: error %v, want %q", c.what, c.err, c.want)
		}
	}
	if without.Predicted() != nil {
		t.Error("a stage that was not made for predictions has predicted weights")
	}
	b := batch(2, 6, 1)
	if err := s.Forward(stage.Micro{Weight: 1}, stage.OnHost(stagetest.Int32Bytes(b.IDs)), stagetest.Int32Bytes(b.Targets), stage.Boundary{}); err != nil {
		t.Fatal(err)
	}
	if err := s.Predict(stage.Hyper{}, nil); err == nil || !strings.Contains(err.Error(), "predict after the last backward") {
		t.Errorf("Predict within a batch: %v", err)
	}
}
