package stage_test

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/avgpipe/avgpipe/internal/envtest"
	"github.com/avgpipe/avgpipe/stage"
	"github.com/avgpipe/avgpipe/stage/device"
	"github.com/avgpipe/avgpipe/stage/device/ref"
	"github.com/avgpipe/avgpipe/stage/flat"
	"github.com/avgpipe/avgpipe/stage/model"
	"github.com/avgpipe/avgpipe/stage/stagetest"
)

func tiny(t testing.TB, tied bool) *model.Model {
	t.Helper()
	m, err := model.Build("gpt2", map[string]any{
		"n_layer": 2, "n_head": 2, "n_embd": 12, "n_positions": 6, "vocab_size": 11, "tie_word_embeddings": tied,
	})
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func batch(samples, sequence int, seed uint64) stagetest.Batch {
	rng := rand.New(rand.NewPCG(seed, 0))
	b := stagetest.Batch{IDs: make([]int32, samples*sequence), Targets: make([]int32, samples*sequence)}
	for i := range b.IDs {
		b.IDs[i], b.Targets[i] = rng.Int32N(11), rng.Int32N(11)
	}
	return b
}

// train runs a few clipped steps and returns the weights, the losses and the norms.
func train(t *testing.T, c stagetest.PipelineConfig) (weights map[string][]float32, numbers []float64) {
	t.Helper()
	c.Samples, c.Seed = 4/c.Micros, 5
	p := stagetest.NewPipeline(t, c)
	for step := range uint64(4) {
		loss, squared, err := p.Run(batch(4, 6, step))
		if err != nil {
			t.Fatal(err)
		}
		if err := p.Update(0.01, squared, 0.5); err != nil {
			t.Fatal(err)
		}
		numbers = append(numbers, loss, squared)
	}
	return p.Parameters(), numbers
}

func requireSameBits(t *testing.T, what string, found, want map[string][]float32) {
	t.Helper()
	if !slices.Equal(slices.Sorted(maps.Keys(found)), slices.Sorted(maps.Keys(want))) {
		t.Errorf("%s: other tensors: %v", what, slices.Sorted(maps.Keys(found)))
	}
	for name, x := range want {
		for i := range x {
			if math.Float32bits(x[i]) != math.Float32bits(found[name][i]) {
				t.Errorf("%s: %s[%d] is %v, want %v", what, name, i, found[name][i], x[i])
				break
			}
		}
	}
}

func TestEverySplitGivesTheSameBits(t *testing.T) {
	stagetest.EachDevice(t, func(t *testing.T, dev device.Device) {
		for _, tied := range []bool{true, false} {
			for _, o := range []stage.Optimizer{
				{Name: "adamw", WeightDecay: 0.1},
				{Name: "sgd", Momentum: 0.9, Nesterov: true, WeightDecay: 0.1},
				{Name: "asgd", WeightDecay: 0.1, T0: 1},
			} {
				for _, micros := range []int{1, 2, 4} {
					compareSplits(t, stagetest.PipelineConfig{Device: dev, Model: tiny(t, tied), Micros: micros, Optimizer: o})
				}
			}
		}
	})
}

// compareSplits holds splits of a model, with whole and halved backwards, against the undivided one.
func compareSplits(t *testing.T, config stagetest.PipelineConfig) {
	t.Helper()
	config.Stages = 1
	want, wantNumbers := train(t, config)
	for _, c := range []struct {
		stages         int
		halves, remote bool
	}{{1, true, false}, {2, false, false}, {3, false, false}, {4, false, false}, {4, true, false}, {2, true, true}, {3, false, true}} {
		split := config
		split.Stages, split.Halves = c.stages, c.halves
		if c.remote {
			split.Device = remote{config.Device}
		}
		what := fmt.Sprintf("%s, M=%d, K=%d, halves %v, remote memory %v",
			config.Optimizer.Name, config.Micros, c.stages, c.halves, c.remote)
		found, numbers := train(t, split)
		requireSameBits(t, what, found, want)
		if !slices.Equal(numbers, wantNumbers) {
			t.Errorf("%s: losses and norms %v, want %v", what, numbers, wantNumbers)
		}
	}
}

// A device with a queue, which runs nothing before it must, gives the bits of one without.
func TestStagesOnADeviceWithAQueueComputeTheSame(t *testing.T) {
	for _, compute := range []device.Type{device.F32, device.BF16} {
		config := stagetest.PipelineConfig{Device: ref.New(), Model: tiny(t, true), Micros: 2, Stages: 1, Compute: compute}
		want, wantNumbers := train(t, config)
		for _, stages := range []int{1, 3} {
			queued := config
			queued.Device, queued.Stages, queued.Halves = late(t), stages, stages > 1
			found, numbers := train(t, queued)
			requireSameBits(t, fmt.Sprintf("%v, K=%d", compute, stages), found, want)
			if !slices.Equal(numbers, wantNumbers) {
				t.Errorf("%v, K=%d: losses and norms %v, want %v", compute, stages, numbers, wantNumbers)
			}
		}
	}
}

// remote is a device whose memory the host does not see: boundaries must be uploaded and downloaded.
type remote struct{ device.Device }

func (remote) Host() bool { return false }

func TestTiedCopiesStayEqual(t *testing.T) {
	for _, stages := range []int{1, 4} {
		weights, _ := train(t, stagetest.PipelineConfig{Device: ref.New(), Model: tiny(t, true), Stages: stages, Micros: 2})
		requireSameBits(t, fmt.Sprintf("K=%d: lm_head.weight", stages),
			map[string][]float32{"w": weights["lm_head.weight"]}, map[string][]float32{"w": weights["transformer.wte.weight"]})
	}
}

// single makes all layers one stage with 2 samples of 6 positions in a micro-batch.
func single(t *testing.T, change func(*stage.Config)) *stage.Computed {
	t.Helper()
	c := stage.Config{Device: ref.New(), Model: tiny(t, true), Samples: 2, Slots: 2, Seed: 1}
	if change != nil {
		change(&c)
	}
	s, err := stage.New(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func TestSteadyStateAllocatesNothing(t *testing.T) {
	for _, predicts := range []bool{false, true} {
		stagetest.EachDevice(t, func(t *testing.T, dev device.Device) { steadyState(t, dev, predicts) })
	}
}

func steadyState(t *testing.T, dev device.Device, predicts bool) {
	m := tiny(t, true)
	s := single(t, func(c *stage.Config) {
		c.Device, c.Range, c.Index, c.Count, c.WeightSlots = dev, stage.Range{From: 2, To: len(m.Layers)}, 1, 2, 1
		c.Predicts = predicts
	})
	shape := s.Shape()
	input, dinput := stage.NewBoundary(shape.InputBytes), stage.NewBoundary(shape.InputBytes)
	labels, logits := stagetest.Int32Bytes(batch(2, 6, 1).Targets), stage.NewBoundary(shape.OutputBytes)
	delta, err := s.NewVector()
	if err != nil {
		t.Fatal(err)
	}
	step, second := uint64(0), s.Tensors()[1].Offset
	parts := [][]stage.Part{{stage.Whole}, {stage.Input, stage.Weight}}
	got := envtest.Allocations(10, func() {
		s.ZeroGradients()
		for i, order := range parts {
			micro := stage.Micro{Step: step, Index: i, Weight: 0.5}
			err = errors.Join(err, s.Forward(micro, stage.OnHost(input), labels, stage.Boundary{}))
			for _, part := range order {
				err = errors.Join(err, s.Backward(micro, part, stage.Boundary{}, stage.OnHost(dinput)))
			}
		}
		_, e1 := s.SquaredNorm(0)
		_, e2 := s.Loss()
		_, e3 := s.Evaluate(delta, input, labels, logits)
		err = errors.Join(err, e1, e2, e3, s.Step(stage.Hyper{Step: step, LearningRate: 1e-3, GradScale: 1}, delta))
		if predicts {
			err = errors.Join(err, s.Predict(stage.Hyper{Step: step + 1, LearningRate: 1e-3, GradScale: 1}, s.Gradients(), flat.Range{From: second, To: delta.Len()}))
		}
		step++
	})
	if err != nil {
		t.Fatal(err)
	}
	if got > 1 { // the loss of an evaluation
		t.Errorf("%v allocations a step, want one", got)
	}
}

func TestEvaluateDisturbsNothing(t *testing.T) {
	b := batch(2, 6, 1)
	ids, targets := stagetest.Int32Bytes(b.IDs), stagetest.Int32Bytes(b.Targets)
	run := func(evaluate bool) []float32 {
		s := single(t, nil)
		other, err := s.NewVector()
		if err != nil {
			t.Fatal(err)
		}
		other.Copy(s.Parameters())
		other.Scale(2)
		for i := range 2 {
			if err := s.Forward(stage.Micro{Index: i, Weight: 0.5}, stage.OnHost(ids), targets, stage.Boundary{}); err != nil {
				t.Fatal(err)
			}
		}
		for i := range 2 {
			if evaluate {
				evaluateBoth(t, s, other, ids, targets)
			}
			if err := s.Backward(stage.Micro{Index: i, Weight: 0.5}, stage.Whole, stage.Boundary{}, stage.Boundary{}); err != nil {
				t.Fatal(err)
			}
		}
		loss, err := s.Loss()
		if err != nil {
			t.Fatal(err)
		}
		g := make([]float32, s.Gradients().Len())
		s.Gradients().Read(g, 0)
		return append(g, float32(loss))
	}
	requireSameBits(t, "gradients", map[string][]float32{"g": run(true)}, map[string][]float32{"g": run(false)})
}

// evaluateBoth evaluates with the stage's own parameters and with others, which must give the losses that belong to them.
func evaluateBoth(t *testing.T, s *stage.Computed, other flat.Vector, ids, targets []byte) {
	t.Helper()
	own, err := s.Evaluate(nil, ids, targets, nil)
	if err != nil || own.Targets != 12 {
		t.Fatalf("evaluate: %d targets, error %v", own.Targets, err)
	}
	scaled, err := s.Evaluate(other, ids, targets, nil)
	if err != nil {
		t.Fatal(err)
	}
	again, err := s.Evaluate(s.Parameters(), ids, targets, nil)
	if err != nil {
		t.Fatal(err)
	}
	if own.Loss != again.Loss || own.Loss == scaled.Loss {
		t.Errorf("losses: %v with the stage's own parameters, %v with the same given, %v with others", own.Loss, again.Loss, scaled.Loss)
	}
}

// The gradients of products are set by a batch's first weight half, so nothing of the batch before may be left without one.
func TestABatchWithoutMicroBatchesHasNoGradients(t *testing.T) {
	s := single(t, nil)
	b := batch(2, 6, 1)
	var norms []float64
	for _, micros := range []int{1, 0} {
		s.ZeroGradients()
		var err error
		for i := range micros {
			micro := stage.Micro{Index: i, Weight: 1}
			err = errors.Join(s.Forward(micro, stage.OnHost(stagetest.Int32Bytes(b.IDs)), stagetest.Int32Bytes(b.Targets), stage.Boundary{}),
				s.Backward(micro, stage.Whole, stage.Boundary{}, stage.Boundary{}))
		}
		squared, errNorm := s.SquaredNorm(0)
		if err := errors.Join(err, errNorm); err != nil {
			t.Fatal(err)
		}
		norms = append(norms, squared)
	}
	if norms[0] == 0 || norms[1] != 0 {
		t.Errorf("the squared norms of a batch of one micro-batch and of an empty one are %v, want one above 0, then 0", norms)
	}
}

func TestMicroBatchesOutOfTurnAreErrors(t *testing.T) {
	b := batch(2, 6, 1)
	ids, targets := stagetest.Int32Bytes(b.IDs), stagetest.Int32Bytes(b.Targets)
	bad := slices.Clone(b.IDs)
	bad[7] = 11
	micro := func(i int) stage.Micro { return stage.Micro{Step: 3, Index: i, Weight: 1} }
	s := single(t, func(c *stage.Config) { c.WeightSlots = 1 })
	forward := func(i int, in, labels []byte) func() error {
		return func() error { return s.Forward(micro(i), stage.OnHost(in), labels, stage.Boundary{}) }
	}
	backward := func(i int, part stage.Part) func() error {
		return func() error { return s.Backward(micro(i), part, stage.Boundary{}, stage.Boundary{}) }
	}
	for _, c := range []struct {
		what string
		do   func() error
		want string // "": succeeds
	}{
		{"a token outside the vocabulary", forward(0, stagetest.Int32Bytes(bad), targets), "ids is 11 at sample 1, position 1; the model takes 0 to 10"},
		{"a target outside the vocabulary", forward(0, ids, stagetest.Int32Bytes(bad)), "target 11 at index 7"},
		{"a short input", forward(0, ids[:8], targets), "the input boundary buffer has 8 bytes, want 48"},
		{"missing labels", forward(0, ids, nil), "the labels buffer has 0 bytes, want 48"},
		{"F0", forward(0, ids, targets), ""},
		{"F0 again", forward(0, ids, targets), "forward of micro-batch 0 of step 3: it is in flight already"},
		{"F1", forward(1, ids, targets), ""},
		{"F2 in two slots", forward(2, ids, targets), "2 micro-batches are in flight already"},
		{"W0 before I0", backward(0, stage.Weight), "out of order"},
		{"B2", backward(2, stage.Whole), "it is not in flight"},
		{"I0", backward(0, stage.Input), ""},
		{"B0 after I0", backward(0, stage.Whole), "out of order"},
		{"I1 in one weight slot", backward(1, stage.Input), "1 micro-batches wait for their weight half already"},
		{"W0", backward(0, stage.Weight), ""},
		{"W0 again", backward(0, stage.Weight), "it is not in flight"},
		{"F2", forward(2, ids, targets), ""},
		{"B1", backward(1, stage.Whole), ""},
		{"the norm", func() error { _, err := s.SquaredNorm(0); return err }, ""},
		{"B2 after the norm", backward(2, stage.Whole), "call ZeroGradients first"},
	} {
		err := c.do()
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: error %v, want %q", c.what, err, c.want)
		}
	}
}

// small is a device with room for a number of allocations.
type small struct {
	*ref.Device
	room, live int
}

func (d *small) Alloc(t device.Type, n int) (device.Mem, error) {
	if d.live == d.room {
		return device.Mem{}, fmt.Errorf("device: allocate %d elements of %v: full", n, t)
	}
	d.live++
	return d.Device.Alloc(t, n)
}

func (d *small) Free(m device.Mem) {
	d.live--
	d.Device.Free(m)
}

func TestNewOnAFullDeviceSaysWhatDidNotFitAndFreesTheRest(t *testing.T) {
	for room := 0; ; room++ {
		dev := &small{Device: ref.New(), room: room}
		s, err := stage.New(stage.Config{Device: dev, Model: tiny(t, true), Samples: 2, Slots: 2, WeightSlots: 1})
		if err == nil {
			if err := s.Close(); err != nil || dev.live != 0 {
				t.Errorf("close: error %v, %d allocations left", err, dev.live)
			}
			break
		}
		if !strings.HasPrefix(err.Error(), "stage 0 of 1: allocate ") || !strings.HasSuffix(err.Error(), ": full") {
			t.Errorf("room for %d: error %v", room, err)
		}
		if dev.live != 0 {
			t.Errorf("room for %d: %d allocations left after the error", room, dev.live)
		}
	}
}

func TestShapeCountsWhatCrossesAndWhatStays(t *testing.T) {
	m, dev := tiny(t, true), ref.New()
	config := stage.Config{Device: dev, Model: m, Range: stage.Range{From: 1, To: 2}, Index: 1, Count: 4, Samples: 2, Slots: 1}
	shape, err := config.Shape()
	if err != nil {
		t.Fatal(err)
	}
	s, err := stage.New(config)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}()
	const rows, width = 12, 12
	saved := device.AttentionShape{B: 2, T: 6, H: 2, S: 6}.Saved()
	pad := func(n int) int { return (n + 15) / 16 * 16 }
	// Two norms save mean and rstd; then norm1, qkv (3), attention, residual, norm2, up (4), GELU (4), each a multiple
	// of rows*width.
	inFlight := 4*pad(rows) + pad(saved) + 15*rows*width
	if shape.InputBytes != 4*rows*width || shape.OutputBytes != shape.InputBytes || shape.LabelBytes != 0 || shape.First || shape.Last {
		t.Errorf("boundaries of a middle stage: %+v", shape)
	}
	if shape.InFlightBytes != 4*inFlight {
		t.Errorf("a micro-batch holds %d bytes, want %d", shape.InFlightBytes, 4*inFlight)
	}
	if got := s.Parameters().Len(); got != shape.Parameters || got < 12*width*width+13*width || len(shape.ParameterNames) != 12 {
		t.Errorf("%d parameters in %d tensors, the vector has %d", shape.Parameters, len(shape.ParameterNames), got)
	}
	if shape.StateVectors != 2 || len(s.State()) != 2 || shape.BackwardFLOPs != 2*shape.ForwardFLOPs {
		t.Errorf("state vectors %d, FLOPs %v and %v", shape.StateVectors, shape.ForwardFLOPs, shape.BackwardFLOPs)
	}
}
