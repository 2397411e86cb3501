package stagetest

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/avgpipe/avgpipe/stage"
	"github.com/avgpipe/avgpipe/stage/device"
	"github.com/avgpipe/avgpipe/stage/layer"
	"github.com/avgpipe/avgpipe/stage/model"
)

// PipelineConfig describes a Pipeline.
type PipelineConfig struct {
	Device    device.Device
	Model     *model.Model
	Stages    int
	Samples   int // in a micro-batch
	Sequence  int // 0: the model's
	Micros    int // micro-batches in a batch
	Optimizer stage.Optimizer
	Seed      uint64
	// Halves runs backward passes in halves: Input of all micro-batches, then Weight of all.
	Halves    bool
	Recompute stage.Recompute
	Compute   device.Type // of the operands of products
	Boundary  device.Type // of what crosses between stages
	// OnMessage, unless nil, is given what crosses from a stage to the one after it, or the gradient that comes back, and may change it.
	OnMessage func(lower int, message []byte)
}

// Pipeline drives the stages of one pipeline on one goroutine in plain order: all forwards, then all backwards in the
// order of the micro-batches. It is the oracle for the executors, which run the same work in other orders.
type Pipeline struct {
	PipelineConfig
	Stages   []*stage.Computed
	Ranges   []stage.Range // of their layers
	boundary [][][]byte    // [stage][micro-batch]: the stage's output
	gradient [][]byte      // [stage]: of the stage's output
	step     uint64
}

// Close frees the stages.
func (p *Pipeline) Close() error {
	for _, s := range p.Stages {
		if err := s.Close(); err != nil {
			return err
		}
	}
	return nil
}

