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
func (t Tensor) Len() int { return layer.Param{Shape: t.Shape}.Len() }

// tensor is a parameter of a stage.
type tensor struct {
	Tensor
	param layer.Param
	index int // among the parameters of the stage's layers
}

// place lays the parameters of layers that are trained, or those that are frozen, out in a flat vector and returns its length.
func place(layers []layer.Layer, frozen bool) (tensors []tensor, length int) {
	for index, p := range layer.Params(layers...) {
		if p.Frozen == frozen {
			t := Tensor{Name: p.Name, Shape: p.Shape, Offset: length, TiedTo: p.TiedTo}
			tensors = append(tensors, tensor{Tensor: t, param: p, index: index})
			length += layer.Padded(p.Len())
		}
	}
	return tensors, length
}

// Layout lists where the parameters of a stage with these layers that are trained, or those that are frozen, lie in its flat vectors, in
// order.
func Layout(layers []layer.Layer, frozen bool) []Tensor {
	tensors, _ := place(layers, frozen)
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
		dst[i] = float32(p.Init.Mean + p.Init.Deviation*r.NormFloat64())
	}
}

func (c *Computed) initialise() error {
	if !device.KeepsValues(c.dev) {
		return nil
	}
	return c.upload(nil)
}

// upload gives each tensor its value in a file, or where there is none (nil, or see Load) what it starts with.
func (c *Computed) upload(lookup Lookup) error {
	for i, t := range c.tensors {
		values, err := c.config.value(t.param, lookup)
		if err != nil {
			return err
		}
		if err := device.Write(c.dev, c.role(parameter)[i], device.FloatBytes(values)); err != nil {
			return err
		}
	}
	return nil
}

// Lookup finds a tensor by name in a file or a map. ok is false when there is none of that name.
type Lookup func(name string) (shape []int, values []float32, ok bool, err error)

// Load replaces the stage's parameters by tensors with Hugging Face's names, with or without the model's prefix
// ("transformer."); frozen ones only if they are the stage's own. model.CheckTensors is the check of a whole file; Load fails at the
// first parameter that is missing or has another shape, and the stage must then not be used. What Model.StartsFresh says may be missing,
// and then has the value that it starts with, unless the stage is for use only.
func (c *Computed) Load(lookup Lookup) error {
	c.copies.of = nil
	c.predicted.end()
	err := c.upload(lookup)
	if err == nil && c.config.Frozen == nil {
		err = c.frozen.load(c.config, lookup)
	}
	if err != nil {
		return fmt.Errorf("%s: load parameters: %w", c.config.what(), err)
	}
	return c.dev.Synchronize()
}

// value is what a parameter has in a file, or where there is none what it starts with.
func (c Config) value(p layer.Param, lookup Lookup) ([]float32, error) {
	names := c.Model.TensorNames(p)
	for _, name := range names {
		if lookup == nil {
			break
		}
		shape, values, ok, err := lookup(name)
		if err != nil {
			return nil, fmt.Errorf("tensor %q: %w", name, err)
		}
		if !ok {
			continue
		}
		if !slices.Equal(shape, p.Shape) || len(values) != p.Len() {
			return nil, fmt.Errorf("tensor %q has shape %v and %d values; the model makes it %v", name, shape, len(values), p.Shape)
		}
		return values, nil
	}
	if lookup != nil && (c.ForwardOnly || !c.Model.StartsFresh(p)) {
		return nil, fmt.Errorf("tensor %q %v is missing", names[0], p.Shape)
	}
	values := make([]float32, p.Len())
	InitialValues(p, c.Seed, values)
	return values, nil
}
