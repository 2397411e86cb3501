package model

import (
	"fmt"
	"slices"
	"strings"

	"github.com/avgpipe/avgpipe/stage/device"
	"github.com/avgpipe/avgpipe/stage/layer"
)

// front is what is left of a family without its head: what a user's modules may follow.
type front struct {
	layers []layer.Layer
	width  int
	masked bool     // the last layer gives the mask of positions on
	heads  []string // patterns over the names of what files hold of the heads that are left out
}

// frontOf is a front of blocks that a head follows, of a model that has been built.
func (m *Model) frontOf(width int, end func(last layer.Layer) layer.Layer, masked bool, heads ...string) {
	layers := slices.Clone(m.Layers[:len(m.Layers)-1])
	last := len(layers) - 1
	layers[last] = end(layers[last])
	m.front = &front{layers, width, masked, heads}
}

// behindNorm is frontOf where a norm follows the last block, in front of a head of its own.
func (m *Model) behindNorm(norm layer.LayerNorm) {
	m.frontOf(norm.Width, func(last layer.Layer) layer.Layer { return layer.NewChain(layer.Name(last), last, norm) }, false, "lm_head.*")
}

// fronts are the families whose layers a user's modules may follow.
func fronts() (names []string) {
	for _, name := range Families() {
		if m, err := Build(name, nil); err == nil && m.front != nil {
			names = append(names, name)
		}
	}
	return names
}

// CheckFront refuses a model whose layers a user's modules cannot follow.
func (m *Model) CheckFront() error {
	if m.front == nil {
		return &FieldError{Field: "family", Found: m.Family, Allowed: "a family whose hidden states modules can be given: " + strings.Join(fronts(), ", ")}
	}
	return nil
}

// Front is the model whose layers are in front of the modules of this one; nil: none is.
func (m *Model) Front() *Model { return m.behind }

// HasModules reports whether any of some layers is a module of a user's program.
func (m *Model) HasModules(from, to int) bool {
	return slices.ContainsFunc(m.Layers[from:to], func(l layer.Layer) bool {
		_, ok := l.(*layer.Modules)
		return ok
	})
}

// gives is what the first of a user's modules behind the front is given of a sample of so many positions.
func (f *front) gives(positions int) []ModuleInput {
	all := []ModuleInput{{Name: "hidden_states", Shape: []int{positions, f.width}, Type: device.F32, Differentiable: true}}
	if f.masked {
		all = append(all, ModuleInput{Name: "mask", Shape: []int{positions}, Type: device.I32, Limit: 2})
	}
	return all
}

// follow puts the layers of a model in front of modules. Names of tensors are those of a whole, so no two may be the same.
func (m *Model) follow(whole *Model) error {
	f := whole.front
	names := map[string]bool{}
	for _, p := range layer.Params(f.layers...) {
		names[p.Name] = true
	}
	m.own = map[string]bool{}
	for _, p := range m.Params() {
		if names[p.Name] {
			return fmt.Errorf("parameter %s of the modules has the name of one of the %s in front of them; expected another name", p.Name, whole.Family)
		}
		m.own[p.Name] = true
	}
	m.Layers = append(slices.Clone(f.layers), m.Layers...)
	m.behind, m.vocabulary = whole, whole.vocabulary
	m.prefix, m.aliases, m.window = whole.prefix, whole.aliases, whole.window
	m.skip = append(slices.Clone(whole.skip), f.heads...)
	return nil
}
