package stage_test

import (
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/avgpipe/avgpipe/stage"
	"github.com/avgpipe/avgpipe/stage/device"
	"github.com/avgpipe/avgpipe/stage/device/cpu"
	"github.com/avgpipe/avgpipe/stage/device/emulated"
	"github.com/avgpipe/avgpipe/stage/device/ref"
	"github.com/avgpipe/avgpipe/stage/model"
)

// languages are tiny models of every family that continues sequences.
var languages = map[string]map[string]any{
	"gpt2": {"n_layer": 2, "n_head": 2, "n_embd": 16, "n_positions": 16, "vocab_size": 23},
	"llama": {
		"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "hidden_size": 24, "intermediate_size": 40,
		"max_position_embeddings": 16, "vocab_size": 23,
	},
	"mistral": {
		"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 1, "hidden_size": 24, "intermediate_size": 40,
		"max_position_embeddings": 16, "vocab_size": 23, "sliding_window": 5,
	},
	"qwen2": {
		"num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 2, "hidden_size": 16, "intermediate_size": 40,
		"max_position_embeddings": 16, "vocab_size": 23,
	},
	"awd-lstm": {"ntoken": 23, "ninp": 12, "nhid": 20, "nlayers": 3, "bptt": 16},
}

// forwardOnly makes a stage for use only, with weights far from 0.
func forwardOnly(t *testing.T, family string, c stage.Config) *stage.Computed {
	t.Helper()
	m, err := model.Build(family, languages[family])
	if err != nil {
		t.Fatal(err)
	}
	c.Model, c.ForwardOnly, c.Seed = m, true, 3
	s, err := stage.New(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	values := make([]float32, s.Parameters().Len())
	random := rand.New(rand.NewPCG(4, 5))
	for i := range values {
		values[i] = float32(0.4 * random.NormFloat64())
	}
	s.Parameters().Write(values, 0)
	return s
}

// A context that grows, by several positions or by one, gives at every position the logits of a forward over all of them: to the bit on the plain
// Go device, where sums add in the order of their elements, but for recurrent products.
func TestContinuedSequencesComputeWhatWholeOnesDo(t *testing.T) {
	fast, err := cpu.Open(cpu.Config{Threads: 2})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name      string
		config    stage.Config
		tolerance float64
	}{
		{"ref", stage.Config{Device: ref.New(), Samples: 1}, 0},
		{"ref, three sequences", stage.Config{Device: ref.New(), Samples: 3}, 0},
		{"ref, bf16", stage.Config{Device: ref.New(), Samples: 2, Compute: device.BF16}, 0},
		{"a device of its own memory", stage.Config{Device: remote{ref.New()}, Samples: 2}, 0},
		{"cpu", stage.Config{Device: fast, Samples: 1}, 2e-5},
		{"cpu, three sequences", stage.Config{Device: fast, Samples: 3}, 2e-5},
		{"cpu, bf16", stage.Config{Device: fast, Samples: 2, Compute: device.BF16}, 0.02},
	} {
		for family := range languages {
			if family == "awd-lstm" && c.config.Compute == device.BF16 {
				continue // it computes in f32 only
			}
			t.Run(c.name+", "+family, func(t *testing.T) {
				tolerance := c.tolerance
				if family == "awd-lstm" { // the recurrent products of a later pass start with the gates
					tolerance = max(tolerance, 1e-6)
				}
				for _, pieces := range [][]int{{1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1}, {7, 1, 1, 1, 1, 1, 1, 1, 1, 1}, {16}, {2, 5, 1, 6, 2}} {
					continues(t, forwardOnly(t, family, c.config), c.config.Samples, pieces, tolerance)
				}
			})
		}
	}
	if err := fast.Close(); err != nil {
		t.Error(err)
	}
}

