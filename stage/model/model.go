// Package model turns a config into a model: a list of layers that a pipeline can be cut from, with Hugging Face's
// names for configuration fields and tensors, so that what is exported loads with from_pretrained and what that library
// wrote can be trained on.
//
// A family is one row of the table families: its config's fields, the layers made of them, and how they are named in
// files. Shapes as in package layer.
package model

import (
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/avgpipe/avgpipe/internal/nearest"
	"github.com/avgpipe/avgpipe/internal/words"
	"github.com/avgpipe/avgpipe/stage/layer"
	"github.com/avgpipe/avgpipe/stage/program"
)

// Task says what the samples of a model are: the input ports of its first layer, by name, and what a target is. A data
// set is read for a task.
type Task string

// The tasks. (B,T) ids are I32 ports, pixels are F32 and constant; a mask is 1 at a token and 0 at padding.
const (
	// Language: ids (B,T); the targets (B,T) are the ids one position on.
	Language Task = "language"
	// MaskedLanguage: ids, token_types, mask (B,T), some ids hidden; the targets (B,T) are those, -1 elsewhere.
	MaskedLanguage Task = "masked-language"
	// Classification: ids, token_types, mask (B,T) of a text or a pair of texts; the target (B) is its class.
	Classification Task = "classification"
	// Translation: ids, mask (B,T) of the source and decoder_ids (B,T) of what precedes each target; targets (B,T), -1
	// beyond the end.
	Translation Task = "translation"
	// Images: pixels (B,C,H,W); the target (B) is the class.
	Images Task = "images"
	// Samples: sample (B), numbers of samples that a user's program makes; the targets (B) are the same, -1 where one does not count.
	Samples Task = "samples"
)

// Image is the shape of an image: channels, rows, columns.
type Image struct{ Channels, Height, Width int }

// Model is a built model: what to compute and how its parts are called. It is immutable and holds no weights.
type Model struct {
	Family string
	Task   Task
	Image  Image         // of the task Images
	Layers []layer.Layer // the units in which it is split into stages
	Loss   layer.Loss    // follows the last layer
	// Samples is how many the user's program has, of the task Samples.
	Samples SampleCounts

	vocabulary int
	sequence   int
	prefix     string                     // of tensor names, that some files leave out: "transformer."
	aliases    func(name string) []string // older names of a tensor; nil: none has any
	skip       []string                   // patterns over the names of what files hold beside the parameters, as path.Match takes them
	heads      heads
	window     func(layer int) int // positions that attention in a block looks back over, 0: all; nil: of a family without windows
	config     map[string]any
	adapted    []layer.Linear
	front      *front          // nil: of a family that modules cannot follow
	behind     *Model          // of modules: see Front
	own        map[string]bool // of modules behind a family: the names of their tensors
}

var families = map[string]func() settings{
	"awd-lstm": func() settings { return new(awdLSTM) },
	"gnmt":     func() settings { return new(gnmt) },
	"bert":     func() settings { return new(bert) },
	"gpt2":     func() settings { return new(gpt2) },
	"mlp":      func() settings { return new(mlp) },
	"resnet":   func() settings { return new(resnet) },
	"vgg":      func() settings { return new(vgg) },
	"llama":    func() settings { return &llama{family: "llama"} },
	"mistral":  func() settings { return &llama{family: "mistral"} },
	"qwen2":    func() settings { return &llama{family: "qwen2"} },
}

// Families lists the names that Build accepts.
func Families() []string { return slices.Sorted(maps.Keys(families)) }

// Fields lists the config fields of a family in the order in which they are documented; nil for an unknown one.
func Fields(name string) []Field {
	family, ok := families[name]
	if !ok {
		return nil
	}
	fields := family().fields()
	for i := range fields {
		fields[i].Default = fields[i].value()
	}
	return fields
}

