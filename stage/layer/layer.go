// Package layer holds every layer: what it computes forward, and beside it what it computes backward.
//
// A Layer is an immutable description: it owns no memory and is shared by the pipelines of a process. It writes its operations to a Builder,
// on tensors without addresses; package program finds out from all layers' operations what is kept, where everything lies, and
// which operations the input half of a backward needs (zero-bubble plans run the halves apart: Qi et al. 2024, section 2). Larger layers are
// composed of smaller ones by Chain and Residual: a GPT-2 block is a chain of two residual branches.
//
// Shapes in comments: B samples, T positions, R = B*T rows, D width, H heads, F inner width, V vocabulary.
package layer

import (
	"slices"
	"strings"

	"github.com/avgpipe/avgpipe/stage/device"
)

// Align is the multiple of elements, 64 bytes, at which every tensor begins that shares memory with others.
const Align = 16

// Memory is counted in words of 32 bits, whatever lies in it.
const wordBytes = 4

// Padded is n rounded up to a multiple of Align.
func Padded(n int) int { return (n + Align - 1) / Align * Align }

// Size is the shape of one micro-batch.
type Size struct {
	B int // samples
	T int // positions of each; 1 where samples have none, as images
	// Compute is the type in which products take their operands: F32, or BF16 with sums in F32. Layers hold in it what only
	// products, convolutions and recurrent products among them, read or write; residual streams, norms, losses and reductions are
	// F32 whatever it is.
	Compute device.Type
	// Apart says that the interpreter of a user's modules keeps in memory of its own, which has a price of its own, what their backwards need.
	Apart bool
}

// Rows is R = B*T.
func (s Size) Rows() int { return s.B * s.T }

// Again reports whether a parameter that is tied to another has its name too, with more behind it: it is the same one in another module, and has no
// place in files.
func Again(name, tiedTo string) bool { return tiedTo != "" && strings.HasPrefix(name, tiedTo+"@") }

// Param describes one trainable tensor of a layer.
type Param struct {
	Name  string // the Hugging Face name, unique in a model: "transformer.h.0.attn.c_attn.weight"
	Shape []int
	Init  Init
	// Decay says whether weight decay applies: to matrices (2 dimensions and more) only, not to biases and norms, the
	// practice of GPT-2 and GPT-3 (Brown et al. 2020, appendix B).
	Decay bool
	// TiedTo names the parameter of an earlier layer that this one is a copy of ("" if none): same shape, same initial
	// value, and a gradient that is the sum over both.
	TiedTo string
	// Product says that only products read the parameter: where they compute in BF16 (Size.Compute), Tensors.Params holds a copy
	// of it in BF16.
	Product bool
	// Fresh says that one product makes the whole gradient, so that nobody needs to zero it (device.Args.Fresh).
	Fresh bool
	// Running, when above 0, makes this a statistic instead of a trainable tensor (batch norm's running mean): the forward
	// adds device.Args.Weight times the micro-batch's value to the place of the gradient, and the optimizer step sets
	// p = p + Running (sum - p); of 1, the forward sets the place of the gradient, and the step sets p to it. It has no part in norms, decay or optimizer state; the center averages it like a weight.
	Running float32
	// Frozen says that the parameter stays as it is: it has no gradient and no part in the flat vectors of its stage. See Freeze.
	Frozen bool
	// Adapter says that the parameter belongs to an Adapter, so that files of the model do not have it.
	Adapter bool
}

// Len is the number of elements.
func (p Param) Len() int {
	n := 1
	for _, d := range p.Shape {
		n *= d
	}
	return n
}

// Init says how a parameter starts: normally distributed with this mean and standard deviation (0: constant).
type Init struct {
	Mean, Deviation float64
}

// Port is one tensor that crosses the boundary between two layers, for one micro-batch. Layers of a plain chain have
// one port in and one out; skip edges and encoder outputs travel as further ports.
type Port struct {
	// Name says what the tensor is. The input ports of a model's first layer name what a data set must give: see package
	// model.
	Name     string
	Type     device.Type
	Elements int
	// Constant says that no gradient flows to the tensor: it is data, or made of data alone. I32 ports are constant always.
	Constant bool
	// Limit bounds the values of an I32 port of the model's input: 0..Limit-1. 0: any.
	Limit int
}

// Differentiable reports whether a gradient flows to the port.
func (p Port) Differentiable() bool { return !p.Constant && p.Type != device.I32 }

// Differentiable reports whether a gradient flows to any of ports.
func Differentiable(ports []Port) bool { return slices.ContainsFunc(ports, Port.Differentiable) }