// continues compares a context that grows by pieces with evaluations of the whole window, twice, since a cleared context is as a new one.
func continues(t *testing.T, s *stage.Computed, samples int, pieces []int, tolerance float64) {
	t.Helper()
	const window, vocabulary = 16, 23
	x, err := s.NewContext(window)
	if err != nil {
		t.Fatal(err)
	}
	defer x.Close()
	for round := range uint64(2) {
		random, ids := rand.New(rand.NewPCG(8, round)), make([]int32, samples*window)
		for i := range ids {
			ids[i] = random.Int32N(vocabulary)
		}
		input, whole := stage.NewBoundary(4*len(ids)), stage.NewBoundary(4*len(ids)*vocabulary)
		copy(input, device.IntBytes(ids))
		if _, err := s.Evaluate(nil, input, nil, whole); err != nil {
			t.Fatal(err)
		}
		x.Clear()
		end, logits := 0, make([]float32, samples*vocabulary)
		for _, n := range pieces {
			var piece []int32
			for sample := range samples {
				piece = append(piece, ids[sample*window+end:][:n]...)
			}
			end += n
			if err := x.Advance(piece, logits); err != nil {
				t.Fatal(err)
			}
			for sample := range samples {
				want := device.Values[float32](whole)[(sample*window+end-1)*vocabulary:][:vocabulary]
				found := logits[sample*vocabulary:][:vocabulary]
				if d := distance(found, want); !(d <= tolerance) {
					t.Fatalf("after %d positions in pieces %v, sequence %d: logits differ by %.3g of their length: %v, want %v", end, pieces, sample, d, found, want)
				}
			}
		}
	}
}

// distance is that of two vectors over the length of the second.
func distance(x, y []float32) float64 {
	apart, length := 0.0, 0.0
	for i := range y {
		apart += math.Pow(float64(x[i]-y[i]), 2)
		length += math.Pow(float64(y[i]), 2)
	}
	return math.Sqrt(apart / length)
}

func TestAContextRefusesWhatDoesNotFit(t *testing.T) {
	s := forwardOnly(t, "gpt2", stage.Config{Device: ref.New(), Samples: 2})
	x, err := s.NewContext(4)
	if err != nil {
		t.Fatal(err)
	}
	defer x.Close()
	logits := make([]float32, 2*23)
	for want, call := range map[string]func() error{
		"3 ids for 2 sequences":                     func() error { return x.Advance([]int32{1, 2, 3}, logits) },
		"5 more, and 4 fit":                         func() error { return x.Advance(make([]int32, 10), logits) },
		"room for 5 logits, expected 46":            func() error { return x.Advance([]int32{1, 2}, logits[:5]) },
		"ids is 23 at sample 1, position 0":         func() error { return x.Advance([]int32{1, 23}, logits) },
		"17 positions; the model takes 1 to 16":     func() error { _, err := s.NewContext(17); return err },
		"only a ForwardOnly stage of all layers":    func() error { _, err := single(t, nil).NewContext(4); return err },
		"allocate what is kept of past positions: ": func() error { return full(t) },
	} {
		if err := call(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q", err, want)
		}
	}
	if err := x.Advance(make([]int32, 8), logits); err != nil || x.Room() != 0 {
		t.Errorf("error %v, room for %d more; want none", err, x.Room())
	}
	if err := x.Advance([]int32{1, 2}, logits); err == nil || !strings.Contains(err.Error(), "after 4 positions: 1 more, and 0 fit") {
		t.Errorf("error %v of a full context", err)
	}
}

// full makes a context on a device without memory for it.
func full(t *testing.T) error {
	t.Helper()
	dev := &limited{Device: ref.New()}
	s := forwardOnly(t, "gpt2", stage.Config{Device: dev, Samples: 1})
	dev.full = true
	_, err := s.NewContext(4)
	return err
}

// limited is a device that becomes full.
type limited struct {
	device.Device
	full bool
}

func (d *limited) Alloc(t device.Type, n int) (device.Mem, error) {
	if d.full {
		return device.Mem{}, errors.New("no memory")
	}
	return d.Device.Alloc(t, n)
}

