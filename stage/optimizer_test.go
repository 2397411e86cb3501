package stage_test

import (
	"math"
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
		{stage.Optimizer{Beta1: 0.9, Beta2: math.NaN()}, "beta2 is NaN"},
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
