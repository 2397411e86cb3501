// Package layer holds the forward and the backward pass of every layer, adjacent in one file each, written once against
// device.Device.
//
// A Layer is an immutable description: it owns no memory and is shared by the pipelines of a process. The stage that runs
// it lays out all memory beforehand and hands it over in a Pass, so that a pass allocates nothing. Larger layers are
// composed of smaller ones by Chain and Residual: a GPT-2 block is a chain of two residual branches.
//
// A backward pass has two halves, so that zero-bubble plans can run them apart (Qi et al. 2024, section 2): BackwardInput
// computes the gradient of the input, which the upstream stage waits for, and leaves in Kept what BackwardWeight needs to
// add the gradients of the parameters, at once or later. Both orders give the same bits.
//
// Shapes in comments: B samples, T positions, R = B*T rows, D width, H heads, F inner width, V vocabulary.
package layer

import (
	"slices"

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
	// products read or write; residual streams, norms, losses and reductions are F32 whatever it is.
	Compute device.Type
}

// Rows is R = B*T.
func (s Size) Rows() int { return s.B * s.T }

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
	// Product says that only products read the parameter: where they compute in BF16 (Size.Compute), Pass.Params holds a copy
	// of it in BF16. One product makes its whole gradient, which sets it where the pass is Fresh.
	Product bool
	// Running, when above 0, makes this a statistic instead of a trainable tensor (batch norm's running mean): the forward
	// adds Pass.Weight times the micro-batch's value to the place of the gradient, and the optimizer step sets
	// p = p + Running (sum - p). It has no part in norms, decay or optimizer state; the center averages it like a weight.
	Running float32
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
		return words.As(ports[0].Type, ports[0].Elements)
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

// Pass is the memory that one pass of one layer works on. Fields that a method does not need are absent.
type Pass struct {
	Device device.Device
	Size   Size
	// Params and Grads hold the layer's tensors in the order of Params(). Gradients are added to.
	Params, Grads []device.Mem
	// Fresh says that the gradients of Param.Product parameters are undefined: BackwardWeight sets them instead of adding. That
	// saves writing zeros and reading them back.
	Fresh bool
	// In holds the input ports. It is the same, unchanged, in the forward and in both halves of the backward.
	In device.Mem
	// Out receives the output ports. A backward does not see it: a layer keeps what it needs of it in Saved.
	Out device.Mem
	// Saved (Saved() elements) is written by the forward and read by both halves of the backward.
	Saved device.Mem
	// Evaluating says that no backward follows this forward; Saved may then be used as scratch. Nothing is dropped out, and
	// running statistics are used instead of the micro-batch's own.
	Evaluating bool
	// Recomputing says that this forward repeats one of the same micro-batch, to fill Saved again: running statistics
	// have been counted.
	Recomputing bool
	// Key is the key of all random numbers: a hash of seed, pipeline and step. Layers add their own name (KeyOf).
	Key uint64
	// First is the index of the micro-batch's first sample in its batch, so that what is random does not depend on how a
	// batch is cut into micro-batches.
	First int
	// Weight is the micro-batch's share of its batch; see Param.Running.
	Weight float32
	// DOut (like Out) is the gradient of the output; unchanged from BackwardInput to BackwardWeight.
	DOut device.Mem
	// DIn (like In) receives the gradient of the input; it is absent when no input port is differentiable. It does not
	// overlap DOut.
	DIn device.Mem
	// Kept (Kept() elements) is written by BackwardInput and read by BackwardWeight.
	Kept device.Mem
	// Plus (like DIn, F32) is what BackwardInput adds to DIn: the gradient that reaches the input past the layer. It does not
	// overlap DIn. It is absent unless the layer is summing.
	Plus device.Mem
}

// Layer is one step of a model.
type Layer interface {
	// Name is unique in a model, for messages: "transformer.h.0".
	Name() string
	// Params lists the trainable tensors.
	Params() []Param
	// Ports lists the tensors that go in and come out, for a micro-batch of size s.
	Ports(s Size) (in, out []Port)
	// Saved is how many words the forward keeps for the backward, besides its input.
	Saved(s Size) int
	// Kept is how many words BackwardInput leaves for BackwardWeight, besides the gradient of the output.
	Kept(s Size) int
	// FLOPs counts the floating-point operations of the matrix products, for balancing stages before a profile exists.
	FLOPs(s Size) (forward, backward float64)
	// Forward computes Out from In and Params.
	Forward(p Pass)
	// BackwardInput computes DIn from DOut.
	BackwardInput(p Pass)
	// BackwardWeight adds to Grads (see Pass.Fresh), after BackwardInput of the same micro-batch.
	BackwardWeight(p Pass)
}

// KeyOf is the key of the random numbers of the layer with this name in a pass: the same on every split, in the forward, in the
// backward and in a recomputed forward.
func (p Pass) KeyOf(name string) uint64 {
	const offset, prime = 14695981039346656037, 1099511628211 // FNV-1a (Fowler, Noll and Vo)
	h := uint64(offset)
	for _, b := range []byte(name) {
		h = (h ^ uint64(b)) * prime
	}
	return Mix(p.Key ^ h)
}

// Mix is a bijective hash of 64 bits: the finaliser of SplitMix64 (Steele, Lea and Flood
// 2014, figure 15).
func Mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// row is the single (R,C) port of most layers.
func row(name string, s Size, columns int) []Port {
	return []Port{{Name: name, Type: device.F32, Elements: s.Rows() * columns}}
}

// cutter takes consecutive aligned runs off a memory.
type cutter struct {
	mem device.Mem
	at  int
}

func (c *cutter) take(n int) device.Mem {
	m := c.mem.Slice(c.at, n)
	c.at += Padded(n)
	return m
}

// takeAs is take for n elements of type t.
func (c *cutter) takeAs(t device.Type, n int) device.Mem { return c.take(WordsOf(t, n)).As(t, n) }
