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
	// Loss follows the last layer, the head; nil: the output leaves the run. Head and loss run in the backward, so that logits are neither kept
	// nor computed twice.
	Loss *Loss
	// In and Out are the types in which ports in F32, and their gradients, cross the run's boundaries: F32, or BF16.
	In, Out device.Type
	// RepeatLayers runs the forward of each layer again just before its backward, RepeatAll that of all layers before the first backward,
	// instead of keeping what they make.
	RepeatLayers, RepeatAll bool
	// NoDInput leaves the gradient of the input unset: nothing in front of the run is trained.
	NoDInput bool
}

// Alone is the training of layer i of a model as a stage of its own, for those who price layers.
func Alone(layers []Layer, i int, s Size) program.Passes {
	return Run{Layers: layers[i : i+1], Size: s, NoDInput: !slices.ContainsFunc(layers[:i], Trains)}.Training()
}

// emission is a run being written.
type emission struct {
	Run
	Builder
	tensors []Tensors     // by layer
	losses  device.Mem    // with a Loss: of each target, or the user's, of all
	share   device.Factor // of losses in the batch's
}

func (r Run) begin(evaluating bool) *emission {
	e := &emission{Run: r, Builder: Builder{
		Builder: program.NewBuilder(), Size: r.Size, Evaluating: evaluating, narrowed: map[device.Mem]device.Mem{},
	}}
	params := Params(r.Layers...)
	all := Tensors{Grads: make([]device.Mem, len(params))}
	for i, p := range params {
		t := device.F32
		if p.Product {
			t = r.Size.Compute
		}
		all.Params = append(all.Params, e.External(Parameters+i, t, p.Len()))
		switch {
		case evaluating:
		case p.Frozen: // nobody needs what makes it
			all.Grads[i] = e.New(device.F32, p.Len())
		default:
			all.Grads[i] = e.Gradient(Parameters+len(params)+i, p.Len(), p.Fresh)
		}
	}
	for _, l := range r.Layers {
		e.tensors = append(e.tensors, all.take(l))
	}
	return e
}

// modules reports whether the last layer is modules.
func (r Run) modules() bool {
	_, ok := r.Layers[len(r.Layers)-1].(*Modules)
	return ok
}

// joined is the run with modules as one that follow each other. Any other head stays by itself, since it runs in the backward, as does one of modules where layers
// are repeated there.
func (r Run) joined(head bool) Run {
	body := len(r.Layers)
	if r.Loss != nil && !head {
		body--
	}
	r.Layers = append(joined(r.Layers[:body]), r.Layers[body:]...)
	return r
}

// withLoss is the run whose last modules compute the user's loss too.
func (r Run) withLoss() Run {
	last := len(r.Layers) - 1
	if m, ok := r.Layers[last].(*Modules); ok {
		r.Layers = append(slices.Clone(r.Layers[:last]), m.with(r.Loss))
	}
	return r
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

// Ports are those of the run's boundaries.
func (r Run) Ports() (in, out []Port) {
	in, _ = Ports(r.Layers[0], r.Size)
	_, out = Ports(r.Layers[len(r.Layers)-1], r.Size)
	return Crossing(in, r.In), Crossing(out, r.Out)
}

// Evaluation is the forward that nothing follows: it writes the output, also where a Loss does.
func (r Run) Evaluation() program.Passes {
	r = r.joined(r.modules())
	e := r.begin(true)
	e.leave(e.body(r.Layers))
	return e.Passes()
}

// Scoring is an Evaluation that writes the losses instead of the output.
func (r Run) Scoring() program.Passes {
	if r.Loss.Samples {
		r = r.withLoss()
	}
	r = r.joined(r.modules())
	e := r.begin(true)
	e.head(e.body(r.Layers[:len(r.Layers)-1]))
	return e.Passes()
}

// body is the output of the first layers in an evaluation.
func (e *emission) body(layers []Layer) (x []device.Mem) {
	x = e.input()
	for i, l := range layers {
		x, _ = l.Emit(&e.Builder, e.tensors[i], x)
	}
	return x
}

// input is the input ports as the first layer takes them.
func (e *emission) input() []device.Mem {
	in, _ := e.Ports()
	return e.widen(boundary(e.External, Input, in), e.In)
}

// widen gives what crossed a boundary in this type to layers that compute in F32, in each pass anew.
func (e *emission) widen(x []device.Mem, crossed device.Type) []device.Mem {
	for i, m := range x {
		if m.Type() == device.BF16 && crossed == device.BF16 {
			x[i] = e.Again(device.F32, m.Len())
			e.Do(&device.Copy{Y: x[i], X: m})
		}
	}
	return x
}

// leave brings the output ports to the bound output, rounded where they cross the boundary in BF16.
func (e *emission) leave(x []device.Mem) {
	_, out := e.Ports()
	for i, y := range boundary(e.Output, Output, out) {
		e.Do(&device.Copy{Y: y, X: x[i]})
	}
}

// Training is the forward and the backward.
func (r Run) Training() program.Passes {
	repeats := r.RepeatAll || r.RepeatLayers
	early := r.Loss != nil && r.modules() && !repeats // the head runs in the forward, as one with the modules in front
	if r.Loss != nil && r.Loss.User {
		r = r.withLoss()
	}
	if !r.RepeatLayers {
		r = r.joined(early)
	}
	e := r.begin(false)
	x := [][]device.Mem{e.input()}
	body := r.Layers
	if r.Loss != nil && !early {
		body = body[:len(body)-1]
	}
	backs := make([]Backward, len(body))
	e.Repeated = repeats
	emit := func(i int) {
		x[i+1], backs[i] = body[i].Emit(&e.Builder, e.tensors[i], x[i])
	}
	for i := range body {
		x = append(x, nil)
		emit(i)
	}
	if r.Loss == nil {
		e.leave(x[len(body)])
	}
	e.Backward()
	clear(e.narrowed)
	e.Recomputing, e.Repeated = true, false
	if r.RepeatAll {
		for i := range body {
			emit(i)
		}
	}
	d := e.gradient(x[len(body)], early)
	for i, l := range slices.Backward(body) {
		if r.RepeatLayers {
			emit(i)
		}
		_, out := Ports(l, r.Size)
		d = backs[i](e.gradients(d, out))
	}
	e.enter(d)
	if r.Loss != nil {
		e.countLosses()
	}
	return e.Passes()
}

// gradient is that of what the layers gave that the forward runs: of the loss, through a head that the backward runs; or of the output.
func (e *emission) gradient(out []device.Mem, early bool) (d []device.Mem) {
	switch {
	case early:
		return e.loss(out)
	case e.Loss != nil:
		e.Recomputing = false
		d = e.head(out)
		e.Recomputing = true
		return d
	}
	_, ports := e.Ports()
	return e.widen(boundary(e.Passing, DOutput, ports), e.Out)
}

// enter brings the gradient of the input ports to where it is bound.
func (e *emission) enter(d []device.Mem) {
	in, _ := e.Ports()
	if e.NoDInput || !Differentiable(in) {
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

// gradients are those of output ports, with zeros for what nobody gave, and absent where none flows; nil where a layer has its own loss.
func (e *emission) gradients(d []device.Mem, of []Port) []device.Mem {
	if d == nil {
		return nil
	}
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
