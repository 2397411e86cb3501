package stagetest

import (
	"errors"
	"fmt"

	"github.com/avgpipe/avgpipe/stage/device"
	"github.com/avgpipe/avgpipe/stage/layer"
	"github.com/avgpipe/avgpipe/stage/program"
)

// Runner runs the passes of one layer, with all the memory that they need.
type Runner struct {
	Device            device.Device
	Layer             layer.Layer
	Args              device.Args
	In, Out           []device.Mem // by port
	DIn, DOut         []device.Mem // by port; DIn is nil where no gradient flows to the input
	Params, Grads     []device.Mem
	training, forward program.Passes
	memory            program.Memory
	owned             []device.Mem
}

// NewRunner allocates the memory. The passes have a key, so that what is random is drawn as in training.
func NewRunner(dev device.Device, l layer.Layer, size layer.Size) (r *Runner, err error) {
	run := layer.Run{Layers: []layer.Layer{l}, Size: size}
	r = &Runner{
		Device: dev, Layer: l, Args: device.Args{Key: 7, Weight: 1}, training: run.Training(), forward: run.Evaluation(),
		memory: program.Memory{External: make([]device.Mem, layer.Parameters)},
	}
	in, out := layer.Ports(l, size)
	r.In, r.Out, r.DOut = r.ports(&err, layer.Input, in), r.ports(&err, layer.Output, out), r.ports(&err, layer.DOutput, out)
	if layer.Differentiable(in) {
		r.DIn = r.ports(&err, layer.DInput, in)
	}
	for _, p := range layer.Params(l) {
		m := r.alloc(&err, p.Len())
		if p.Product && !m.Absent() {
			m = m.As(size.Compute, p.Len())
		}
		r.Params, r.Grads = append(r.Params, m), append(r.Grads, r.alloc(&err, p.Len()))
	}
	r.memory.External = append(append(r.memory.External, r.Params...), r.Grads...)
	r.memory.Saved, r.memory.Kept = r.alloc(&err, r.training.Saved/4), r.alloc(&err, r.training.Kept/4)
	r.memory.Arena = r.alloc(&err, max(r.training.Arena, r.forward.Arena)/4)
	if err != nil {
		r.Close()
		return nil, err
	}
	return r, nil
}

func (r *Runner) alloc(err *error, n int) device.Mem {
	m, failed := r.Device.Alloc(device.F32, n)
	if failed != nil {
		*err = errors.Join(*err, fmt.Errorf("memory of %s: %w", layer.Name(r.Layer), failed))
		return device.Mem{}
	}
	r.owned = append(r.owned, m)
	return m
}

// ports is the memory of a boundary.
func (r *Runner) ports(err *error, index int, of []layer.Port) []device.Mem {
	m := r.alloc(err, layer.Words(of))
	if m.Absent() {
		return nil
	}
	m = layer.View(m, of)
	r.memory.External[index] = m
	out := make([]device.Mem, len(of))
	for i := range of {
		out[i] = layer.Cut(m, of, i)
	}
	return out
}

// Close frees the memory.
func (r *Runner) Close() {
	for _, m := range r.owned {
		r.Device.Free(m)
	}
}

// Forward runs the forward of training.
func (r *Runner) Forward() { r.training.Forward.Run(r.Device, &r.memory, r.Args) }

// Evaluate runs the forward of an evaluation.
func (r *Runner) Evaluate() { r.forward.Forward.Run(r.Device, &r.memory, r.Args) }

// Backward runs the whole backward.
func (r *Runner) Backward() { r.training.Whole.Run(r.Device, &r.memory, r.Args) }

// BackwardInput runs the input half.
func (r *Runner) BackwardInput() { r.training.Input.Run(r.Device, &r.memory, r.Args) }

// BackwardWeight runs the weight half.
func (r *Runner) BackwardWeight() { r.training.Weight.Run(r.Device, &r.memory, r.Args) }

// Shared is the memory that passes of other micro-batches overwrite between two of one.
func (r *Runner) Shared() device.Mem { return r.memory.Arena }
