package stage

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"slices"

	"github.com/avgpipe/avgpipe/stage/device"
	"github.com/avgpipe/avgpipe/stage/layer"
)

// Tensor says where a parameter lies in the flat vectors of its stage. Each begins at a multiple of 16 elements, 64
// bytes; the elements between one and the next are 0 and stay 0.
type Tensor struct {
	Name   string `json:"name"` // the Hugging Face name
	Shape  []int  `json:"shape"`
	Offset int    `json:"offset"` // elements
	// TiedTo names the tensor that this one is a copy of; "" if none. Copies are not exported.
	TiedTo string `json:"tied_to,omitempty"`
}

// Len is the number of elements.
func (t Tensor) Len() int {
	n := 1
	for _, d := range t.Shape {
		n *= d
	}
	return n
}

// tensor is a parameter of a stage with its memory.
type tensor struct {
	Tensor
	param layer.Param
	// p, g and s are the parameter, its gradient and its optimizer state.
	p, g device.Mem
	s    [2]device.Mem
}

// cut is the tensor's run of a flat vector.
func (t *tensor) cut(v device.Mem) device.Mem {
	if v.Absent() {
		return v
	}
	return v.Slice(t.Offset, t.param.Len())
}

// place lays the parameters of layers out in a flat vector and returns its length.
func place(layers []layer.Layer) (tensors []tensor, length int) {
	for _, l := range layers {
		for _, p := range l.Params() {
			t := Tensor{Name: p.Name, Shape: p.Shape, Offset: length, TiedTo: p.TiedTo}
			tensors = append(tensors, tensor{Tensor: t, param: p})
			length += layer.Padded(p.Len())
		}
	}
	return tensors, length
}

// Layout lists where the parameters of a stage with these layers lie in its flat vectors, in order.
func Layout(layers []layer.Layer) []Tensor {
	tensors, _ := place(layers)
	return describe(tensors)
}

// Tensors lists where the parameters lie in the flat vectors, in order.
func (c *Computed) Tensors() []Tensor { return describe(c.tensors) }

func describe(tensors []tensor) []Tensor {
	out := make([]Tensor, len(tensors))
	for i, t := range tensors {
		out[i] = t.Tensor
		out[i].Shape = slices.Clone(t.Shape)
	}
	return out
}

// InitialValues fills dst with the values that parameter p starts with. They depend on the seed and the parameter's
// name alone (for a tied copy: the name that it is tied to), so every split of a model starts from the same weights.
func InitialValues(p layer.Param, seed uint64, dst []float32) {
	name := p.Name
	if p.TiedTo != "" {
		name = p.TiedTo
	}
	key := sha256.Sum256(fmt.Appendf(nil, "%d %s", seed, name))
	r := rand.New(rand.NewPCG(binary.LittleEndian.Uint64(key[:8]), binary.LittleEndian.Uint64(key[8:16])))
	for i := range dst {
		dst[i] = float32(p.Init.Mean)
		if p.Init.Deviation != 0 {
			dst[i] = float32(p.Init.Mean + p.Init.Deviation*r.NormFloat64())
		}
	}
}

func (c *Computed) initialise() {
	c.copies.made = false
	if !c.keepsValues() {
		return
	}
	longest := 0
	for _, t := range c.tensors {
		longest = max(longest, t.param.Len())
	}
	buffer := make([]float32, longest)
	for _, t := range c.tensors {
		values := buffer[:t.param.Len()]
		InitialValues(t.param, c.config.Seed, values)
		c.dev.Upload(t.p, device.FloatBytes(values))
	}
}

// Lookup finds a tensor by name in a file or a map. ok is false when there is none of that name.
type Lookup func(name string) (shape []int, values []float32, ok bool, err error)

// Load replaces the stage's parameters by tensors with Hugging Face's names, with or without the model's prefix
// ("transformer."). model.CheckTensors is the check of a whole file; Load fails at the first parameter that is missing or
// has another shape, and the stage must then not be used. What Model.StartsFresh says may be missing, and then keeps its
// value, unless the stage is for use only.
func (c *Computed) Load(lookup Lookup) error {
	for i := range c.tensors {
		if err := c.loadTensor(&c.tensors[i], lookup); err != nil {
			return fmt.Errorf("%s: load parameters: %w", c.config.what(), err)
		}
	}
	return c.dev.Synchronize()
}

func (c *Computed) loadTensor(t *tensor, lookup Lookup) error {
	c.copies.made = false
	names := c.config.Model.TensorNames(t.param)
	for _, name := range names {
		shape, values, ok, err := lookup(name)
		if err != nil {
			return fmt.Errorf("tensor %q: %w", name, err)
		}
		if !ok {
			continue
		}
		if !slices.Equal(shape, t.Shape) || len(values) != t.param.Len() {
			return fmt.Errorf("tensor %q has shape %v and %d values; the model makes it %v", name, shape, len(values), t.Shape)
		}
		c.dev.Upload(t.p, device.FloatBytes(values))
		return nil
	}
	if !c.config.ForwardOnly && c.config.Model.StartsFresh(t.param) {
		return nil
	}
	return fmt.Errorf("tensor %q %v is missing", names[0], t.Shape)
}
