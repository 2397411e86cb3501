package emulated_test

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/avgpipe/avgpipe/stage"
	"github.com/avgpipe/avgpipe/stage/device"
	"github.com/avgpipe/avgpipe/stage/device/emulated"
	"github.com/avgpipe/avgpipe/stage/device/ref"
	"github.com/avgpipe/avgpipe/stage/model"
)

// small are configs of every family.
var small = map[string]map[string]any{
	"gpt2": {"n_layer": 2, "n_head": 2, "n_embd": 32, "n_positions": 16, "vocab_size": 40},
	"llama": {
		"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "hidden_size": 32, "intermediate_size": 48,
		"max_position_embeddings": 16, "vocab_size": 40,
	},
	"mistral": {
		"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "hidden_size": 32, "intermediate_size": 48,
		"max_position_embeddings": 16, "vocab_size": 40, "sliding_window": 5,
	},
	"qwen2": {
		"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "hidden_size": 32, "intermediate_size": 48,
		"max_position_embeddings": 16, "vocab_size": 40,
	},
	"bert": {
		"num_hidden_layers": 2, "num_attention_heads": 2, "hidden_size": 32, "intermediate_size": 64, "max_position_embeddings": 16,
		"vocab_size": 40, "num_labels": 3,
	},
	"gnmt":     {"hidden_size": 16, "vocab_size": 40, "max_length": 8},
	"awd-lstm": {"ntoken": 40, "ninp": 16, "nhid": 24, "nlayers": 2, "bptt": 8},
	"mlp":      {"image_size": 4, "num_channels": 1, "hidden_sizes": []any{32, 16}, "num_labels": 10},
	"resnet":   {"image_size": 32, "num_labels": 10},
	"vgg":      {"image_size": 32, "num_labels": 10},
}

// passes runs a micro-batch through a stage, its backward in halves or whole, the optimizer's step and an evaluation, and
// returns what each took.
func passes(t *testing.T, d *emulated.Device, s *stage.Computed, halves bool) map[string]time.Duration {
	t.Helper()
	shape := s.Shape()
	input, labels := stage.NewBoundary(shape.InputBytes), stage.NewBoundary(shape.LabelBytes)
	micro := stage.Micro{Weight: 1}
	took := map[string]time.Duration{}
	do := func(name string, f func() error) {
		took[name] += spent(t, d, func() {
			if err := f(); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
		})
	}
	s.ZeroGradients()
	do("forward", func() error { return s.Forward(micro, stage.OnHost(input), labels, stage.Boundary{}) })
	if halves {
		do("input", func() error { return s.Backward(micro, stage.Input, stage.Boundary{}, stage.Boundary{}) })
		do("weight", func() error { return s.Backward(micro, stage.Weight, stage.Boundary{}, stage.Boundary{}) })
	} else {
		do("backward", func() error { return s.Backward(micro, stage.Whole, stage.Boundary{}, stage.Boundary{}) })
	}
	do("norm", func() error {
		loss, err := s.Loss()
		squared, err2 := s.SquaredNorm(0)
		if loss != 0 || squared != 0 {
			t.Errorf("loss %v and squared norm %v, want 0", loss, squared)
		}
		return errors.Join(err, err2)
	})
	do("step", func() error { return s.Step(stage.Hyper{LearningRate: 1, GradScale: 1}, nil) })
	do("evaluation", func() error {
		score, err := s.Evaluate(nil, input, labels, nil)
		if math.IsNaN(score.Loss) {
			t.Errorf("an evaluation's loss is %v", score.Loss)
		}
		return err
	})
	return took
}

