package foreign

import (
	"fmt"
	"slices"

	"github.com/avgpipe/avgpipe/stage/layer"
	"github.com/avgpipe/avgpipe/stage/model"
)

// rate turns the seconds of a dry run into floating-point operations, in which layers are priced until they are profiled: about what
// a core does.
const rate = 50e9

// Seconds is what a dry run took for floating-point operations that it was turned into.
func Seconds(flops float64) float64 { return flops / rate }

// Modules describes modules as a model is made of them: what was built, and what it did in a dry run with so many samples of those inputs.
func Modules(b Built, given []ProbeInput, probed []Probed, samples int) ([]model.Module, error) {
	if err := b.check(); err != nil {
		return nil, err
	}
	if samples < 1 {
		return nil, fmt.Errorf("a dry run with %d samples: expected at least 1", samples)
	}
	var inputs []ProbedTensor
	if len(probed) > 0 {
		inputs = probed[0].Inputs
	}
	if err := checkProbed(b.Modules, inputs, probed); err != nil {
		return nil, err
	}
	all := make([]model.Module, len(probed))
	if len(inputs) != len(given) {
		return nil, fmt.Errorf("a dry run of %d inputs, expected %d", len(inputs), len(given))
	}
	differentiable := make([]bool, len(inputs))
	for i, x := range given {
		differentiable[i] = x.Gradient // none flows to data
	}
	for i, p := range probed {
		m := model.Module{
			Name: b.Modules[i].Name, Parameters: params(b.Modules[i]),
			Forward: p.Forward * rate / float64(samples), Backward: p.Backward * rate / float64(samples), Kept: p.SavedBytes / samples,
		}
		var err error
		if m.Inputs, err = ports("input", p.Inputs, differentiable, samples); err == nil {
			m.Outputs, err = ports("output", p.Outputs, p.Differentiable, samples)
		}
		if err != nil {
			return nil, fmt.Errorf("module %s (%s): %w", m.Name, b.Modules[i].Type, err)
		}
		all[i], differentiable = m, p.Differentiable
	}
	if last := b.Modules[len(all)-1]; !slices.Contains(differentiable, true) {
		return nil, fmt.Errorf("module %s (%s): no gradient flows through any of its outputs, expected one that depends on what is trained", last.Name, last.Type)
	}
	return all, nil
}

// ports are tensors without the dimension of the samples.
func ports(what string, all []ProbedTensor, differentiable []bool, samples int) (out []model.ModulePort, err error) {
	for i, t := range all {
		if len(t.Shape) == 0 || t.Shape[0] != samples {
			return nil, fmt.Errorf("%s %d has shape %v: expected its first dimension to be the %d samples", what, i, t.Shape, samples)
		}
		out = append(out, model.ModulePort{Shape: t.Shape[1:], Type: t.Type, Differentiable: differentiable[i]})
	}
	return out, nil
}

func params(m BuiltModule) (out []model.ModuleParam) {
	for _, p := range m.Parameters {
		out = append(out, model.ModuleParam{Name: p.Name, Shape: p.Shape, TiedTo: p.TiedTo, Frozen: !p.Trained})
	}
	for _, b := range m.Buffers {
		out = append(out, model.ModuleParam{Name: b.Name, Shape: b.Shape, Running: true})
	}
	return out
}

// Lookup finds what a parameter or a running statistic is after build: a stage.Lookup.
func (p *Process) Lookup(b Built) func(name string) (shape []int, values []float32, ok bool, err error) {
	shapes := map[string][]int{}
	for _, m := range b.Modules {
		for _, of := range params(m) {
			shapes[of.Name] = of.Shape
		}
	}
	return func(name string) ([]int, []float32, bool, error) {
		shape, ok := shapes[name]
		if !ok {
			return nil, nil, false, nil
		}
		values, err := p.Read(name, layer.Param{Shape: shape}.Len())
		return shape, values, true, err
	}
}
