package foreign

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"unicode"

	"github.com/avgpipe/avgpipe/stage/device"
)

// What is believed of an answer.
const (
	mostModules    = 1 << 16
	mostRepeats    = 1 << 10
	mostDims       = 64 // as PyTorch has it
	mostElements   = 1 << 40
	mostSeconds    = 1e6
	longestName    = 1 << 10 // bytes
	longestText    = 16 << 10
	mostLines      = 200
	longestVersion = 200
)

// mostOf is the length of an answer, in bytes, up to which it is read.
func mostOf(answer any) int {
	if answer == nil {
		return longestPlain
	}
	return longestMessage
}

// decode reads an answer, or the error that stands in its place.
func decode(text []byte, answer any) error {
	if trimmed := bytes.TrimLeft(text, " \t\r\n"); len(trimmed) == 0 || trimmed[0] != '{' {
		return fmt.Errorf("it is %.40q, expected an object of JSON", text)
	}
	var f failure
	if err := json.Unmarshal(text, &f); err != nil {
		return err
	}
	if f.Error != nil {
		return f.Error.bounded()
	}
	if answer == nil {
		return nil
	}
	if err := json.Unmarshal(text, answer); err != nil {
		return err
	}
	if hello, ok := answer.(*helloAnswer); ok {
		return hello.check()
	}
	return nil
}

func (a *helloAnswer) check() error {
	if a.Version != Version {
		return fmt.Errorf("it speaks version %d of the protocol, expected %d", a.Version, Version)
	}
	return checkText("version of the interpreter", a.Python, longestVersion)
}

// bounded is the error with no more than is worth to be kept.
func (e *ProgramError) bounded() error {
	if e.Type == "" && e.Message == "" {
		return errors.New("an error has neither a type nor a message, expected one of them")
	}
	e.Type, e.File, e.Message = cut(e.Type, longestName), cut(e.File, longestText), cut(e.Message, longestText)
	e.Line = max(e.Line, 0)
	e.Traceback = e.Traceback[max(0, len(e.Traceback)-mostLines):]
	for i, line := range e.Traceback {
		e.Traceback[i] = cut(line, longestText)
	}
	return e
}

// cut is the beginning of a text.
func cut(text string, most int) string {
	if len(text) <= most {
		return text
	}
	return string(bytes.ToValidUTF8([]byte(text[:most]), nil)) + "..."
}

// check refuses a description of modules that cannot be one.
func (b *Built) check() error {
	if err := checkText("framework", b.Framework, longestVersion); err != nil {
		return err
	}
	if n := len(b.Modules); n == 0 || n > mostModules {
		return fmt.Errorf("%d modules, expected 1 to %d", n, mostModules)
	}
	c := builtCheck{modules: map[string]bool{}, parameters: map[string]BuiltParameter{}, buffers: map[string]bool{}}
	for i, m := range b.Modules {
		if err := c.module(m); err != nil {
			return fmt.Errorf("module %d (%s): %w", i, cut(m.Name, longestName), err)
		}
	}
	return nil
}

// checkSamples reports numbers of samples that there cannot be.
func (b *Built) checkSamples(wanted bool) error {
	s := b.Samples
	if !wanted && s != (BuiltSamples{}) || wanted && (s.Train < 1 || s.HeldOut < 0 || s.Train > math.MaxInt32 || s.HeldOut > math.MaxInt32-s.Train) {
		return fmt.Errorf("%d samples to train on and %d to evaluate on, where samples are wanted: %t; expected 1 to %d of both together, or none", s.Train, s.HeldOut, wanted, math.MaxInt32)
	}
	return nil
}

// builtCheck is what was met of the modules so far.
type builtCheck struct {
	modules    map[string]bool
	parameters map[string]BuiltParameter
	buffers    map[string]bool
	elements   int // of all tensors
}

func (c *builtCheck) module(m BuiltModule) error {
	if err := checkText("name", m.Name, longestName); err != nil {
		return err
	}
	if c.modules[m.Name] {
		return fmt.Errorf("a second module %s, expected a name of its own", m.Name)
	}
	c.modules[m.Name] = true
	if err := checkText("type", m.Type, longestName); err != nil {
		return err
	}
	for _, p := range m.Parameters {
		if err := c.tensor("parameter", p.Name, p.Shape); err != nil {
			return err
		}
		if err := c.tied(p); err != nil {
			return err
		}
		c.parameters[p.Name] = p
	}
	for _, b := range m.Buffers {
		if err := c.tensor("running statistic", b.Name, b.Shape); err != nil {
			return err
		}
		c.buffers[b.Name] = true
	}
	return nil
}

func (c *builtCheck) tensor(what, name string, shape []int) error {
	if err := checkText("name of a "+what, name, longestName); err != nil {
		return err
	}
	if _, twice := c.parameters[name]; twice || c.buffers[name] {
		return fmt.Errorf("a second tensor %s, expected a name of its own", name)
	}
	n, err := checkShape(shape)
	if err != nil {
		return fmt.Errorf("%s %s: %w", what, name, err)
	}
	if c.elements += n; c.elements > mostElements {
		return fmt.Errorf("more than %d elements in all up to %s %s", mostElements, what, name)
	}
	return nil
}

