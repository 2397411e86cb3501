package model

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/avgpipe/avgpipe/stage/device"
	"github.com/avgpipe/avgpipe/stage/layer"
)

// Python is the family of models that are modules of a user's program. Nobody configures one: its config is what a dry run found.
const Python = "python"

// ModulesConfig is the config of a model of the family python.
type ModulesConfig struct {
	ModelType string `json:"model_type"`
	// Front is the config of a model of a family whose layers, but for its head, are in front of the modules; nil: none are.
	Front     map[string]any `json:"front,omitempty"`
	Framework string         `json:"framework"` // that the modules are of: "torch 1.13.1"
	Task      Task           `json:"task"`
	// Sequence is the positions of a sample, 1 where it has none. Vocabulary bounds the ids of a sample. Image is the shape of one.
	Sequence   int   `json:"sequence"`
	Vocabulary int   `json:"vocabulary,omitempty"`
	Image      Image `json:"image,omitzero"`
	// UserLoss says that the user's program computes the loss of the logits in training.
	UserLoss bool `json:"user_loss,omitempty"`
	// Samples is how many the user's program has, of the task samples.
	Samples SampleCounts `json:"samples,omitzero"`
	Modules []Module     `json:"modules"`
}

// SampleCounts is how many samples a user's program has to train on, and how many of its own to evaluate on; none: some of the others are held out.
type SampleCounts struct {
	Train   int `json:"train"`
	HeldOut int `json:"held_out,omitempty"`
}

// Module is a module of a user's program.
type Module struct {
	Name       string        `json:"name"`
	Parameters []ModuleParam `json:"parameters,omitempty"`
	Inputs     []ModulePort  `json:"inputs"`
	Outputs    []ModulePort  `json:"outputs"`
	// Of each sample: floating-point operations of a forward and of a backward, and the bytes that are kept in between.
	Forward  float64 `json:"forward_flops"`
	Backward float64 `json:"backward_flops"`
	Kept     int     `json:"kept_bytes"`
}

// ModuleParam is a parameter of a module, or a running statistic.
type ModuleParam struct {
	Name    string `json:"name"`
	Shape   []int  `json:"shape"`
	TiedTo  string `json:"tied_to,omitempty"`
	Frozen  bool   `json:"frozen,omitempty"`
	Running bool   `json:"running,omitempty"`
}

// ModulePort is a tensor that a module takes or gives, of one sample.
type ModulePort struct {
	Shape          []int  `json:"shape"`
	Type           string `json:"type"`
	Differentiable bool   `json:"differentiable,omitempty"`
}

// moduleInputs are what the first of a user's modules is given, by the task.
var moduleInputs = map[Task][]string{
	Language: {"ids"}, MaskedLanguage: {"ids", "token_types", "mask"}, Classification: {"ids", "token_types", "mask"},
	Translation: {"ids", "mask", "decoder_ids"}, Images: {"pixels"}, Samples: {"sample"},
}

// ModuleInput is what the first of a user's modules is given of a sample.
type ModuleInput struct {
	Name           string
	Shape          []int // without the dimension of the samples
	Type           device.Type
	Limit          int  // bounds the values of an I32; 0: they are numbers of samples
	Differentiable bool // it wants a gradient
}

// Inputs are what the first of a user's modules is given: a sample of the task, or what the layers in front give.
func (c *ModulesConfig) Inputs() ([]ModuleInput, error) {
	whole, err := c.front()
	if err != nil {
		return nil, err
	}
	return c.inputs(whole)
}

// inputs are Inputs behind a front; nil: there is none.
func (c *ModulesConfig) inputs(whole *Model) ([]ModuleInput, error) {
	if whole != nil {
		return whole.front.gives(c.Sequence), nil
	}
	names := moduleInputs[c.Task]
	if names == nil {
		return nil, &FieldError{Field: "task", Found: c.Task, Allowed: oneOf(Tasks())}
	}
	all := make([]ModuleInput, len(names))
	for i, name := range names {
		all[i] = ModuleInput{Name: name, Shape: []int{c.Sequence}, Type: device.I32, Limit: c.Vocabulary}
		switch {
		case c.Task == Images:
			all[i].Type, all[i].Shape, all[i].Limit = device.F32, []int{c.Image.Channels, c.Image.Height, c.Image.Width}, 0
		case c.Task == Samples:
			all[i].Shape = nil
		case name == "mask" || name == "token_types":
			all[i].Limit = 2
		}
	}
	return all, nil
}

// front is the model whose layers are in front of the modules; nil: none are.
func (c *ModulesConfig) front() (*Model, error) {
	if c.Front == nil {
		return nil, nil //nolint:nilnil // as said
	}
	text, err := json.Marshal(c.Front)
	if err != nil {
		return nil, fmt.Errorf("read the config of the layers in front of modules: %w", err)
	}
	whole, err := FromHuggingFace(text)
	if err == nil {
		err = whole.CheckFront()
	}
	if err == nil && !slices.Equal(moduleInputs[whole.Task], moduleInputs[c.Task]) {
		err = &FieldError{Field: "task", Found: c.Task, Allowed: fmt.Sprintf("%s, whose samples the %s in front of the modules takes", whole.Task, whole.Family), Nearest: string(whole.Task)}
	}
	if err == nil && c.Sequence > whole.sequence {
		err = fmt.Errorf("samples of %d positions; the %s in front of the modules takes at most %d", c.Sequence, whole.Family, whole.sequence)
	}
	return whole, err
}