// A recurrent model's context has one size, and takes more positions than the model was trained on at a time.
func TestARecurrentContextIsNeverFull(t *testing.T) {
	s := forwardOnly(t, "awd-lstm", stage.Config{Device: ref.New(), Samples: 1})
	short, err := s.NewContext(1)
	if err != nil {
		t.Fatal(err)
	}
	defer short.Close()
	logits := make([]float32, 23)
	for range 40 {
		if err := short.Advance([]int32{1}, logits); err != nil {
			t.Fatal(err)
		}
	}
	one := slices.Clone(logits)
	short.Clear()
	if err := short.Advance(slices.Repeat([]int32{1}, 40), logits); err != nil || distance(one, logits) > 1e-6 {
		t.Errorf("error %v; 40 positions at once give other logits than one after the other", err)
	}
}

// What ContextBytes says is what a context allocates.
func TestContextBytesAreThoseThatAreAllocated(t *testing.T) {
	for family := range languages {
		for _, compute := range []device.Type{device.F32, device.BF16} {
			for _, samples := range []int{1, 3} {
				if family == "awd-lstm" && compute == device.BF16 {
					continue
				}
				dev := &counted{Device: remote{ref.New()}}
				s := forwardOnly(t, family, stage.Config{Device: dev, Samples: samples, Compute: compute})
				m, err := model.Build(family, languages[family])
				if err != nil {
					t.Fatal(err)
				}
				want, err := stage.Config{Device: dev, Model: m, Samples: samples, Compute: compute, ForwardOnly: true}.ContextBytes(12, 9)
				if err != nil {
					t.Fatal(err)
				}
				dev.bytes = 0
				x, err := s.NewContext(12)
				if err != nil {
					t.Fatal(err)
				}
				for _, n := range []int{9, 1, 1} {
					if err := x.Advance(make([]int32, n*samples), make([]float32, samples*23)); err != nil {
						t.Fatal(err)
					}
				}
				x.Close()
				if dev.bytes != want {
					t.Errorf("%s, %d samples, %v: %d bytes allocated, priced %d", family, samples, compute, dev.bytes, want)
				}
			}
		}
	}
}

// A pass over one position takes the time of reading the weights, however many positions precede it, and of what is kept of those.
func TestAnEmulatedPositionTakesTheTimeOfItsBytes(t *testing.T) {
	dev, err := emulated.Open(emulated.Config{Bandwidth: 1e9, FLOPs: 1e12})
	if err != nil {
		t.Fatal(err)
	}
	m, err := model.Build("gpt2", languages["gpt2"])
	if err != nil {
		t.Fatal(err)
	}
	s, err := stage.New(stage.Config{Device: dev, Model: m, Samples: 1, ForwardOnly: true})
	if err != nil {
		t.Fatal(err)
	}
	x, err := s.NewContext(16)
	if err != nil {
		t.Fatal(err)
	}
	logits := make([]float32, 23)
	var took []float64
	for _, n := range []int{4, 1, 10, 1} {
		before := dev.Spent()
		if err := x.Advance(make([]int32, n), logits); err != nil {
			t.Fatal(err)
		}
		took = append(took, (dev.Spent() - before).Seconds())
	}
	if weights := 4 * float64(m.Weights()) / 1e9; took[1] < weights || took[1] > 1.5*weights {
		t.Errorf("one position takes %v s, reading the weights %v s", took[1], weights)
	}
	if kept := 2 * 2 * 11 * 16 * 4 / 1e9; math.Abs(took[3]-took[1]-kept) > 1e-9 {
		t.Errorf("eleven positions more take %v s, expected %v s for their keys and values in two layers", took[3]-took[1], kept)
	}
	x.Close()
	if err := errors.Join(s.Close(), dev.Close()); err != nil {
		t.Error(err)
	}
}
