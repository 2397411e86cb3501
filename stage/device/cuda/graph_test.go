//go:build cuda && cgo && linux && amd64

package cuda_test

import (
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/avgpipe/avgpipe/stage"
	"github.com/avgpipe/avgpipe/stage/device"
	"github.com/avgpipe/avgpipe/stage/device/cuda"
	"github.com/avgpipe/avgpipe/stage/device/cuda/cudatest"
	"github.com/avgpipe/avgpipe/stage/model"
	"github.com/avgpipe/avgpipe/stage/program"
	"github.com/avgpipe/avgpipe/stage/stagetest"
)

// Batches of a pipeline of these have so many micro-batches of so many samples.
const micros, samples, sequence = 2, 2, 6

// pipeline trains a small model on a device.
func pipeline(t *testing.T, d device.Device, kind string, fields map[string]any, c stagetest.PipelineConfig) *stagetest.Pipeline {
	t.Helper()
	of := maps.Clone(map[string]any{"gpt2": map[string]any{
		"n_layer": 2, "n_head": 2, "n_embd": 12, "n_positions": sequence, "vocab_size": 11,
	}, "awd-lstm": map[string]any{"ntoken": 11, "ninp": 6, "nhid": 8, "nlayers": 2, "bptt": sequence}, "llama": map[string]any{
		"num_hidden_layers": 2, "hidden_size": 12, "intermediate_size": 16, "num_attention_heads": 2, "max_position_embeddings": sequence, "vocab_size": 11,
	}}[kind].(map[string]any))
	maps.Copy(of, fields)
	m, err := model.Build(kind, of)
	if err != nil {
		t.Fatal(err)
	}
	c.Device, c.Model, c.Samples, c.Micros, c.Seed = d, m, samples, micros, 5
	c.Stages = max(c.Stages, 1)
	t.Cleanup(func() { // after the pipeline's
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	return stagetest.NewPipeline(t, c)
}

// step trains on one batch, which the number of the step gives.
func step(t *testing.T, p *stagetest.Pipeline, number uint64) (loss, norm float64) {
	t.Helper()
	rng := rand.New(rand.NewPCG(number, 0))
	b := stagetest.Batch{IDs: make([]int32, micros*samples*sequence), Targets: make([]int32, micros*samples*sequence)}
	for i := range b.IDs {
		b.IDs[i], b.Targets[i] = rng.Int32N(11), rng.Int32N(12)-1
	}
	loss, norm, err := p.Run(b)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Update(0.01/float32(number+1), norm, 0.5); err != nil {
		t.Fatal(err)
	}
	return loss, norm
}

// Learning rates, keys and the weights of micro-batches change from step to step; what was captured follows.
func TestGraphsComputeWhatTheirOperationsDo(t *testing.T) {
	dropped := map[string]any{"resid_pdrop": 0.2, "embd_pdrop": 0.1, "attn_pdrop": 0.3}
	for name, one := range map[string]struct {
		kind   string
		fields map[string]any
		c      stagetest.PipelineConfig
	}{
		"adamw":  {"gpt2", dropped, stagetest.PipelineConfig{Optimizer: stage.Optimizer{WeightDecay: 0.1}, Stages: 2}},
		"bf16":   {"gpt2", dropped, stagetest.PipelineConfig{Compute: device.BF16, Recompute: stage.RecomputeBlock}},
		"halves": {"gpt2", dropped, stagetest.PipelineConfig{Halves: true, Optimizer: stage.Optimizer{Name: "sgd", Momentum: 0.9, Nesterov: true}}},
		"asgd":   {"awd-lstm", map[string]any{"dropoute": 0.3}, stagetest.PipelineConfig{Optimizer: stage.Optimizer{Name: "asgd", T0: 2}}},
	} {
		t.Run(name, func(t *testing.T) {
			library := cudatest.Library(t)
			run := func(launches cuda.Launches) (weights map[string][]float32, numbers []float64) {
				d := openWith(t, cuda.Config{Library: library.Path(), Libraries: []string{library.Directory()}, Launches: launches})
				p := pipeline(t, d, one.kind, one.fields, one.c)
				for i := range uint64(5) {
					loss, norm := step(t, p, i)
					numbers = append(numbers, loss, norm)
				}
				return p.Parameters(), numbers
			}
			want, numbers := run(cuda.Operations)
			if library.Calls("cuGraphLaunch") != 0 {
				t.Error("operations that run one by one are a graph")
			}
			for _, launches := range []cuda.Launches{cuda.Graphs, cuda.Synchronous} {
				got, again := run(launches)
				if !slices.Equal(again, numbers) {
					t.Errorf("%s: losses and norms are %v, want %v", launches, again, numbers)
				}
				for parameter := range want {
					if !slices.Equal(got[parameter], want[parameter]) {
						t.Errorf("%s: %s differs", launches, parameter)
					}
				}
			}
			if library.Calls("cuGraphLaunch") == 0 {
				t.Error("nothing was captured")
			}
		})
	}
}

// From the third batch on a pass is one launch, and at most one copy beside those of its boundaries: of the numbers that have changed.
func TestAPassIsOneLaunch(t *testing.T) {
	library := cudatest.Library(t)
	d := open(t, library)
	p := pipeline(t, d, "gpt2", map[string]any{"resid_pdrop": 0.2}, stagetest.PipelineConfig{})
	for i := range uint64(2) {
		step(t, p, i)
	}
	const passes, updates = 2 * micros, 4 // gradients to 0, ties, the norm, the step
	want := map[string]int{
		"cuGraphLaunch":        passes + updates,
		"cuMemcpyHtoDAsync_v2": passes + 2*micros + 2, // numbers of passes; ids and targets; numbers of the step and the sum that a norm begins with
		"cuMemsetD8Async":      1,                     // of the sum of losses
		"cuLaunchKernel":       0, "cublasGemmEx": 0, "cuMemcpyDtoDAsync_v2": 0, "cuStreamBeginCapture_v2": 0, "cuMemAlloc_v2": 0,
	}
	before := map[string]int{}
	for f := range want {
		before[f] = library.Calls(f)
	}
	step(t, p, 2)
	for f, n := range want {
		if got := library.Calls(f) - before[f]; got != n {
			t.Errorf("a batch calls %s %d times, want %d", f, got, n)
		}
	}
}

// A device keeps the graphs that ran last, and none of memory that was freed.
func TestGraphsAreBounded(t *testing.T) {
	library := cudatest.Library(t)
	d := open(t, library)
	const places = 300
	memory := alloc(t, d, 16*places)
	b := program.NewBuilder()
	x := b.External(0, device.F32, 16)
	b.Do(&device.Axpy{Y: x, A: 1, X: x, By: device.Weight})
	b.Do(&device.Scale{X: x, A: 2})
	pass, m := b.Passes().Forward, program.Memory{External: make([]device.Mem, 1)}
	for i := range places {
		for turn := range 3 {
			m.External[0] = memory.Slice(16*i, 16)
			pass.Run(d, &m, device.Args{Weight: float32(turn)})
		}
	}
	const kept = 256
	if made, gone := library.Calls("cuGraphInstantiateWithFlags"), library.Calls("cuGraphExecDestroy"); made != places || gone != places-kept {
		t.Errorf("%d graphs were made and %d destroyed, want %d and %d", made, gone, places, places-kept)
	}
	d.Free(memory)
	if gone := library.Calls("cuGraphExecDestroy"); gone != places {
		t.Errorf("%d graphs are destroyed after their memory, want %d", gone, places)
	}
	if err := d.Close(); err != nil {
		t.Error(err)
	}
}
