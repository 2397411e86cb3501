package stage_test

import (
	"math"
	"slices"
	"testing"

	"github.com/avgpipe/avgpipe/internal/envtest"
	"github.com/avgpipe/avgpipe/stage"
	"github.com/avgpipe/avgpipe/stage/device"
	"github.com/avgpipe/avgpipe/stage/device/ref"
	"github.com/avgpipe/avgpipe/stage/flat"
	"github.com/avgpipe/avgpipe/stage/model"
)

// trial is a stage of a whole model with one micro-batch of data.
type trial struct {
	*testing.T
	*stage.Computed
	input, labels []byte
}

func newTrial(t *testing.T, compute device.Type) *trial {
	t.Helper()
	m, err := model.Build("gpt2", map[string]any{
		"n_layer": 2, "n_embd": 32, "n_head": 2, "n_positions": 8, "vocab_size": 50, "tie_word_embeddings": true,
	})
	if err != nil {
		t.Fatal(err)
	}
	s, err := stage.New(stage.Config{Device: ref.New(), Model: m, Samples: 2, Slots: 1, Seed: 3, Compute: compute})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	b := &trial{T: t, Computed: s, input: stage.NewBoundary(s.Shape().InputBytes), labels: stage.NewBoundary(s.Shape().LabelBytes)}
	ids := make([]int32, 16)
	for i := range ids {
		ids[i] = int32(i * 7 % 50)
	}
	copy(b.input, device.IntBytes(ids))
	slices.Reverse(ids)
	copy(b.labels, device.IntBytes(ids))
	return b
}

// pass runs a forward and a backward, and returns the loss.
func (b *trial) pass() float64 {
	b.Helper()
	b.ZeroGradients()
	micro := stage.Micro{Weight: 1}
	if err := b.Forward(micro, stage.OnHost(b.input), b.labels, stage.Boundary{}); err != nil {
		b.Fatal(err)
	}
	if err := b.Backward(micro, stage.Whole, stage.Boundary{}, stage.Boundary{}); err != nil {
		b.Fatal(err)
	}
	loss, err := b.Loss()
	if err != nil {
		b.Fatal(err)
	}
	return loss
}

func (b *trial) evaluate(v flat.Vector) float64 {
	b.Helper()
	score, err := b.Evaluate(v, b.input, b.labels, nil)
	if err != nil {
		b.Fatal(err)
	}
	return score.Loss / float64(score.Targets)
}

func TestBF16ComputesNearlyWhatF32Does(t *testing.T) {
	exact, rounded := newTrial(t, device.F32), newTrial(t, device.BF16)
	a, b := exact.pass(), rounded.pass()
	if a == b || math.Abs(a-b) > 0.01 {
		t.Errorf("the loss is %v in bf16, %v in f32", b, a)
	}
	var off, size float64
	for i, g := range read(exact.Gradients()) {
		d := float64(read(rounded.Gradients())[i] - g)
		off, size = off+d*d, size+float64(g)*float64(g)
		if i > 200 {
			break
		}
	}
	if e := math.Sqrt(off / size); e > 0.03 || e == 0 {
		t.Errorf("gradients in bf16 are off by %.2g of their size", e)
	}
}

// Whatever writes the parameters, passes compute with a copy of what they are then.
func TestCopiesOfParametersAreNeverStale(t *testing.T) {
	for name, write := range map[string]func(b *trial){
		"nothing":        func(*trial) {},
		"another vector": func(b *trial) { b.Parameters().Lerp(0.5, b.other(0.25)) },
		"a run of it":    func(b *trial) { b.Parameters().Write(read(b.Parameters())[:100], 100) },
		"scaling":        func(b *trial) { b.Parameters().Scale(0.5) },
		"an evaluation":  func(b *trial) { b.evaluate(b.other(2)) },
		"a step": func(b *trial) {
			if err := b.Step(stage.Hyper{LearningRate: 0.1, GradScale: 1}, nil); err != nil {
				b.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := newTrial(t, device.BF16)
			b.pass()
			write(b)
			fresh := newTrial(t, device.BF16)
			fresh.Parameters().Write(read(b.Parameters()), 0)
			evaluated, want := b.evaluate(nil), fresh.evaluate(nil)
			if evaluated != want {
				t.Errorf("an evaluation gives %v, a new stage with these parameters %v", evaluated, want)
			}
			if found := b.evaluate(b.Parameters()); found != want {
				t.Errorf("an evaluation of the stage's own vector gives %v, want %v", found, want)
			}
			if found, want := b.pass(), fresh.pass(); found != want {
				t.Errorf("a forward gives %v, a new stage with these parameters %v", found, want)
			}
			if !slices.Equal(read(b.Gradients()), read(fresh.Gradients())) {
				t.Error("the gradients differ from a new stage's with these parameters")
			}
		})
	}
}

// other is a vector of the parameters times factor.
func (b *trial) other(factor float32) flat.Vector {
	v, err := b.NewVector()
	if err != nil {
		b.Fatal(err)
	}
	v.Copy(b.Parameters())
	v.Scale(factor)
	return v
}

func TestProductsComputeInF32OrBF16(t *testing.T) {
	m, err := model.Build("gpt2", map[string]any{"n_layer": 1, "n_embd": 8, "n_head": 2, "n_positions": 8, "vocab_size": 50})
	if err != nil {
		t.Fatal(err)
	}
	config := stage.Config{Device: ref.New(), Model: m, Samples: 1, Slots: 1, Compute: device.I32}
	if err := config.Validate(); err == nil {
		t.Error("products in i32 were accepted")
	}
}

func TestTrainingAllocatesNothing(t *testing.T) {
	for _, compute := range []device.Type{device.F32, device.BF16} {
		b := newTrial(t, compute)
		step := uint64(0)
		got := envtest.Allocations(10, func() {
			b.pass()
			if _, err := b.SquaredNorm(0); err != nil {
				t.Error(err)
			}
			if err := b.Step(stage.Hyper{Step: step, LearningRate: 1e-3, GradScale: 1}, nil); err != nil {
				t.Error(err)
			}
			step++
		})
		if got != 0 {
			t.Errorf("%v: %v allocations a step, want none", compute, got)
		}
	}
}