// NewPipeline makes the stages, split by the model's own costs. They are closed with the test.
func NewPipeline(t testing.TB, c PipelineConfig) *Pipeline {
	t.Helper()
	if c.Sequence == 0 {
		c.Sequence = c.Model.Sequence()
	}
	ranges, err := stage.Split(c.Model.Costs(layer.Size{B: c.Samples, T: c.Sequence}), c.Stages)
	if err != nil {
		t.Fatal(err)
	}
	p := &Pipeline{PipelineConfig: c, Ranges: ranges}
	weightSlots := 0
	if c.Halves {
		weightSlots = c.Micros
	}
	for k, r := range ranges {
		s, err := stage.New(stage.Config{
			Device: c.Device, Model: c.Model, Range: r, Index: k, Count: c.Stages, Samples: c.Samples, Sequence: c.Sequence,
			Slots: c.Micros, WeightSlots: weightSlots, Recompute: c.Recompute, Optimizer: c.Optimizer, Seed: c.Seed, Compute: c.Compute, Boundary: c.Boundary,
		})
		if err != nil {
			t.Fatal(err)
		}
		p.Stages = append(p.Stages, s)
		outputs := make([][]byte, c.Micros)
		for m := range outputs {
			outputs[m] = stage.NewBoundary(s.Shape().OutputBytes)
		}
		p.boundary = append(p.boundary, outputs)
		p.gradient = append(p.gradient, stage.NewBoundary(s.Shape().OutputBytes))
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	return p
}

// Batch is one batch: for each input port of the model's first layer what it is given, by sample, and the targets. Fields
// that no port asks for are nil.
type Batch struct {
	IDs, Types, Mask, Decoder []int32   // ports ids, token_types, mask, decoder_ids
	Pixels                    []float32 // port pixels
	Targets                   []int32
}

// port is the batch's values for an input port, as int32 or float32 bytes.
func (b Batch) port(name string) []byte {
	switch name {
	case "ids", "sample":
		return device.IntBytes(b.IDs)
	case "token_types":
		return device.IntBytes(b.Types)
	case "mask":
		return device.IntBytes(b.Mask)
	case "decoder_ids":
		return device.IntBytes(b.Decoder)
	case "pixels":
		return device.FloatBytes(b.Pixels)
	}
	panic("stagetest: a batch has no values for port " + name)
}

// Input copies the input of micro-batch m, for a model that begins with layer l, to a boundary buffer.
func (b Batch) Input(l layer.Layer, size layer.Size, m int) []byte {
	ports, _ := layer.Ports(l, size)
	buffer := stage.NewBoundary(4 * layer.Words(ports))
	at := 0
	for _, p := range ports {
		n := 4 * p.Elements
		copy(buffer[at:at+n], b.port(p.Name)[m*n:(m+1)*n])
		at += 4 * layer.Padded(p.Elements)
	}
	return buffer
}

// input is the input of micro-batch m.
func (p *Pipeline) input(b Batch, m int) []byte { return b.Input(p.Model.Layers[0], p.size(), m) }

func (p *Pipeline) size() layer.Size { return layer.Size{B: p.Samples, T: p.Sequence} }

// labels cuts the targets of micro-batch m.
func (p *Pipeline) labels(b Batch, m int) []byte {
	n := p.Model.Loss.Targets(p.size())
	return Int32Bytes(b.Targets[m*n : (m+1)*n])
}

// Run computes the gradients of a batch and returns its mean loss over the valid targets and their global norm squared.
func (p *Pipeline) Run(b Batch) (loss, squaredNorm float64, err error) {
	for _, s := range p.Stages {
		s.ZeroGradients()
	}
	micros := p.micros(b)
	for _, m := range micros {
		if err := p.forward(m, b); err != nil {
			return 0, 0, err
		}
	}
	parts := []stage.Part{stage.Whole}
	if p.Halves {
		parts = []stage.Part{stage.Input, stage.Weight}
	}
	for _, part := range parts {
		for _, m := range micros {
			if err := p.backward(m, part); err != nil {
				return 0, 0, err
			}
		}
	}
	if err := p.addTies(); err != nil {
		return 0, 0, err
	}
	for _, s := range p.Stages {
		if squaredNorm, err = s.SquaredNorm(squaredNorm); err != nil {
			return 0, 0, err
		}
	}
	loss, err = p.Stages[len(p.Stages)-1].Loss()
	return loss, squaredNorm, err
}

// micros weighs each micro-batch by its share of the batch's valid targets.
func (p *Pipeline) micros(b Batch) []stage.Micro {
	n := p.Model.Loss.Targets(p.size())
	valid := make([]int, p.Micros)
	total := 0
	for i, target := range b.Targets {
		if target >= 0 {
			valid[i/n]++
			total++
		}
	}
	out := make([]stage.Micro, p.Micros)
	for m := range out {
		out[m] = stage.Micro{Step: p.step, Index: m, Weight: float32(float64(valid[m]) / float64(total))}
	}
	return out
}

func (p *Pipeline) forward(m stage.Micro, b Batch) error {
	input := p.input(b, m.Index)
	for k, s := range p.Stages {
		var labels []byte
		if k == len(p.Stages)-1 {
			labels = p.labels(b, m.Index)
		}
		if err := errors.Join(s.Forward(m, stage.OnHost(input), labels, stage.OnHost(p.boundary[k][m.Index])), device.Wait(s.Ready())); err != nil {
			return err
		}
		if input = p.boundary[k][m.Index]; k < len(p.Stages)-1 {
			p.message(k, input)
		}
	}
	return nil
}

func (p *Pipeline) message(lower int, b []byte) {
	if p.OnMessage != nil {
		p.OnMessage(lower, b)
	}
}

func (p *Pipeline) backward(m stage.Micro, part stage.Part) error {
	for k, s := range slices.Backward(p.Stages) {
		var doutput, dinput []byte
		if k < len(p.Stages)-1 {
			doutput = p.gradient[k]
		}
		if k > 0 {
			dinput = p.gradient[k-1]
		}
		if err := errors.Join(s.Backward(m, part, stage.OnHost(doutput), stage.OnHost(dinput)), device.Wait(s.Ready())); err != nil {
			return err
		}
		if k > 0 && part != stage.Weight {
			p.message(k-1, dinput)
		}
	}
	return nil
}

// addTies adds the gradients of tied parameters on the first and the last stage, as two workers that send them to each
// other do.
func (p *Pipeline) addTies() error {
	first, last := p.Stages[0].Ties(), p.Stages[len(p.Stages)-1].Ties()
	if len(first) != len(last) {
		return fmt.Errorf("the first stage has %d ties, the last %d", len(first), len(last))
	}
	for i := range first {
		n := first[i].Gradient.Len()
		a, b := make([]float32, n), make([]float32, n)
		first[i].Gradient.Read(a, 0)
		last[i].Gradient.Read(b, 0)
		for j := range a {
			a[j] += b[j]
		}
		first[i].Gradient.Write(a, 0)
		last[i].Gradient.Write(a, 0)
	}
	return nil
}

// Update applies the optimizer with a learning rate, the gradients clipped to a global norm (0: not).
func (p *Pipeline) Update(learningRate float32, squaredNorm, clip float64) error {
	h := stage.Hyper{Step: p.step, LearningRate: learningRate, GradScale: stage.ClipFactor(squaredNorm, clip)}
	for _, s := range p.Stages {
		if err := s.Step(h, nil); err != nil {
			return err
		}
	}
	p.step++
	return nil
}

// Values reads one vector of each stage, tensor by tensor, under the tensors' names.
func (p *Pipeline) Values(of func(s *stage.Computed) interface{ Read([]float32, int) }) map[string][]float32 {
	out := map[string][]float32{}
	for _, s := range p.Stages {
		v := of(s)
		for _, tensor := range s.Tensors() {
			values := make([]float32, tensor.Len())
			v.Read(values, tensor.Offset)
			out[tensor.Name] = values
		}
	}
	return out
}

// Parameters reads the parameters of all stages.
func (p *Pipeline) Parameters() map[string][]float32 {
	return p.Values(func(s *stage.Computed) interface{ Read([]float32, int) } { return s.Parameters() })
}

// Gradients reads the gradients of all stages.
func (p *Pipeline) Gradients() map[string][]float32 {
	return p.Values(func(s *stage.Computed) interface{ Read([]float32, int) } { return s.Gradients() })
}

// Int32Bytes copies token ids or targets to a boundary buffer.
func Int32Bytes(x []int32) []byte {
	b := stage.NewBoundary(4 * len(x))
	copy(b, device.IntBytes(x))
	return b
}