// readModules makes the model of a config of the family python.
func readModules(config []byte) (*Model, error) {
	c, err := decodeModules(config)
	if err != nil {
		return nil, err
	}
	return c.Build()
}

// Modules is the config of a model of the family python.
func (m *Model) Modules() (*ModulesConfig, error) {
	text, err := json.Marshal(m.config)
	if err != nil {
		return nil, fmt.Errorf("write the config of a user's modules: %w", err)
	}
	return decodeModules(text)
}

func decodeModules(config []byte) (*ModulesConfig, error) {
	c := &ModulesConfig{}
	if err := json.Unmarshal(config, c); err != nil {
		return nil, fmt.Errorf("read the config of a user's modules: %w", err)
	}
	return c, nil
}

// Build makes the model. Behind its last module is a loss of ours: the cross-entropy of what that gives, taken as logits.
func (c *ModulesConfig) Build() (*Model, error) {
	whole, err := c.front()
	if err != nil {
		return nil, err
	}
	inputs, err := c.inputs(whole)
	if err != nil {
		return nil, err
	}
	if len(c.Modules) == 0 {
		return nil, fmt.Errorf("a model of no modules; expected at least one")
	}
	modules := make([]layer.Module, len(c.Modules))
	for i := range c.Modules {
		modules[i] = c.Modules[i].layer()
	}
	in, last := modules[0].In, c.Modules[len(c.Modules)-1]
	if len(in) != len(inputs) {
		names := make([]string, len(inputs))
		for i, x := range inputs {
			names[i] = x.Name
		}
		return nil, fmt.Errorf("module %s takes %d tensors; it is given %s, by the task %s", c.Modules[0].Name, len(in), strings.Join(names, ", "), c.Task)
	}
	for i, x := range inputs {
		in[i].Name = x.Name
		switch {
		case c.Task == Samples:
			in[i].Limit = math.MaxInt32
		case x.Type == device.I32 && x.Name != "mask" && x.Name != "token_types":
			in[i].Limit = c.Vocabulary
		}
	}
	loss, err := c.loss(&last)
	if err != nil {
		return nil, err
	}
	m := &Model{
		Family: Python, Task: c.Task, Image: c.Image, Samples: c.Samples, Layers: layer.NewModules(modules), Loss: loss, vocabulary: c.Vocabulary, sequence: c.Sequence, config: map[string]any{},
	}
	if whole != nil {
		if err := m.follow(whole); err != nil {
			return nil, err
		}
	}
	text, err := json.Marshal(c)
	if err == nil {
		err = json.Unmarshal(text, &m.config)
	}
	return m, err
}

// Tasks are the names of the tasks.
func Tasks() []string {
	var names []string
	for t := range maps.Keys(moduleInputs) {
		names = append(names, string(t))
	}
	slices.Sort(names)
	return names
}

// loss is that of the logits that the last module gives: of each position, or of each sample.
func (c *ModulesConfig) loss(last *Module) (layer.Loss, error) {
	if c.Task == Samples {
		return layer.Loss{Classes: math.MaxInt32, PerSample: true, User: true, Samples: true}, nil
	}
	perSample := c.Task == Images || c.Task == Classification
	want, expected := 2, fmt.Sprintf("(samples, %d positions, classes)", c.Sequence)
	if perSample {
		want, expected = 1, "(samples, classes)"
	}
	if len(last.Outputs) != 1 {
		return layer.Loss{}, fmt.Errorf("module %s, the last, gives %d tensors; expected one, logits of shape %s", last.Name, len(last.Outputs), expected)
	}
	y := last.Outputs[0]
	if len(y.Shape) != want || !perSample && y.Shape[0] != c.Sequence || !y.Differentiable {
		return layer.Loss{}, fmt.Errorf("module %s, the last, gives a tensor of shape %v for each sample; expected logits of shape %s, which depend on its parameters", last.Name, y.Shape, expected)
	}
	if classes := y.Shape[want-1]; !perSample && classes < c.Vocabulary {
		return layer.Loss{}, fmt.Errorf("module %s, the last, gives logits of %d classes; expected at least the %d tokens of model.vocabulary, which are its targets", last.Name, classes, c.Vocabulary)
	}
	return layer.Loss{Classes: y.Shape[want-1], PerSample: perSample, User: c.UserLoss}, nil
}

func (m *Module) layer() layer.Module {
	out := layer.Module{Name: m.Name, In: layerPorts(m.Inputs), Out: layerPorts(m.Outputs), Forward: m.Forward, Backward: m.Backward, Kept: m.Kept}
	for _, p := range m.Parameters {
		q := layer.Param{Name: p.Name, Shape: p.Shape, TiedTo: p.TiedTo, Frozen: p.Frozen, Decay: len(p.Shape) > 1}
		if p.Running {
			q.Running, q.Decay = 1, false
		}
		out.Params = append(out.Params, q)
	}
	return out
}

func layerPorts(all []ModulePort) (out []layer.ModulePort) {
	for _, p := range all {
		q := layer.ModulePort{Shape: p.Shape, Type: device.F32, Differentiable: p.Differentiable}
		if p.Type == device.I32.String() {
			q.Type = device.I32
		}
		out = append(out, q)
	}
	return out
}
