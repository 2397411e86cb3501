package stage_test

import (
	"testing"

	"github.com/avgpipe/avgpipe/stage"
	"github.com/avgpipe/avgpipe/stage/device"
	"github.com/avgpipe/avgpipe/stage/device/ref"
	"github.com/avgpipe/avgpipe/stage/model"
	"github.com/avgpipe/avgpipe/stage/stagetest"
)

// counted is a device that counts what is allocated on it.
type counted struct {
	device.Device
	bytes int64
}

func (c *counted) Alloc(t device.Type, n int) (device.Mem, error) {
	c.bytes += int64(n * t.Bytes())
	return c.Device.Alloc(t, n)
}

// What Bytes says is what New allocates, and Vector what NewVector does.
func TestBytesAreThoseThatNewAllocates(t *testing.T) {
	models := map[string]*model.Model{"gpt2": tiny(t, true)}
	for family, config := range map[string]map[string]any{
		"bert": {"num_hidden_layers": 2, "hidden_size": 8, "num_attention_heads": 2, "intermediate_size": 16, "vocab_size": 12, "max_position_embeddings": 8},
		"mlp":  {},
	} {
		m, err := model.Build(family, config)
		if err != nil {
			t.Fatal(err)
		}
		models[family] = m
	}
	for name, only := range map[string]string{"biases of gpt2": "h.1.*.bias", "the head of gpt2": "ln_f.weight"} {
		m, err := tiny(t, false).Train(model.Training{Only: []string{only}})
		if err != nil {
			t.Fatal(err)
		}
		models[name] = m
	}
	for name, m := range models {
		n := len(m.Layers)
		for _, run := range []stage.Range{{From: 0, To: n}, {From: 0, To: 1}, {From: 1, To: n}, {From: n - 1, To: n}} {
			for _, recompute := range stage.Recomputes() {
				for _, slots := range [][3]int{{1, 0, 0}, {3, 0, 1}, {3, 2, 3}} {
					c := stage.Config{
						Model: m, Range: run, Samples: 2, Slots: slots[0], WeightSlots: slots[1], Versions: slots[2],
						Recompute: stage.Recompute(recompute),
						Optimizer: stage.Optimizer{Name: "adamw"},
					}
					holdBytes(t, name, c)
					c.Predicts = c.Versions < 2
					c.Compute, c.Boundary = device.BF16, device.BF16
					holdBytes(t, name+" in bf16", c)
					if run.From > 0 {
						c.HandedInputs = slots[0]
					}
					if run.To < n {
						c.HandedOutputs = slots[0] + slots[1]
					}
					holdBytesOn(t, name+" with boundaries in device memory", &counted{Device: stagetest.NewLate()}, c)
					c.LandedInputs, c.LandedGradients = min(c.HandedInputs, 2), min(c.HandedOutputs, 3)
					holdBytesOn(t, name+" with copies of another device's", &counted{Device: stagetest.NewLate()}, c)
				}
			}
		}
		holdBytes(t, name+" forward-only", stage.Config{Model: m, Samples: 2, ForwardOnly: true})
	}
}

func holdBytes(t *testing.T, name string, c stage.Config) {
	t.Helper()
	holdBytesOn(t, name, &counted{Device: ref.New()}, c)
}

func holdBytesOn(t *testing.T, name string, dev *counted, c stage.Config) {
	t.Helper()
	defer dev.Close()
	c.Device = dev
	b, err := c.Bytes()
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	s, err := stage.New(c)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	made := dev.bytes
	if made != b.Total()+b.Frozen {
		t.Errorf("%s, layers %v, %s, %d and %d slots: New takes %d bytes, Bytes says %d: %+v",
			name, c.Range, c.Recompute, c.Slots, c.WeightSlots, made, b.Total()+b.Frozen, b)
	}
	if _, err := s.NewVector(); err != nil {
		t.Fatal(err)
	}
	if vector := dev.bytes - made; vector != b.Vector {
		t.Errorf("%s, layers %v: a vector takes %d bytes, Bytes says %d", name, c.Range, vector, b.Vector)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}
