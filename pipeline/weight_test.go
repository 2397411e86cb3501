package pipeline

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/avgpipe/avgpipe/elastic"
	"github.com/avgpipe/avgpipe/stage"
	"github.com/avgpipe/avgpipe/stage/device/ref"
	"github.com/avgpipe/avgpipe/stage/flat"
	"github.com/avgpipe/avgpipe/stage/layer"
	"github.com/avgpipe/avgpipe/stage/model"
)

// counted says how many targets of each sample count: some micro-batches have none, some many.
var counted = []int{0, 1, 6, 2}

// uneven is a Source of the same few samples, in micro-batches of so many.
type uneven struct{ samples int }

func (u uneven) Fill(_ uint64, micro int, input, labels []byte) error {
	const positions = 6
	for i := range u.samples * positions {
		sample, position := micro*u.samples+i/positions, i%positions
		if input != nil {
			binary.NativeEndian.PutUint32(input[4*i:], uint32((7*sample+3*position)%11))
		}
		if labels == nil {
			continue
		}
		target := uint32((5*sample + position*position) % 11)
		if position >= counted[sample] {
			target = math.MaxUint32 // -1
		}
		binary.NativeEndian.PutUint32(labels[4*i:], target)
	}
	return nil
}

// recorder is a stage that keeps the gradients of its first batch.
type recorder struct {
	stage.Stage
	gradients *[]float32
}

func (r recorder) Step(h stage.Hyper, delta flat.Vector) error {
	v := r.Gradients()
	*r.gradients = make([]float32, v.Len())
	v.Read(*r.gradients, 0)
	return r.Stage.Step(h, delta)
}

// gradientsOf trains one batch of 4 samples, cut into so many micro-batches, and returns its loss and the gradients of all stages.
func gradientsOf(t *testing.T, stages, micros int) (loss float64, gradients []float32) {
	t.Helper()
	m, err := model.Build("gpt2", map[string]any{
		"n_layer": 2, "n_head": 2, "n_embd": 12, "n_positions": 6, "vocab_size": 11, "initializer_range": 0.3, "tie_word_embeddings": false,
	})
	if err != nil {
		t.Fatal(err)
	}
	samples := len(counted) / micros
	ranges, err := stage.Split(m.Costs(layer.Size{B: samples, T: 6}), stages)
	if err != nil {
		t.Fatal(err)
	}
	method, err := elastic.NewMethod("elastic", elastic.Config{Pipelines: 1})
	if err != nil {
		t.Fatal(err)
	}
	c := Config{
		Plan: plan(t, "1f1b", stages, micros), MicroBatches: micros, Pipelines: 1, Method: method, FinalRound: 1,
		LearningRate: func(uint64) float32 { return 0.01 }, Events: Events{OnStep: func(s StepReport) { loss = s.Loss }},
	}
	parts := make([][]float32, stages)
	for k, r := range ranges {
		c.Stages = append(c.Stages, StageConfig{
			Index: k,
			Build: func(int) (stage.Stage, error) {
				s, err := stage.New(stage.Config{
					Device: ref.New(), Model: m, Range: r, Index: k, Count: stages, Samples: samples, Slots: micros, Seed: 5,
				})
				return recorder{s, &parts[k]}, err
			},
			Source: func(int) Source { return uneven{samples} },
		})
	}
	g, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	if err := g.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	return loss, slices.Concat(parts...)
}

func TestALossIsTheMeanOverTheBatchsTargetsHoweverTheyAreSpread(t *testing.T) {
	const tolerance = 1e-5 // of the largest gradient, and of the loss
	for stages := 1; stages <= 2; stages++ {
		wantLoss, want := gradientsOf(t, stages, 1)
		largest := 0.0
		for _, g := range want {
			largest = max(largest, math.Abs(float64(g)))
		}
		for _, micros := range []int{2, 4} {
			t.Run(fmt.Sprintf("K%d_M%d", stages, micros), func(t *testing.T) {
				loss, gradients := gradientsOf(t, stages, micros)
				worst := 0.0
				for i, g := range gradients {
					worst = max(worst, math.Abs(float64(g-want[i])))
				}
				t.Logf("loss %v, of one micro-batch %v; gradients up to %.3g differ by at most %.3g", loss, wantLoss, largest, worst)
				if !(worst <= tolerance*largest) || !(math.Abs(loss-wantLoss) <= tolerance*wantLoss) || largest < 0.01 {
					t.Errorf("loss %v, want %v; gradients up to %.3g differ by %.3g", loss, wantLoss, largest, worst)
				}
			})
		}
	}
}
