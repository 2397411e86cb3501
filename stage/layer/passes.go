package layer

import (
	"slices"

	"github.com/avgpipe/avgpipe/stage/device"
	"github.com/avgpipe/avgpipe/stage/program"
)

// The tensors that a run of layers is bound to, by index. The parameters follow from Parameters on, in the order of the layers, and behind them
// their gradients.
const (
	Input   = iota // the input ports
	Output         // the output ports
	DInput         // the gradient of the input ports
	DOutput        // that of the output ports; without a Loss
	Targets        // with a Loss: I32
	Losses         // with a Loss: of each target
	LossSum        // with a Loss: of Losses; a training forward adds to it
	Parameters
)

// Run is consecutive layers of a model, as a stage has them.
type Run struct {
	Layers []Layer
	Size   Size
	// Loss follows the last layer; nil: the output leaves the run.
	Loss *Loss
	// RepeatLayers runs the forward of each layer again just before its backward, RepeatAll that of all layers before the first backward,
	// instead of keeping what they make.
	RepeatLayers, RepeatAll bool
}

// Alone is the training of one layer as a stage of its own, for those who price layers.
func Alone(l Layer, s Size) program.Passes { return Run{Layers: []Layer{l}, Size: s}.Training() }

// emission is a run being written.
type emission struct {
	Run
	Builder
	tensors []Tensors // by layer
}

func (r Run) begin(evaluating, exact bool) *emission {
	e := &emission{Run: r, Builder: Builder{
		Builder: program.NewBuilder(), Size: r.Size, Evaluating: evaluating, narrowed: map[device.Mem]device.Mem{},
	}}
	var params []Param
	for _, l := range r.Layers {
		params = append(params, l.Params()...)
	}
	all := Tensors{Grads: make([]device.Mem, len(params))}
	for i, p := range params {
		t := device.F32
		if p.Product && !exact {
			t = r.Size.Compute
		}
		all.Params = append(all.Params, e.External(Parameters+i, t, p.Len()))
		if !evaluating {
			all.Grads[i] = e.Gradient(Parameters+len(params)+i, p.Len(), p.Product)
		}
	}
	for _, l := range r.Layers {
		e.tensors = append(e.tensors, all.take(l))
	}
	return e
}

// ports cuts a boundary's memory.
func ports(m device.Mem, of []Port) []device.Mem {
	out := make([]device.Mem, len(of))
	for i := range of {
		out[i] = Cut(m, of, i)
	}
	return out
}

// boundary is a bound tensor that holds ports: of the port's own type when there is one, else in words.
func boundary(bind func(index int, t device.Type, n int) device.Mem, index int, of []Port) []device.Mem {
	if len(of) == 1 {
		return ports(bind(index, of[0].Type, of[0].Elements), of)
	}
	return ports(bind(index, device.F32, Words(of)), of)
}

func (r Run) in() []Port {
	in, _ := r.Layers[0].Ports(r.Size)
	return in
}

func (r Run) out() []Port {
	_, out := r.Layers[len(r.Layers)-1].Ports(r.Size)
	return out
}

// Evaluation is the forward that nothing follows: it writes the output, also where a Loss does. exact says that all parameters are given in
// F32, whatever type products compute in.
func (r Run) Evaluation(exact bool) program.Passes {
	e := r.begin(true, exact)
	x := boundary(e.External, Input, r.in())
	for i, l := range r.Layers {
		x, _ = l.Emit(&e.Builder, e.narrow(l, e.tensors[i], exact), x)
	}
	e.leave(x)
	return e.Passes()
}

// narrow rounds the parameters that products read where they compute in BF16.
func (e *emission) narrow(l Layer, t Tensors, exact bool) Tensors {
	if !exact || e.Run.Size.Compute == device.F32 {
		return t
	}
	t.Params = slices.Clone(t.Params)
	for i, p := range l.Params() {
		if p.Product {
			rounded := e.New(device.BF16, p.Len())
			e.Do(&device.Copy{Y: rounded, X: t.Params[i]})
			t.Params[i] = rounded
		}
	}
	return t
}

// leave brings the output ports to the bound output.
func (e *emission) leave(x []device.Mem) {
	for i, y := range boundary(e.Output, Output, e.out()) {
		e.Do(&device.Copy{Y: y, X: x[i]})
	}
}

// Training is the forward and the backward.
func (r Run) Training() program.Passes {
	e := r.begin(false, false)
	x := [][]device.Mem{boundary(e.External, Input, r.in())}
	backs := make([]Backward, len(r.Layers))
	for i, l := range r.Layers {
		var y []device.Mem
		y, backs[i] = l.Emit(&e.Builder, e.tensors[i], x[i])
		x = append(x, y)
	}
	last := len(r.Layers)
	var d []device.Mem
	if r.Loss != nil {
		losses, targets := e.loss()
		again := r.RepeatLayers || r.RepeatAll
		if !again {
			d = []device.Mem{e.Like(x[last][0])}
		} else {
			d = make([]device.Mem, 1)
		}
		r.Loss.emit(&e.Builder, losses, d[0], x[last][0], targets)
		e.Do(&device.Axpy{Y: e.External(LossSum, device.F32, losses.Len()), A: 1, X: losses, By: device.LossScale})
		e.Backward()
		e.backward(x, backs, d, func(logits device.Mem) device.Mem {
			dlogits := e.Like(logits)
			r.Loss.emit(&e.Builder, losses, dlogits, logits, targets)
			return dlogits
		})
		return e.Passes()
	}
	e.leave(x[last])
	e.Backward()
	d = boundary(e.Passing, DOutput, r.out())
	e.backward(x, backs, d, nil)
	return e.Passes()
}

// loss is where the losses go, and the targets.
func (e *emission) loss() (losses, targets device.Mem) {
	n := e.Loss.Targets(e.Run.Size)
	return e.Output(Losses, device.F32, n), e.External(Targets, device.I32, n)
}

// backward writes the backward of all layers. d is the gradient of the output; x are the inputs of the layers, and the output. loss gives
// the gradient of logits that were computed again.
func (e *emission) backward(x [][]device.Mem, backs []Backward, d []device.Mem, loss func(logits device.Mem) device.Mem) {
	e.Recomputing = true
	clear(e.narrowed)
	again := func(i int) {
		x[i+1], backs[i] = e.Layers[i].Emit(&e.Builder, e.tensors[i], x[i])
		if i == len(backs)-1 && loss != nil {
			d = []device.Mem{loss(x[i+1][0])}
		}
	}
	if e.RepeatAll {
		for i := range e.Layers {
			again(i)
		}
	}
	for i, l := range slices.Backward(e.Layers) {
		if e.RepeatLayers {
			again(i)
		}
		_, out := l.Ports(e.Run.Size)
		d = backs[i](e.gradients(d, out))
	}
	in := e.in()
	if !Differentiable(in) {
		return
	}
	for i, y := range boundary(e.Output, DInput, in) {
		switch {
		case !in[i].Differentiable():
		case d[i].Absent():
			e.Do(&device.Zero{X: y})
		default:
			e.Do(&device.Copy{Y: y, X: d[i]})
		}
	}
}

// gradients are those of output ports, with zeros for what nobody gave, and absent where none flows.
func (e *emission) gradients(d []device.Mem, of []Port) []device.Mem {
	out := make([]device.Mem, len(of))
	for i, p := range of {
		if !p.Differentiable() {
			continue
		}
		out[i] = d[i]
		if d[i].Absent() {
			out[i] = e.New(p.Type, p.Elements)
			e.Do(&device.Zero{X: out[i]})
		}
		e.Boundary(out[i])
	}
	return out
}
