package footprint

import (
	"testing"

	"github.com/avgpipe/avgpipe/job"
	"github.com/avgpipe/avgpipe/stage/device"
	"github.com/avgpipe/avgpipe/stage/device/emulated"
	"github.com/avgpipe/avgpipe/stage/device/ref"
	"github.com/avgpipe/avgpipe/stage/model"
	"github.com/avgpipe/avgpipe/tuner"
)

func newSizer(t *testing.T, change func(*job.Job), host bool) *Sizer {
	t.Helper()
	m, err := model.Build("gpt2", map[string]any{"n_layer": 2, "n_head": 2, "n_embd": 256, "n_positions": 16, "vocab_size": 256})
	if err != nil {
		t.Fatal(err)
	}
	j := job.Default()
	j.Train.Batch, j.Optimizer.Name, j.Averaging.Alpha = 4, "adamw", 1
	if change != nil {
		change(j)
	}
	if host {
		return New(m, j, ref.New(), ref.New())
	}
	on, err := emulated.Open(emulated.Config{})
	if err != nil {
		t.Fatal(err)
	}
	return New(m, j, on, on)
}

func size(t *testing.T, z *Sizer, pipelines int) tuner.Memory {
	t.Helper()
	m, err := z.Stage(tuner.StageSpec{From: 0, To: 2, Samples: 2, Slots: 2, Versions: 1, Recompute: "none", Pipelines: pipelines})
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// A commit copies weights and optimizer state of each pipeline, and the center where that is none of them.
func TestCommitsTakeMemory(t *testing.T) {
	onlyCenter := func(j *job.Job) { j.Center.State = "center" }
	for name, c := range map[string]struct {
		pipelines int
		change    func(*job.Job)
		vectors   int64
	}{
		"one pipeline":                        {1, nil, 3},
		"three pipelines":                     {3, nil, 10},
		"three pipelines, center alone":       {3, onlyCenter, 1},
		"two pipelines, sgd without momentum": {2, func(j *job.Job) { j.Optimizer.Name, j.Optimizer.Momentum = "sgd", 0 }, 3},
	} {
		m := size(t, newSizer(t, c.change, false), c.pipelines)
		vector := m.Weights / int64(c.pipelines)
		if m.Host != workspace+c.vectors*vector {
			t.Errorf("%s: %d bytes beside the devices' memory; want %d vectors of %d and %d", name, m.Host, c.vectors, vector, workspace)
		}
	}
}

// What crosses to the next stage in bf16 takes half of what it takes in f32, of slots and of messages; what is computed is the same.
func TestBoundariesInBF16TakeHalfTheMemory(t *testing.T) {
	second := func(change func(*job.Job)) tuner.Memory {
		m, err := newSizer(t, change, true).Stage(tuner.StageSpec{From: 1, To: 2, Samples: 2, Slots: 2, Versions: 1, Recompute: "none", Pipelines: 1})
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	wide, narrow := second(nil), second(func(j *job.Job) { j.BoundaryPrecision = "bf16" })
	const message = 2 * 16 * 256 * 4 // samples, positions, width
	if wide.Boundaries != 4*message || 2*narrow.Boundaries != wide.Boundaries {
		t.Errorf("boundaries take %d bytes in f32, %d in bf16; want %d and half of it", wide.Boundaries, narrow.Boundaries, 4*message)
	}
	// A pass widens its input for itself.
	if more := narrow.Activations - wide.Activations; more < 0 || more > 2*message {
		t.Errorf("passes take %d bytes in f32, %d in bf16; want at most %d more", wide.Activations, narrow.Activations, 2*message)
	}
}

// In the host's memory, large allocations end on huge pages.
func TestWholePagesTakeMemory(t *testing.T) {
	apart, shared := size(t, newSizer(t, nil, false), 2), size(t, newSizer(t, nil, true), 2)
	vector := shared.Weights / 2
	padding := device.HostPages(vector) - vector
	if vector < 2<<20 || padding <= 0 {
		t.Fatalf("a vector of %d bytes is padded by %d; the model is too small for this test", vector, padding)
	}
	vectors := shared.Center/vector + (shared.Weights+shared.Gradients+shared.State)/vector
	if got := shared.Host - apart.Host; got < vectors*padding || shared.OnDevice() >= apart.OnDevice() { // where inputs come from the host
		t.Errorf("%d bytes more on the host, want at least %d for %d vectors; %d and %d bytes on devices",
			got, vectors*padding, vectors, shared.OnDevice(), apart.OnDevice())
	}
}

// What is not trained takes no gradients, optimizer state and averaging, and its weights are there once for all pipelines.
func TestFrozenParametersTakeLessMemory(t *testing.T) {
	z := newSizer(t, nil, false)
	all := size(t, z, 3)
	var err error
	if z.model, err = z.model.Train(model.Training{Only: []string{"h.0.ln_1.*"}}); err != nil {
		t.Fatal(err)
	}
	z.known = map[tuner.StageSpec]tuner.Memory{}
	few := size(t, z, 3)
	const vector = 4 * 2 * 256 // of the weight and the bias
	weights := all.Weights / 3
	if few.Gradients-all.Gradients != 3*(vector-weights) || few.State != 3*2*vector || few.Weights != weights+2*vector {
		t.Errorf("weights %d, gradients %d, state %d bytes for 512 trained parameters; with all trained %d, %d, %d",
			few.Weights, few.Gradients, few.State, all.Weights, all.Gradients, all.State)
	}
	if few.Center != all.Center/weights*vector || few.Host != workspace+weights-vector {
		t.Errorf("averaging takes %d bytes and the process %d; with all trained %d and %d", few.Center, few.Host, all.Center, all.Host)
	}
}

// TestDataOfAllBatchesInFlightTakeMemory: by a plan that runs on across batches, those of as many batches as a stage has micro-batches of at once.
func TestDataOfAllBatchesInFlightTakeMemory(t *testing.T) {
	z := newSizer(t, nil, true) // batches of two micro-batches
	boundaries := func(micros, slots int) int64 {
		m, err := z.Stage(tuner.StageSpec{From: 0, To: 2, Samples: 2, Slots: slots, Versions: 1, Recompute: "none", Pipelines: 1, MicroBatches: micros})
		if err != nil {
			t.Fatal(err)
		}
		return m.Boundaries
	}
	two, output := boundaries(2, 2), boundaries(2, 2)-2*(boundaries(8, 2)-boundaries(2, 2))
	for slots, batches := range map[int]int64{1: 2, 2: 3, 3: 3, 4: 4, 5: 4} {
		if got, want := boundaries(8, slots), output+batches*(two-output)/2; got != want {
			t.Errorf("%d micro-batches in flight: %d bytes cross, want %d of %d batches", slots, got, want, batches)
		}
	}
}