func newStage(t *testing.T, d device.Device, family string, change func(*stage.Config)) *stage.Computed {
	t.Helper()
	m, err := model.Build(family, small[family])
	if err != nil {
		t.Fatal(err)
	}
	c := stage.Config{Device: d, Model: m, Samples: 2, Slots: 1, WeightSlots: 1, Optimizer: stage.Optimizer{Name: "adamw"}}
	if change != nil {
		change(&c)
	}
	s, err := stage.New(c)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// What a stage counts before it exists is what the device counts as it runs: products and nothing else cost anything here.
func TestEveryFamilyTakesWhatItsStagesCount(t *testing.T) {
	if found := model.Families(); len(found) != len(small) {
		t.Errorf("%d families are tested of %v", len(small), found)
	}
	for _, family := range slices.Sorted(maps.Keys(small)) {
		t.Run(family, func(t *testing.T) {
			d := open(t, emulated.Config{FLOPs: 1e10})
			s := newStage(t, d, family, nil)
			took := passes(t, d, s, true)
			for pass, want := range map[time.Duration]float64{
				took["forward"]:                s.Shape().ForwardFLOPs,
				took["input"] + took["weight"]: s.Shape().BackwardFLOPs,
			} {
				found := pass.Seconds() * 1e10
				t.Logf("%.4g FLOPs found, %.4g counted", found, want)
				if math.Abs(found/want-1) > 0.03 {
					t.Errorf("a pass takes %.4g FLOPs, counted were %.4g: more than 3%% apart", found, want)
				}
			}
			whole := newStage(t, d, family, func(c *stage.Config) { c.ForwardOnly = true })
			if found, want := took["evaluation"].Seconds()*1e10, whole.Shape().ForwardFLOPs; math.Abs(found/want-1) > 0.03 {
				t.Errorf("an evaluation takes %.4g FLOPs, counted were %.4g: more than 3%% apart", found, want)
			}
			if err := whole.Close(); err != nil {
				t.Error(err)
			}
			if err := s.Close(); err != nil || d.Held() != 0 {
				t.Errorf("close: %v; %d bytes are held", err, d.Held())
			}
		})
	}
}

func TestGivenTimesAreThoseOfAStage(t *testing.T) {
	const ms = time.Millisecond
	for _, recompute := range stage.Recomputes() {
		for _, halves := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, halves %v", recompute, halves), func(t *testing.T) {
				d := open(t, emulated.Config{FLOPs: 1, Stages: []emulated.Times{{Forward: ms, Backward: 4 * ms, Step: 3 * ms}}})
				s := newStage(t, d, "gpt2", func(c *stage.Config) { c.Recompute = stage.Recompute(recompute) })
				again := ms
				if recompute == string(stage.RecomputeNone) {
					again = 0
				}
				want := map[string]time.Duration{"forward": ms, "backward": 4*ms + again, "norm": 0, "step": 3 * ms, "evaluation": ms}
				if halves {
					delete(want, "backward")
					want["input"], want["weight"] = 2*ms+again, 2*ms
				}
				if took := passes(t, d, s, halves); !maps.Equal(took, want) {
					t.Errorf("passes take %v, want %v", took, want)
				}
			})
		}
	}
}

// counting is a device that computes and counts what it gives out.
type counting struct {
	device.Device
	held int64
}

func (c *counting) Host() bool { return false }

func (c *counting) Alloc(t device.Type, n int) (device.Mem, error) {
	c.held += int64(n) * int64(t.Bytes())
	return c.Device.Alloc(t, n)
}

func TestAStageHoldsWhatItHoldsOnADeviceThatComputes(t *testing.T) {
	for _, family := range slices.Sorted(maps.Keys(small)) {
		d, want := open(t, emulated.Config{}), &counting{Device: ref.New()}
		newStage(t, d, family, nil)
		newStage(t, want, family, nil)
		if d.Held() != want.held {
			t.Errorf("%s: %d bytes are held, %d where it computes", family, d.Held(), want.held)
		}
	}
}

// values runs two batches through a stage and returns what there is to read afterwards.
func values(t *testing.T, s *stage.Computed, halves bool) (all []float32) {
	t.Helper()
	shape := s.Shape()
	input, labels := stage.NewBoundary(shape.InputBytes), stage.NewBoundary(shape.LabelBytes)
	for step := range uint64(2) {
		s.ZeroGradients()
		micro := stage.Micro{Step: step, Weight: 1}
		err := s.Forward(micro, stage.OnHost(input), labels, stage.Boundary{})
		if halves {
			err = errors.Join(err, s.Backward(micro, stage.Input, stage.Boundary{}, stage.Boundary{}), s.Backward(micro, stage.Weight, stage.Boundary{}, stage.Boundary{}))
		} else {
			err = errors.Join(err, s.Backward(micro, stage.Whole, stage.Boundary{}, stage.Boundary{}))
		}
		loss, err2 := s.Loss()
		squared, err3 := s.SquaredNorm(0)
		gradients := make([]float32, shape.Parameters)
		s.Gradients().Read(gradients, 0)
		err4 := s.Step(stage.Hyper{Step: step, LearningRate: 0.01, GradScale: 1}, nil)
		score, err5 := s.Evaluate(nil, input, labels, nil)
		if err := errors.Join(err, err2, err3, err4, err5); err != nil {
			t.Fatal(err)
		}
		parameters := make([]float32, shape.Parameters)
		s.Parameters().Read(parameters, 0)
		all = append(append(append(all, float32(loss), float32(squared), float32(score.Loss)), gradients...), parameters...)
	}
	return all
}

// The passes of a stage give the bits that they do without times, whichever are recomputed or split.
func TestValuesAreThoseOfTheDeviceThatComputes(t *testing.T) {
	times := emulated.Config{Stages: []emulated.Times{{Forward: time.Microsecond, Backward: time.Millisecond, Step: time.Microsecond}}}
	for _, family := range slices.Sorted(maps.Keys(small)) {
		if family == "resnet" || family == "vgg" {
			continue // their least models take a minute on ref
		}
		for _, recompute := range stage.Recomputes() {
			for _, halves := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s, %s, halves %v", family, recompute, halves), func(t *testing.T) {
					t.Parallel()
					change := func(c *stage.Config) { c.Recompute = stage.Recompute(recompute) }
					got, want := values(t, newStage(t, over(t, times, ref.New()), family, change), halves), values(t, newStage(t, ref.New(), family, change), halves)
					if !slices.Equal(got, want) || want[0] == 0 {
						t.Errorf("%d values differ from those without times; the first are %v and %v", len(got), got[:3], want[:3])
					}
				})
			}
		}
	}
}