// tied refuses a parameter that is the same as one that is not there, or another.
func (c *builtCheck) tied(p BuiltParameter) error {
	if p.TiedTo == "" {
		return nil
	}
	first, ok := c.parameters[p.TiedTo]
	switch {
	case !ok:
		return fmt.Errorf("parameter %s is tied to %.40q, expected a parameter in front of it", p.Name, p.TiedTo)
	case first.TiedTo != "":
		return fmt.Errorf("parameter %s is tied to %s, which is tied to %s: expected the first of them", p.Name, first.Name, first.TiedTo)
	case !slices.Equal(first.Shape, p.Shape) || first.Trained != p.Trained:
		return fmt.Errorf("parameter %s: shape %v, trained %v; it is tied to %s: shape %v, trained %v; expected the same", p.Name, p.Shape, p.Trained, first.Name, first.Shape, first.Trained)
	}
	return nil
}

// checkText refuses a text that is empty, too long, or not of characters that can be printed.
func checkText(what, text string, most int) error {
	if text == "" || len(text) > most {
		return fmt.Errorf("the %s has %d bytes, expected 1 to %d", what, len(text), most)
	}
	for _, r := range text {
		if !unicode.IsPrint(r) {
			return fmt.Errorf("the %s %q: expected characters that can be printed", what, cut(text, longestName))
		}
	}
	return nil
}

// checkShape is how many elements a tensor has.
func checkShape(shape []int) (int, error) {
	if len(shape) > mostDims {
		return 0, fmt.Errorf("%d dimensions, expected at most %d", len(shape), mostDims)
	}
	n := 1
	for _, d := range shape {
		if d < 1 {
			return 0, fmt.Errorf("shape %v: expected dimensions above 0", shape)
		}
		if d > mostElements/n {
			return 0, fmt.Errorf("shape %v: expected at most %d elements", shape, mostElements)
		}
		n *= d
	}
	return n, nil
}

func (p *Probe) check() error {
	if len(p.Inputs) == 0 {
		return errors.New("a dry run without inputs: expected at least one")
	}
	if p.Repeat < 1 || p.Repeat > mostRepeats {
		return fmt.Errorf("a dry run of %d repeats: expected 1 to %d", p.Repeat, mostRepeats)
	}
	for i, x := range p.Inputs {
		if err := checkTensor(ProbedTensor{x.Shape, x.Type}); err != nil {
			return fmt.Errorf("input %d of a dry run: %w", i, err)
		}
		if x.Limit < 0 || x.Limit > math.MaxInt32 {
			return fmt.Errorf("input %d of a dry run: a limit of %d, expected 0 to %d", i, x.Limit, math.MaxInt32)
		}
		if x.Gradient && x.Type != device.F32.String() {
			return fmt.Errorf("input %d of a dry run has a gradient and is of type %s, expected %v", i, x.Type, device.F32)
		}
	}
	return nil
}

func (p *Probe) tensors() (all []ProbedTensor) {
	for _, x := range p.Inputs {
		all = append(all, ProbedTensor{x.Shape, x.Type})
	}
	return all
}

// checkProbed refuses what modules that were given inputs cannot have done.
func checkProbed(modules []BuiltModule, inputs []ProbedTensor, probed []Probed) error {
	if len(probed) != len(modules) {
		return fmt.Errorf("a dry run of %d modules, expected the %d that were built", len(probed), len(modules))
	}
	for i, p := range probed {
		if err := p.check(inputs); err != nil {
			return fmt.Errorf("module %s: %w", modules[i].Name, err)
		}
		inputs = p.Outputs
	}
	return nil
}

func (p *Probed) check(inputs []ProbedTensor) error {
	same := func(a, b ProbedTensor) bool { return a.Type == b.Type && slices.Equal(a.Shape, b.Shape) }
	if !slices.EqualFunc(p.Inputs, inputs, same) {
		return fmt.Errorf("its inputs are %v, expected %v", p.Inputs, inputs)
	}
	if len(p.Outputs) == 0 || len(p.Outputs) != len(p.Differentiable) {
		return fmt.Errorf("%d outputs, of which %d are said to be differentiable or not: expected as many, at least 1", len(p.Outputs), len(p.Differentiable))
	}
	for i, y := range p.Outputs {
		if err := checkTensor(y); err != nil {
			return fmt.Errorf("output %d: %w", i, err)
		}
		if p.Differentiable[i] && y.Type != device.F32.String() {
			return fmt.Errorf("output %d is differentiable and of type %s, expected %v", i, y.Type, device.F32)
		}
	}
	if p.SavedBytes < 0 {
		return fmt.Errorf("saved_bytes is %d, expected 0 or more", p.SavedBytes)
	}
	for _, seconds := range []float64{p.Forward, p.Backward} {
		if !(seconds >= 0 && seconds <= mostSeconds) { // which NaN is not
			return fmt.Errorf("forward_seconds is %v and backward_seconds %v, expected 0 to %v", p.Forward, p.Backward, mostSeconds)
		}
	}
	return nil
}

func checkTensor(t ProbedTensor) error {
	if t.Type != device.F32.String() && t.Type != device.I32.String() {
		return fmt.Errorf("type %.40q, expected %v or %v", t.Type, device.F32, device.I32)
	}
	_, err := checkShape(t.Shape)
	return err
}