// Build makes the model that config describes. Field names and defaults are those of the family's Hugging Face config;
// numbers may be of any Go type that holds the value. A field that is unknown or has a value out of range is a
// *FieldError.
func Build(name string, config map[string]any) (*Model, error) {
	family, ok := families[name]
	if !ok {
		return nil, &FieldError{Field: "family", Found: name, Allowed: oneOf(Families()), Nearest: nearest.Word(name, Families())}
	}
	c := family()
	fields := c.fields()
	if err := read(c, fields, config); err != nil {
		return nil, err
	}
	m := &Model{
		Family: name, config: map[string]any{"model_type": name, "torch_dtype": "float32"},
	}
	for _, f := range fields {
		m.config[f.Name] = f.value()
	}
	c.build(m)
	return m, nil
}

// Vocabulary is the number of token ids: ids are 0..Vocabulary-1.
func (m *Model) Vocabulary() int { return m.vocabulary }

// Sequence is the largest, and the default, number of positions in a sample.
func (m *Model) Sequence() int { return m.sequence }

// Params lists the parameters of all layers, in order.
func (m *Model) Params() []layer.Param { return layer.Params(m.Layers...) }

// Weights is the number of values of the parameters. Tied copies count once, running statistics not.
func (m *Model) Weights() int { return m.count(func(layer.Param) bool { return true }) }

// Trained is how many of Weights are trained.
func (m *Model) Trained() int { return m.count(func(p layer.Param) bool { return !p.Frozen }) }

func (m *Model) count(counts func(layer.Param) bool) (n int) {
	for _, p := range m.Params() {
		if p.TiedTo == "" && p.Running == 0 && counts(p) {
			n += p.Len()
		}
	}
	return n
}

// Costs estimates the cost of each layer for one micro-batch, forward and backward, in floating-point operations, with one for each byte that
// other operations move: what Split takes before a profile exists.
func (m *Model) Costs(s layer.Size) []float64 {
	costs := make([]float64, len(m.Layers))
	for i := range m.Layers {
		p := layer.Alone(m.Layers, i, s)
		for _, pass := range []*program.Program{p.Forward, p.Whole} {
			flops, bytes := pass.Cost()
			costs[i] += flops + bytes
		}
	}
	return costs
}

// Depth says how many layers the model has, and how many its config says: embeddings and heads are layers as well.
func (m *Model) Depth() string {
	text := words.Count(len(m.Layers), "layer")
	for _, field := range []string{"n_layer", "num_hidden_layers", "nlayers", "num_layers"} {
		if n, ok := m.config[field]; ok {
			return fmt.Sprintf("%s (%s %v, and those around them)", text, field, n)
		}
	}
	return text
}

// Config is the model's config.json for export: every field written out and, of a model that was imported, whatever else its
// config.json held.
func (m *Model) Config() map[string]any { return maps.Clone(m.config) }

// NamesCopies reports whether files hold copies of tied tensors under their own names, as a user's own program wants them.
func (m *Model) NamesCopies() bool { return m.Family == Python }

// TensorNames lists the names under which a file may hold parameter p, the name for export first. Unless NamesCopies, a tied copy is read
// from the tensor that it is tied to, and is not exported (p.TiedTo is not empty).
func (m *Model) TensorNames(p layer.Param) []string {
	name := p.Name
	if p.TiedTo != "" && !m.NamesCopies() || layer.Again(p.Name, p.TiedTo) {
		name = p.TiedTo
	}
	names := []string{name}
	if m.aliases != nil {
		names = append(names, m.aliases(name)...)
	}
	for _, long := range slices.Clone(names) {
		if short, ok := strings.CutPrefix(long, m.prefix); ok && m.prefix != "" {
			names = append(names, short)
		}
	}
	return names
}

// heads says which parts of a model may start fresh when it is trained from a file of another architecture of its family.
type heads struct {
	own   []string // what the names of the tensors of each part begin with
	other string   // what the names of a tensor of the other architecture begin with
}

// StartsFresh reports whether a parameter belongs to an adapter, to modules behind a family, or to a part that a file of another architecture does not have: CheckTensors
// accepts such a file, and training goes on from it with what the parameter started with.
func (m *Model) StartsFresh(p layer.Param) bool {
	return p.Adapter || m.own[p.Name] || slices.ContainsFunc(m.heads.own, func(head string) bool { return strings.HasPrefix(p.Name, head) })
}

