package stage_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/avgpipe/avgpipe/stage"
	"github.com/avgpipe/avgpipe/stage/device"
	"github.com/avgpipe/avgpipe/stage/device/ref"
	"github.com/avgpipe/avgpipe/stage/model"
)

// watcher is a device that notes which operation was the last to change each of some tensors.
type watcher struct {
	device.Device
	read    func(t stage.Tensor) []float32
	watched []stage.Tensor
	before  map[string][]float32
	count   int            // of operations
	changed map[string]int // by tensor, the count after the operation that changed it last
}

func (w *watcher) Do(op device.Op) {
	w.Device.Do(op)
	w.count++
	for _, t := range w.watched {
		if now := w.read(t); !slices.Equal(now, w.before[t.Name]) {
			w.before[t.Name], w.changed[t.Name] = now, w.count
		}
	}
}

// begin forgets what was noted.
func (w *watcher) begin(watched []stage.Tensor) {
	w.watched, w.count, w.before, w.changed = watched, 0, map[string][]float32{}, map[string]int{}
	for _, t := range watched {
		w.before[t.Name] = w.read(t)
	}
}

// Gradients are final right after the operation of a batch's last backward that changes them last, as a look at all of them after each
// operation finds; those that are tied when their sums are made.
func TestGradientsAreFinalAfterTheirLastOperation(t *testing.T) {
	for name, config := range map[string]map[string]any{
		"gpt2 tied":   {"family": "gpt2", "n_layer": 2, "n_head": 2, "n_embd": 8, "n_positions": 6, "vocab_size": 11, "tie_word_embeddings": true},
		"gpt2":        {"family": "gpt2", "n_layer": 1, "n_head": 2, "n_embd": 8, "n_positions": 6, "vocab_size": 11, "tie_word_embeddings": false},
		"gnmt":        {"family": "gnmt", "hidden_size": 4, "vocab_size": 11, "max_length": 5},
		"vgg running": {"family": "vgg", "image_size": 8, "hidden_sizes": []int{4}, "depths": []int{1}, "classifier_sizes": []int{9}, "num_labels": 5, "norm": "batch"},
	} {
		family := config["family"].(string)
		delete(config, "family")
		m, err := model.Build(family, config)
		if err != nil {
			t.Fatal(err)
		}
		for _, recompute := range []stage.Recompute{stage.RecomputeNone, stage.RecomputeFull} {
			for _, halves := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s, recompute %s, halves %v", name, recompute, halves), func(t *testing.T) {
					dev := &watcher{Device: ref.New()}
					d := delayed{T: t, halves: halves, config: stage.Config{Device: dev, Model: m, Samples: 2, Seed: 3, Recompute: recompute}}
					d.finals(dev)
				})
			}
		}
	}
}

// finals trains a step of two micro-batches.
func (d delayed) finals(dev *watcher) {
	s := d.open(1, 2)
	dev.read = func(t stage.Tensor) []float32 {
		values := make([]float32, t.Len())
		s.Gradients().Read(values, t.Offset)
		return values
	}
	at, values := map[string]int{}, map[string][]float32{}
	summed := false
	s.OnFinal(func(t stage.Tensor, ready device.Event) {
		if _, again := at[t.Name]; again || device.Wait(ready) != nil {
			d.Errorf("%s is final twice, or failed", t.Name)
		}
		at[t.Name], values[t.Name] = dev.count, dev.read(t)
		if summed {
			at[t.Name] = -1
		}
	})
	d.forward(s, stage.Micro{Index: 0, Weight: 0.5})
	d.forward(s, stage.Micro{Index: 1, Weight: 0.5})
	d.backward(s, stage.Micro{Index: 0, Weight: 0.5})
	last := stage.Micro{Index: 1, Weight: 0.5, Last: true}
	if d.halves {
		if err := s.Backward(last, stage.Input, stage.Boundary{}, stage.Boundary{}); err != nil {
			d.Fatal(err)
		}
	}
	if len(at) > 0 {
		d.Errorf("%d gradients are final before the last weight half", len(at))
	}
	part := stage.Whole
	if d.halves {
		part = stage.Weight
	}
	dev.begin(s.Tensors())
	if err := s.Backward(last, part, stage.Boundary{}, stage.Boundary{}); err != nil {
		d.Fatal(err)
	}
	changed, early := dev.changed, 0
	dev.watched, summed = nil, true
	if _, err := s.SquaredNorm(0); err != nil {
		d.Fatal(err)
	}
	for _, t := range s.Tensors() {
		if found := at[t.Name]; found != -1 && found != changed[t.Name] {
			d.Errorf("%s is final after %d operations; the last that changes it is number %d", t.Name, found, changed[t.Name])
		}
		if _, told := at[t.Name]; !told || !slices.Equal(values[t.Name], dev.read(t)) {
			d.Errorf("%s was not final when that was told (told: %v)", t.Name, told)
		}
		if at[t.Name] != -1 && at[t.Name] < dev.count {
			early++
		}
	}
	if early < len(s.Tensors())/2 {
		d.Errorf("%d of %d gradients are final before the end", early, len(s.Tensors()))
	}
}
