// Package foreigntest checks that a stub keeps to the protocol of package foreign, in whatever language it is written and whatever framework it
// is for. docs/worker-protocol.md says what the protocol is.
package foreigntest

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/avgpipe/avgpipe/stage/device"
	"github.com/avgpipe/avgpipe/stage/device/ref"
	"github.com/avgpipe/avgpipe/stage/foreign"
)

// Stub is what is checked.
type Stub struct {
	Config foreign.Config
	// Program builds four modules, whose names and initial values are free, of samples of two numbers:
	//
	//	y = W x + b                        W of shape (3, 2) and b of (3)
	//	y = x * m, m 0 or 2 at random      in training; y = x in evaluation; it has a running statistic of shape (3), which in training becomes
	//	                                   half of what it was and half of the mean of x over the samples, and is 0 at first
	//	y = s * (V x)                      V of shape (3, 3), and s of shape (1), which is frozen
	//	y = V x                            the same V; an error of the program where any of x is above 1e6
	//
	// It names a loss: minus the mean of the logits at the targets.
	Program foreign.Program
}

const samples = 4

// tolerance of a difference from what was computed here, in parts of the larger.
const tolerance = 1e-3

// Run checks a stub, in one process that builds the modules anew for each check.
func Run(t *testing.T, s Stub) {
	t.Helper()
	p, err := foreign.Start(t.Context(), s.Config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	for _, c := range []struct {
		name  string
		check func(*testing.T, *bench)
	}{
		{"build describes the modules, and their values follow from the seed", checkBuild},
		{"modules compute with parameters where they lie", checkEvaluation},
		{"random numbers follow from the seed of a forward", checkRandomness},
		{"modules that are run one by one give what they give together", checkSplit},
		{"a backward adds the gradient of the loss to the gradients of parameters", checkGradients},
		{"backwards run in any order, and a forward that is dropped has none", checkKept},
		{"passes that are repeated have other seeds and the values of now", checkAgain},
		{"running statistics go on from forward to forward of a batch", checkStatistics},
		{"the loss is that of the program, and has a gradient", checkLoss},
		{"a stub goes on after an error", checkErrors},
	} {
		t.Run(c.name, func(t *testing.T) { c.check(t, build(t, p, s.Program)) })
	}
}

// bench is a process that has built the modules.
type bench struct {
	*testing.T
	process *foreign.Process
	device  *foreign.Device
	program foreign.Program
	built   foreign.Built
	shapes  []device.ModuleTensor // of what goes into each module, and of what comes out of the last
	random  *rand.Rand
}

func build(t *testing.T, p *foreign.Process, program foreign.Program) *bench {
	t.Helper()
	program.Inputs = []foreign.ProbeInput{{Shape: []int{samples, 2}, Type: "f32"}}
	built, err := p.Build(program, 1)
	b := &bench{T: t, process: p, device: foreign.Over(p, ref.New()), program: program, built: built, random: rand.New(rand.NewPCG(1, 2))} //nolint:gosec // of a test
	if err != nil {
		t.Fatal(err)
	}
	probed, err := p.Probe(foreign.Probe{Inputs: program.Inputs, Seed: 1})
	if err != nil {
		t.Fatal(err)
	}
	b.shapes = []device.ModuleTensor{{Shape: []int{samples, 2}, Type: device.F32}}
	for _, m := range probed {
		b.shapes = append(b.shapes, device.ModuleTensor{Shape: m.Outputs[0].Shape, Type: device.F32, Differentiable: m.Differentiable[0]})
	}
	if found, expected := fmt.Sprint(b.shapes), "[{[4 2] f32 false} {[4 3] f32 true} {[4 3] f32 true} {[4 3] f32 true} {[4 3] f32 true}]"; found != expected {
		t.Fatalf("a dry run gives %s, expected %s", found, expected)
	}
	return b
}

// tensor is memory of the arena with values.
func (b *bench) tensor(values ...float32) device.Mem {
	b.Helper()
	m, err := b.device.Alloc(device.F32, len(values))
	if err != nil {
		b.Fatal(err)
	}
	b.device.Upload(m, device.FloatBytes(values))
	return m
}

// numbers are random.
func (b *bench) numbers(n int) []float32 {
	all := make([]float32, n)
	for i := range all {
		all[i] = float32(b.random.NormFloat64())
	}
	return all
}

// values are those of a tensor, after all that was asked for.
func (b *bench) values(m device.Mem) []float32 {
	b.Helper()
	all := make([]float32, m.Len())
	b.device.Download(device.FloatBytes(all), m)
	if err := b.device.Synchronize(); err != nil {
		b.Fatal(err)
	}
	return all
}

// set is where the parameters of consecutive modules lie, as ModulesForward has them.
type set struct {
	first, last         int
	params, grads, sums []device.Mem
	byName              map[string]int
}

// set has memory of the parameters of modules, with the values that they were built with, for training.
func (b *bench) set(first, last int) *set {
	b.Helper()
	s := &set{first: first, last: last, byName: map[string]int{}}
	add := func(name string, shape []int) (values []float32) {
		values, err := b.process.Read(name, device.ModuleTensor{Shape: shape}.Len())
		if err != nil {
			b.Fatal(err)
		}
		s.byName[name] = len(s.params)
		return values
	}
	for _, m := range b.built.Modules[first:last] {
		for _, p := range m.Parameters {
			if at, ok := s.byName[p.TiedTo]; ok {
				s.params, s.grads, s.sums = append(s.params, s.params[at]), append(s.grads, s.grads[at]), append(s.sums, device.Mem{})
				continue
			}
			values, grad := add(p.Name, p.Shape), device.Mem{}
			if p.Trained {
				grad = b.tensor(make([]float32, len(values))...)
			}
			s.params, s.grads, s.sums = append(s.params, b.tensor(values...)), append(s.grads, grad), append(s.sums, device.Mem{})
		}
		for _, r := range m.Buffers {
			values := add(r.Name, r.Shape)
			s.params, s.grads, s.sums = append(s.params, b.tensor(values...)), append(s.grads, device.Mem{}), append(s.sums, b.tensor(values...))
		}
	}
	return s
}

// modules says of modules what operations on them do.
func (b *bench) modules(s *set) device.Modules {
	of := device.Modules{First: s.first, Inputs: b.shapes[s.first : s.first+1], Outputs: b.shapes[s.last : s.last+1]}
	for _, m := range b.built.Modules[s.first:s.last] {
		of.Streams = append(of.Streams, device.StreamOf(m.Name))
	}
	return of
}

// pass says how a forward runs.
type pass struct {
	key               uint64
	evaluates, counts bool
	begins            bool
	keep              device.Mem
}

func (b *bench) forward(s *set, x device.Mem, p pass) (y device.Mem) {
	b.Helper()
	f := b.forwardOf(s, x, p)
	b.device.Do(f)
	return f.Out[0]
}

// forwardOf is a forward with memory for what it gives.
func (b *bench) forwardOf(s *set, x device.Mem, p pass) *device.ModulesForward {
	b.Helper()
	y := b.tensor(slices.Repeat([]float32{7}, b.shapes[s.last].Len())...) // not what is expected
	f := &device.ModulesForward{
		Out: []device.Mem{y}, Sums: s.sums, Keep: p.keep, In: []device.Mem{x}, Params: s.params, Grads: s.grads, Modules: b.modules(s),
		Training: !p.evaluates, Counts: p.counts, By: device.ModuleArgs{Key: p.key, Begins: p.begins},
	}
	if p.evaluates {
		f.Sums, f.Grads = make([]device.Mem, len(s.params)), make([]device.Mem, len(s.params))
	}
	return f
}

func (b *bench) keep() device.Mem {
	b.Helper()
	m, err := b.device.Alloc(device.I32, 1)
	if err != nil {
		b.Fatal(err)
	}
	return m
}

// backward returns the gradient of the input, unless that is the samples.
func (b *bench) backward(s *set, keep, dy device.Mem) (dx device.Mem) {
	b.Helper()
	if b.shapes[s.first].Differentiable {
		dx = b.tensor(slices.Repeat([]float32{7}, b.shapes[s.first].Len())...)
	}
	b.device.Do(&device.ModulesBackward{DIn: []device.Mem{dx}, Grads: s.grads, Keep: keep, DOut: []device.Mem{dy}, Params: s.params, Modules: b.modules(s)})
	return dx
}

// refused fails unless the process has refused what was asked for last.
func (b *bench) refused(what string) {
	b.Helper()
	_ = b.failure(what)
}

// failure is the error with which the process answered what was asked for last.
func (b *bench) failure(what string) *foreign.ProgramError {
	b.Helper()
	err := b.device.Synchronize()
	of, ok := errors.AsType[*foreign.ProgramError](err)
	if !ok {
		b.Fatalf("%s: found %v, expected an error of the program", what, err)
	}
	return of
}

// near fails unless values are almost as expected.
func (b *bench) near(what string, found, expected []float32) {
	b.Helper()
	for i, x := range found {
		y := expected[i]
		if away := math.Abs(float64(x - y)); !(away <= tolerance*max(1, math.Abs(float64(x)), math.Abs(float64(y)))) {
			b.Errorf("%s: element %d is %v, expected %v", what, i, x, y)
			return
		}
	}
}

// same fails unless values are equal, or are not when they are not to be.
func (b *bench) same(what string, found, expected []float32, equal bool) {
	b.Helper()
	if slices.Equal(found, expected) != equal {
		b.Errorf("%s: found %v and %v, expected equal ones: %v", what, found, expected, equal)
	}
}