// lacksHead reports whether a file of another architecture has nothing of the part that p belongs to.
func (m *Model) lacksHead(p layer.Param, tensors map[string][]int) bool {
	holds := func(prefix string) bool {
		for name := range tensors {
			if strings.HasPrefix(name, prefix) {
				return true
			}
		}
		return false
	}
	if m.own[p.Name] { // a file of the family has none of the modules
		for name := range m.own {
			if _, there := tensors[name]; there {
				return false
			}
		}
		return true
	}
	for _, head := range m.heads.own {
		if strings.HasPrefix(p.Name, head) {
			return !holds(head) && !holds(strings.TrimPrefix(head, m.prefix)) && holds(m.heads.other)
		}
	}
	return false
}

// CheckTensors compares the tensors of a file, names to shapes, with the model: every parameter must be there with its
// shape, and no tensor may be left over, so that nothing is dropped silently. Buffers that Hugging Face stores beside
// the parameters (causal masks) are passed over. See StartsFresh for what may be missing.
func (m *Model) CheckTensors(tensors map[string][]int) error {
	used := map[string]bool{}
	params := m.Params()
	for _, p := range params {
		name, err := m.find(p, tensors)
		if err != nil && !p.Adapter && !m.lacksHead(p, tensors) {
			return err
		}
		used[name] = true
	}
	for _, name := range slices.Sorted(maps.Keys(tensors)) {
		if used[name] || m.skips(name) || m.copyOfTied(name, params) {
			continue
		}
		return fmt.Errorf("tensor %q %v belongs to no parameter of this %s of %s: is the config that of the file?",
			name, tensors[name], m.Family, m.Depth())
	}
	return nil
}

func (m *Model) find(p layer.Param, tensors map[string][]int) (string, error) {
	names := m.TensorNames(p)
	for _, name := range names {
		shape, ok := tensors[name]
		if !ok {
			continue
		}
		if !slices.Equal(shape, p.Shape) {
			return "", fmt.Errorf("tensor %q has shape %v; the config makes it %v", name, shape, p.Shape)
		}
		return name, nil
	}
	nearest := nearest.Word(names[0], slices.Sorted(maps.Keys(tensors)))
	return "", fmt.Errorf("tensor %q %v is missing among %d tensors; the nearest name is %q",
		names[0], p.Shape, len(tensors), nearest)
}

// skips reports whether a tensor of a file is passed over.
func (m *Model) skips(name string) bool {
	return slices.ContainsFunc(m.skip, func(pattern string) bool {
		matches, _ := path.Match(pattern, name) // patterns of ours are well-formed
		return matches
	})
}

// copyOfTied reports whether a file stores a tied copy under its own name, as some exports do.
func (m *Model) copyOfTied(name string, params []layer.Param) bool {
	return slices.ContainsFunc(params, func(p layer.Param) bool { return p.TiedTo != "" && p.Name == name })
}

// language gives a model of a language what all have: layers are its embedding, its blocks and its head.
func (m *Model) language(vocabulary, sequence int, embedding layer.Layer, blocks int, block func(i int) layer.Layer, head layer.Layer) {
	m.Task, m.Loss, m.vocabulary, m.sequence = Language, layer.Loss{Classes: vocabulary}, vocabulary, sequence
	m.Layers = append(m.Layers, embedding)
	for i := range blocks {
		m.Layers = append(m.Layers, block(i))
	}
	m.Layers = append(m.Layers, head)
}

// languageHead is the final norm and the projection to the vocabulary, which may be the embedding.
func languageHead(path string, norm layer.LayerNorm, vocabulary int, deviation float64, tie bool, embedding string) layer.Layer {
	logits := layer.Linear{Path: "lm_head", In: norm.Width, Out: vocabulary, OutIn: true, Init: layer.Init{Deviation: deviation}}
	if tie {
		logits.TiedTo = embedding
	}
	return layer.NewChain(path, norm, logits)
}