// Crossing is ports as they cross the boundary between two stages: those in F32 are in t there.
func Crossing(ports []Port, t device.Type) []Port {
	ports = slices.Clone(ports)
	for i := range ports {
		if ports[i].Type == device.F32 {
			ports[i].Type = t
		}
	}
	return ports
}

// Words is the length, in words of 32 bits, of the memory that holds all ports one after the other, each padded to Align
// when there are several.
func Words(ports []Port) int {
	if len(ports) == 1 {
		return WordsOf(ports[0].Type, ports[0].Elements)
	}
	n := 0
	for _, p := range ports {
		n += Padded(WordsOf(p.Type, p.Elements))
	}
	return n
}

// WordsOf is the words that n elements of type t take.
func WordsOf(t device.Type, n int) int { return (n*t.Bytes() + wordBytes - 1) / wordBytes }

// View is memory of Words(ports) words as a Pass holds it: of the port's own type when there is one port; else in words,
// to be taken apart by Cut.
func View(words device.Mem, ports []Port) device.Mem {
	if len(ports) == 1 {
		return words.As(ports[0].Type, words.Bytes()/ports[0].Type.Bytes())
	}
	return words
}

// Cut is port i of m, the In, Out, DIn or DOut of a layer with these ports; absent when m is.
func Cut(m device.Mem, ports []Port, i int) device.Mem {
	if m.Absent() || len(ports) == 1 {
		return m
	}
	at := 0
	for _, p := range ports[:i] {
		at += Padded(WordsOf(p.Type, p.Elements))
	}
	p := ports[i]
	return m.Slice(at, WordsOf(p.Type, p.Elements)).As(p.Type, p.Elements)
}

// Tensors are the parameters of a layer and their gradients, in the order of Params.
type Tensors struct{ Params, Grads []device.Mem }

// take is the tensors of the next layer within another, which it leaves out of t.
func (t *Tensors) take(l Layer) Tensors {
	n := len(Params(l))
	own := Tensors{t.Params[:n], t.Grads[:n]}
	t.Params, t.Grads = t.Params[n:], t.Grads[n:]
	return own
}

// Backward writes the backward of a layer: from the gradients of its output ports to those of its input ports, which are absent where there
// is none. It adds to the gradients of the parameters. An absent one that it is given stands for zeros.
type Backward func(dout []device.Mem) (din []device.Mem)

// Description says what a layer has and takes.
type Description struct {
	Name    string // unique in a model, for messages: "transformer.h.0"
	Params  []Param
	In, Out []Port // for a micro-batch of one size
}

// Layer is one step of a model.
type Layer interface {
	// Describe describes the layer for micro-batches of size s, which only the ports depend on.
	Describe(s Size) Description
	// Emit writes the forward from the input ports to the output ports, and returns what writes the backward. It changes no tensor that it
	// did not make; an output port may be an input port.
	Emit(b *Builder, t Tensors, in []device.Mem) (out []device.Mem, backward Backward)
}

// Name is the name of a layer.
func Name(l Layer) string { return l.Describe(Size{B: 1, T: 1}).Name }

// Params lists the trainable tensors of layers.
func Params(layers ...Layer) (ps []Param) {
	for _, l := range layers {
		ps = append(ps, l.Describe(Size{B: 1, T: 1}).Params...)
	}
	return ps
}

// Ports lists the tensors that go into a layer and come out of it, for a micro-batch of size s.
func Ports(l Layer, s Size) (in, out []Port) {
	d := l.Describe(s)
	return d.In, d.Out
}

// single is the Emit of a layer with one port in and one out.
func single(y device.Mem, back func(dy device.Mem) (dx device.Mem)) (out []device.Mem, backward Backward) {
	return []device.Mem{y}, func(dout []device.Mem) []device.Mem { return []device.Mem{back(dout[0])} }
}

// row is the single (R,C) port of most layers.
func row(name string, s Size, columns int) []Port {
	return []Port{{Name: name, Type: device.F32, Elements: s.Rows() * columns}}
}

// operand is the single port (R,C) of what a product reads or writes: in BF16 where products compute in it.
func operand(name string, s Size, columns int) []Port {
	return []Port{{Name: name, Type: s.Compute, Elements: s.Rows() * columns}}
}

// result is the single port y (R,C) of a layer that gives F32, or narrow what a product reads.
func result(s Size, columns int, narrow bool) []Port {
	if narrow {
		return operand("y", s, columns)
	}
	return row("y", s, columns)
}
