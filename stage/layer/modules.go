package layer

import (
	"slices"
	"strconv"

	"github.com/avgpipe/avgpipe/stage/device"
)

// Modules are consecutive modules of a user's framework, each of which takes what the one before gives. Another process computes them (package
// foreign): they are one operation forward and one backward, however many they are.
type Modules struct {
	first           int      // the number of the first
	names           []string // of each
	params          []Param
	in, out         []ModulePort
	forward, around float64 // floating-point operations that a forward takes of each sample, and a backward
	kept            int     // bytes that the other process keeps of each sample from the forward to the backward
	loss            *Loss   // the user's, which follows the last module; nil: what that gives leaves the layer
}

// ModulePort is a tensor that a module takes or gives: Shape is that of one sample, without the dimension of the samples.
type ModulePort struct {
	Name           string // see Port; "": it is numbered
	Shape          []int
	Type           device.Type // F32 or I32
	Differentiable bool
	Limit          int // see Port
}

// Module is one module.
type Module struct {
	Name    string
	Params  []Param // the parameters, and then the running statistics, whose Running is 1
	In, Out []ModulePort
	// Forward and Backward are what a sample takes, in floating-point operations.
	Forward, Backward float64
	// Kept is the bytes of a sample that the other process keeps from the forward to the backward.
	Kept int
}

// NewModules makes a layer of each module, in their order.
func NewModules(all []Module) []Layer {
	layers := make([]Layer, len(all))
	for i, m := range all {
		layers[i] = &Modules{first: i, names: []string{m.Name}, params: m.Params, in: m.In, out: m.Out, forward: m.Forward, around: m.Backward, kept: m.Kept}
	}
	return layers
}

// with is the layer whose output is the user's loss: one number, of which its backward is the gradient.
func (l *Modules) with(loss *Loss) *Modules {
	m := *l
	m.loss = loss
	return &m
}

// joined is layers with those modules as one that follow each other, which saves what each operation takes of the other process.
func joined(layers []Layer) (out []Layer) {
	for _, l := range layers {
		m, ok := l.(*Modules)
		if n := len(out); ok && n > 0 {
			if before, ok := out[n-1].(*Modules); ok {
				out[n-1] = &Modules{
					before.first, slices.Concat(before.names, m.names), slices.Concat(before.params, m.params),
					before.in, m.out, before.forward + m.forward, before.around + m.around, before.kept + m.kept, m.loss,
				}
				continue
			}
		}
		out = append(out, l)
	}
	return out
}

// Describe implements Layer.
func (l *Modules) Describe(s Size) Description {
	return Description{Name: l.names[0], Params: l.params, In: portsOf(l.in, s, "x"), Out: portsOf(l.out, s, "y")}
}

func portsOf(all []ModulePort, s Size, name string) (out []Port) {
	for i, p := range all {
		n := s.B
		for _, d := range p.Shape {
			n *= d
		}
		called := p.Name
		if called == "" {
			called = name + strconv.Itoa(i)
		}
		out = append(out, Port{Name: called, Type: p.Type, Elements: n, Constant: !p.Differentiable, Limit: p.Limit})
	}
	return out
}

// Emit implements Layer. A gradient of each input and parameter comes out of one operation, so the input half of a backward is all of it.
func (l *Modules) Emit(b *Builder, t Tensors, in []device.Mem) (out []device.Mem, backward Backward) {
	of := device.Modules{First: l.first, Inputs: tensorsOf(l.in, b.Size), Outputs: tensorsOf(l.out, b.Size), Work: l.forward * float64(b.B)}
	for _, name := range l.names {
		of.Streams = append(of.Streams, device.StreamOf(name))
	}
	forward := &device.ModulesForward{
		Out: make([]device.Mem, len(l.out)), Sums: make([]device.Mem, len(l.params)), In: in, Params: t.Params, Grads: make([]device.Mem, len(l.params)), Training: !b.Evaluating,
	}
	if l.loss == nil {
		for i, p := range of.Outputs {
			forward.Out[i] = b.New(p.Type, p.Len())
		}
		out = forward.Out
	} else {
		of.Loss, of.Targets = true, l.loss.targetTensors(b.Size)
		forward.UserLoss = b.New(device.F32, 1)
		forward.Targets = []device.Mem{b.External(Targets, device.I32, l.loss.Targets(b.Size))}
		out = []device.Mem{forward.UserLoss}
	}
	forward.Modules = of
	if b.Evaluating {
		b.Do(forward)
		return out, nil
	}
	for i, p := range l.params {
		switch {
		case p.Running > 0:
			forward.Sums[i] = t.Grads[i]
			forward.Counts = !b.Recomputing
		case !p.Frozen:
			forward.Grads[i] = t.Grads[i]
		}
	}
	if b.Repeated {
		b.Do(forward)
		return out, nil
	}
	kept := l.keeps(&of) // as long as what it stands for, which so has its price
	if b.Apart {
		kept = 0
	}
	forward.Keep = b.New(device.I32, max(1, kept/device.I32.Bytes()))
	b.Do(forward)
	of.Work = l.around * float64(b.B)
	return out, func(dout []device.Mem) []device.Mem {
		if of.Loss {
			dout = make([]device.Mem, len(of.Outputs))
		}
		din := make([]device.Mem, len(in))
		for i, p := range of.Inputs {
			if p.Differentiable {
				din[i] = b.New(p.Type, p.Len())
			}
		}
		b.Do(&device.ModulesBackward{DIn: din, Grads: forward.Grads, Keep: forward.Keep, DOut: dout, Params: t.Params, Modules: of})
		return din
	}
}

// keeps is the bytes that the other process keeps of a micro-batch. A loss keeps about as much as the outputs that it is of.
func (l *Modules) keeps(of *device.Modules) int {
	bytes := l.kept * of.Inputs[0].Shape[0]
	if of.Loss {
		for _, p := range of.Outputs {
			bytes += p.Len() * p.Type.Bytes()
		}
	}
	return bytes
}

func tensorsOf(all []ModulePort, s Size) (out []device.ModuleTensor) {
	for _, p := range all {
		out = append(out, device.ModuleTensor{Shape: append([]int{s.B}, p.Shape...), Type: p.Type, Differentiable: p.Differentiable})
	}
	return out
}
