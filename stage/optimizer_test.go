package stage_test

import (
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/avgpipe/avgpipe/stage"
)

func TestScheduleAt(t *testing.T) {
	at := func(name string, warmup, steps uint64) stage.Schedule {
		return stage.Schedule{Name: name, Peak: 2, Warmup: warmup, Steps: steps, MinRatio: 0.1}
	}
	for _, c := range []struct {
		name     string
		schedule stage.Schedule
		step     uint64
		want     float64
	}{
		{"warm-up begins above zero", at("cosine", 4, 104), 0, 0.5},
		{"warm-up ends at the peak", at("cosine", 4, 104), 3, 2},
		{"the peak", at("cosine", 4, 104), 4, 2},
		{"half-way down a cosine", at("cosine", 4, 104), 54, 0.2 + 1.8/2},
		{"a quarter down a cosine", at("cosine", 0, 100), 25, 0.2 + 1.8*(1+math.Sqrt2/2)/2},
		{"the end of a cosine", at("cosine", 4, 104), 104, 0.2},
		{"after the end", at("cosine", 4, 104), 1e6, 0.2},
		{"a quarter down a line", at("linear", 4, 104), 29, 0.2 + 1.8*0.75},
		{"the end of a line", at("linear", 4, 104), 104, 0.2},
		{"constant after warm-up", at("constant", 4, 104), 90, 2},
		{"constant in warm-up", at("constant", 4, 104), 1, 1},
		{"no warm-up", at("linear", 0, 10), 0, 2},
		{"nothing but warm-up", at("linear", 10, 10), 9, 2},
	} {
		if got := c.schedule.At(c.step); math.Abs(got-c.want) > 1e-12 {
			t.Errorf("%s: At(%d) = %v, want %v", c.name, c.step, got, c.want)
		}
	}
}

func TestClipFactor(t *testing.T) {
	for _, c := range []struct {
		squared, limit float64
		want           float32
	}{
		{100, 0, 1},  // no limit
		{0.25, 1, 1}, // below it
		{0, 1, 1},
		{100, 1, float32(1 / (10 + 1e-6))},
	} {
		if got := stage.ClipFactor(c.squared, c.limit); got != c.want {
			t.Errorf("ClipFactor(%v, %v) = %v, want %v", c.squared, c.limit, got, c.want)
		}
	}
}

func TestOptimizerValidate(t *testing.T) {
	for _, c := range []struct {
		optimizer stage.Optimizer
		want      string // "": valid
	}{
		{stage.Optimizer{}, ""},
		{stage.Optimizer{Name: "sgd", Momentum: 0.9, Nesterov: true}, ""},
		{stage.Optimizer{Name: "adamv"}, `"adamv" is not one of adam, adamw, asgd, sgd`},
		{stage.Optimizer{Name: "sgd", Nesterov: true}, "nesterov needs a momentum"},
		{stage.Optimizer{Name: "sgd", Momentum: 1}, "momentum is 1"},
		{stage.Optimizer{Betas: []float64{0.9, math.NaN()}}, "betas[1] is NaN"},
		{stage.Optimizer{Betas: []float64{0.9, 0.99999999}}, "betas[1] is 0.99999999; it is at least 0 and below 1 in float32"},
		{stage.Optimizer{Betas: []float64{0, 0}}, ""},
		{stage.Optimizer{Betas: []float64{0.9}}, "1 betas; there are 2"},
		{stage.Optimizer{Epsilon: 1e-15}, ""},
		{stage.Optimizer{Epsilon: 1e-16}, "epsilon is 1e-16; it is at least 1e-15"},
		{stage.Optimizer{WeightDecay: -1}, "weight decay is -1"},
	} {
		err := c.optimizer.Validate()
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%+v: error %v, want %q", c.optimizer, err, c.want)
		}
	}
}

// A parameter whose gradient never changes moves by the learning rate at each step, since the moments are corrected by the decay rates that they
// have: m^ = g and v^ = g^2 (Kingma and Ba 2015, section 3).
func TestAdamCorrectsForTheDecayRatesThatItApplies(t *testing.T) {
	for _, betas := range [][]float64{nil, {0, 0}, {0, 0.999}, {0.9, 0.99999}, {0.9, 0.9999999}} {
		s := single(t, func(c *stage.Config) {
			c.Model, c.Optimizer = tiny(t, false), stage.Optimizer{Name: "adam", Betas: betas}
		})
		gradient := slices.Repeat([]float32{0.5}, s.Parameters().Len())
		for step := range uint64(5) {
			s.Parameters().Zero()
			s.Gradients().Write(gradient, 0)
			if err := s.Step(stage.Hyper{Step: step, LearningRate: 1, GradScale: 1}, nil); err != nil {
				t.Fatal(err)
			}
			if moved := float64(read(s.Parameters())[0]); math.Abs(moved+1) > 1e-6 {
				t.Errorf("betas %v: step %d moves by %v, want -1", betas, step, moved)
			}
		}
	}
}

// Betas of 0 are not absent ones: nothing is kept of past gradients, so a step goes by the sign of its own.
func TestAdamWithBetasOfZeroForgets(t *testing.T) {
	s := single(t, func(c *stage.Config) {
		c.Model, c.Optimizer = tiny(t, false), stage.Optimizer{Name: "adam", Betas: []float64{0, 0}}
	})
	s.Parameters().Zero()
	for step, gradient := range []float32{0.5, -0.25, -8} {
		s.Gradients().Write(slices.Repeat([]float32{gradient}, s.Parameters().Len()), 0)
		if err := s.Step(stage.Hyper{Step: uint64(step), LearningRate: 1, GradScale: 1}, nil); err != nil {
			t.Fatal(err)
		}
	}
	if at := float64(read(s.Parameters())[0]); math.Abs(at-1) > 1e-6 {
		t.Errorf("three steps by the signs +, - and - end at %v, want 1", at)
	}
}

func TestScheduleValidate(t *testing.T) {
	for _, c := range []struct {
		schedule stage.Schedule
		want     string
	}{
		{stage.Schedule{Name: "cosine", Peak: 1e-3}, ""},
		{stage.Schedule{Name: "cos", Peak: 1}, `"cos" is not one of constant, cosine, linear`},
		{stage.Schedule{Name: "linear"}, "the learning rate is 0"},
		{stage.Schedule{Name: "linear", Peak: 1, MinRatio: 2}, "the minimum ratio is 2"},
	} {
		err := c.schedule.Validate()
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%+v: error %v, want %q", c.schedule, err, c.want)
		}
	}
}
