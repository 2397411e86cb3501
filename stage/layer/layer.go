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

import "github.com/avgpipe/avgpipe/stage/device"

// Align is the multiple of elements, 64 bytes, at which every tensor begins that shares memory with others.
const Align = 16

// Padded is n rounded up to a multiple of Align.
func Padded(n int) int { return (n + Align - 1) / Align * Align }

// Size is the shape of one micro-batch.
type Size struct {
	B int // samples
	T int // positions of each
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
	Name     string
	Type     device.Type // F32 or I32
	Elements int
}

// Elements is the length of the memory that holds all ports, one after the other, each padded to Align when there are
// several.
func Elements(ports []Port) int {
	if len(ports) == 1 {
		return ports[0].Elements
	}
	n := 0
	for _, p := range ports {
		n += Padded(p.Elements)
	}
	return n
}

// Pass is the memory that one pass of one layer works on. Fields that a method does not need are absent.
type Pass struct {
	Device device.Device
	Size   Size
	// Params and Grads hold the layer's tensors in the order of Params(). Gradients are added to.
	Params, Grads []device.Mem
	// In holds the input ports. It is the same, unchanged, in the forward and in both halves of the backward.
	In device.Mem
	// Out receives the output ports. A backward does not see it: a layer keeps what it needs of it in Saved.
	Out device.Mem
	// Saved (Saved() elements) is written by the forward and read by both halves of the backward.
	Saved device.Mem
	// Evaluating says that no backward follows this forward; Saved may then be used as scratch.
	Evaluating bool
	// DOut (like Out) is the gradient of the output; unchanged from BackwardInput to BackwardWeight.
	DOut device.Mem
	// DIn (like In) receives the gradient of the input; it is absent when all input ports are I32. It does not overlap
	// DOut.
	DIn device.Mem
	// Kept (Kept() elements) is written by BackwardInput and read by BackwardWeight.
	Kept device.Mem
}

// Layer is one step of a model.
type Layer interface {
	// Name is unique in a model, for messages: "transformer.h.0".
	Name() string
	// Params lists the trainable tensors.
	Params() []Param
	// Ports lists the tensors that go in and come out, for a micro-batch of size s.
	Ports(s Size) (in, out []Port)
	// Saved is how many float32 the forward pins for the backward, besides its input.
	Saved(d device.Device, s Size) int
	// Kept is how many float32 BackwardInput leaves for BackwardWeight, besides the gradient of the output.
	Kept(s Size) int
	// FLOPs counts the floating-point operations of the matrix products, for balancing stages before a profile exists.
	FLOPs(s Size) (forward, backward float64)
	// Forward computes Out from In and Params.
	Forward(p Pass)
	// BackwardInput computes DIn from DOut.
	BackwardInput(p Pass)
	// BackwardWeight adds to Grads, after BackwardInput of the same micro-batch.
	BackwardWeight(p Pass)
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
