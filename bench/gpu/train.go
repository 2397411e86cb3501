package main

import (
	"errors"
	"math/rand/v2"
	"time"

	"github.com/avgpipe/avgpipe/stage"
	"github.com/avgpipe/avgpipe/stage/device"
	"github.com/avgpipe/avgpipe/stage/layer"
	"github.com/avgpipe/avgpipe/stage/model"
)

// training is what one stage trains.
type training struct {
	model           *model.Model
	samples, micros int // of a micro-batch, of a batch
	sequence        int // 0: the model's
	compute         device.Type
	rate            float32
}

// trainer is a model on a device, whole, with buffers for the micro-batches of a batch.
type trainer struct {
	*stage.Computed
	training
	inputs, labels [][]byte
}

// config is the stage that trains it.
func (j training) config(dev device.Device) stage.Config {
	return stage.Config{Device: dev, Model: j.model, Samples: j.samples, Sequence: j.sequence, Slots: 1, Seed: 5, Compute: j.compute}
}

// flops are the operations of a batch's products, forward and backward, as the program counts them.
func (j training) flops(dev device.Device) (float64, error) {
	s, err := j.config(dev).Shape()
	return float64(j.micros) * (s.ForwardFLOPs + s.BackwardFLOPs), err
}

func newTrainer(dev device.Device, j training) (*trainer, error) {
	s, err := stage.New(j.config(dev))
	if err != nil {
		return nil, err
	}
	t := &trainer{Computed: s, training: j}
	for range j.micros {
		t.inputs = append(t.inputs, stage.NewBoundary(s.Shape().InputBytes))
		t.labels = append(t.labels, stage.NewBoundary(s.Shape().LabelBytes))
	}
	return t, nil
}

// filler fills the buffers of a micro-batch, of which either may be nil.
type filler func(j training, step uint64, micro int, input, labels []byte)

// gradient computes the gradients of a batch, and its loss.
func (t *trainer) gradient(step uint64, fill filler) (float64, error) {
	t.ZeroGradients()
	for i := range t.micros {
		fill(t.training, step, i, t.inputs[i], t.labels[i])
		m := stage.Micro{Step: step, Index: i, Weight: 1 / float32(t.micros), Last: i == t.micros-1}
		if err := t.Forward(m, stage.OnHost(t.inputs[i]), t.labels[i], stage.Boundary{}); err != nil {
			return 0, err
		}
		if err := t.Backward(m, stage.Whole, stage.Boundary{}, stage.Boundary{}); err != nil {
			return 0, err
		}
	}
	return t.Loss()
}

// step is a step of training: gradients, their norm, clipping and AdamW.
func (t *trainer) step(step uint64, fill filler) (float64, error) {
	loss, err := t.gradient(step, fill)
	if err != nil {
		return 0, err
	}
	squared, err := t.SquaredNorm(0)
	if err != nil {
		return 0, err
	}
	return loss, t.Step(stage.Hyper{Step: step, LearningRate: t.rate, GradScale: stage.ClipFactor(squared, 1)}, nil)
}

// train trains so many steps. It returns the loss of each, and how long it took.
func train(dev device.Device, j training, steps int, fill filler) (losses, seconds []float64, err error) {
	t, err := newTrainer(dev, j)
	if err != nil {
		return nil, nil, err
	}
	defer func() { err = errors.Join(err, t.Close()) }()
	for i := range uint64(steps) {
		begun := time.Now()
		loss, err := t.step(i, fill)
		if err == nil {
			err = dev.Synchronize()
		}
		if err != nil {
			return nil, nil, err
		}
		losses, seconds = append(losses, loss), append(seconds, time.Since(begun).Seconds())
	}
	return losses, seconds, nil
}

// scattered fills the ports of any model with random values that they take, and random targets.
func scattered(j training, step uint64, micro int, input, labels []byte) {
	size := layer.Size{B: j.samples, T: j.sequence}
	if size.T == 0 {
		size.T = j.model.Sequence()
	}
	random := rand.New(rand.NewPCG(step, uint64(micro)))
	ports, _ := layer.Ports(j.model.Layers[0], size)
	at := 0
	for _, p := range ports {
		if input == nil {
			break
		}
		to := input[at : at+4*p.Elements]
		for i := range p.Elements {
			switch {
			case p.Type == device.F32:
				device.Values[float32](to)[i] = float32(random.NormFloat64())
			case p.Limit > 0:
				device.Values[int32](to)[i] = random.Int32N(int32(p.Limit))
			default: // a mask
				device.Values[int32](to)[i] = 1
			}
		}
		at += 4 * layer.Padded(p.Elements)
	}
	random = rand.New(rand.NewPCG(step, uint64(micro)+1<<32))
	targets := device.Values[int32](labels)
	for i := range targets {
		targets[i] = random.Int32N(int32(j.model.Loss.Classes))
	}
}

// sequence fills a language model's ports with what can be learned: an id follows from the one before, but for one in ten.
func sequence(j training, step uint64, micro int, input, labels []byte) {
	random := rand.New(rand.NewPCG(step, uint64(micro)))
	classes, positions := int32(j.model.Loss.Classes), j.model.Sequence()
	id := int32(0)
	for i := range j.samples * positions {
		if i%positions == 0 || random.IntN(10) == 0 {
			id = random.Int32N(classes)
		}
		next := (5*id + 3) % classes
		if input != nil {
			device.Values[int32](input)[i] = id
		}
		if labels != nil {
			device.Values[int32](labels)[i] = next
		}
		id = next
	}
}
