package foreign_test

import (
	"cmp"
	"flag"
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/avgpipe/avgpipe/stage"
	"github.com/avgpipe/avgpipe/stage/device"
	"github.com/avgpipe/avgpipe/stage/device/pick"
	"github.com/avgpipe/avgpipe/stage/foreign"
	"github.com/avgpipe/avgpipe/stage/foreign/foreigntest"
	"github.com/avgpipe/avgpipe/stage/model"
	"github.com/avgpipe/avgpipe/stage/stagetest"
)

const (
	micros  = 4
	samples = 8
	seed    = 7
)

// steps is how many steps models are trained for; 50 in the long form.
var steps = flag.Int("steps", 12, "steps that models are trained for")

// plainRequest and plainAnswer are what testdata/plain.py reads and writes.
type plainRequest struct {
	Path      string         `json:"path"`
	Function  string         `json:"function"`
	Args      map[string]any `json:"args"`
	Seed      uint64         `json:"seed"`
	Optimizer string         `json:"optimizer"`
	Options   map[string]any `json:"options"`
	Micros    int            `json:"micros"`
	Samples   int            `json:"samples"`
	Batches   []plainBatch   `json:"batches"`
	Digests   bool           `json:"digests"`
	Cut       []string       `json:"cut"` // of one module; null: build returns a Sequential or a list
	// Loss is a function of the file; "": loss. Own are samples that the program makes; then batches have their numbers.
	Loss string           `json:"loss"`
	Own  *foreign.Samples `json:"own"`
}

type plainBatch struct {
	X   []float32 `json:"x"`
	IDs []int32   `json:"ids"` // instead of X
	Y   []int32   `json:"y"`
}

type plainAnswer struct {
	Losses  []float64            `json:"losses"`
	Values  map[string][]float64 `json:"values"`
	Digests map[string]string    `json:"digests"`
}

// plainTorch is a plain program of PyTorch.
const plainTorch = "testdata/plain.py"

// plain is what a plain program gives for each of the requests, one after the other in one process.
func plain(t *testing.T, script string, requests ...plainRequest) (answers []plainAnswer) {
	t.Helper()
	stagetest.PyTorch(t, script, requests, &answers)
	return answers
}

// interpreter builds one model after the other. It computes all else on another device.
type interpreter struct {
	*foreign.Process
	on device.Device
}

// newInterpreter starts an interpreter, which is closed with the test. Nil: the test's log is told what it writes.
func newInterpreter(t *testing.T, log func(stream, line string)) *interpreter {
	t.Helper()
	return newInterpreterOn(t, "", log)
}

// newInterpreterOn starts one whose modules compute on a device, as foreign.Config has it.
func newInterpreterOn(t *testing.T, modulesOn string, log func(stream, line string)) *interpreter {
	t.Helper()
	c := foreign.Config{Interpreter: stagetest.Python(t), Device: modulesOn, Log: log}
	if modulesOn == "cuda" {
		c.Interpreter, c.GPU = foreigntest.PretendGPU(t), "GPU-0"
	}
	p := start(t, c)
	on, _, err := pick.Open("cpu", pick.Config{Threads: 1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := on.Close(); err != nil {
			t.Error(err)
		}
	})
	return &interpreter{p, on}
}

// open builds and tries a model.
func (i *interpreter) open(t *testing.T, program foreign.Program, input foreign.ProbeInput) (*foreign.Device, foreign.Built, []model.Module) {
	t.Helper()
	built, err := i.Build(program, seed)
	if err != nil {
		t.Fatal(err)
	}
	probed, err := i.Probe(foreign.Probe{Inputs: []foreign.ProbeInput{input}, Seed: seed})
	if err != nil {
		t.Fatal(err)
	}
	modules, err := foreign.Modules(built, []foreign.ProbeInput{input}, probed, input.Shape[0])
	if err != nil {
		t.Fatal(err)
	}
	return foreign.Over(i.Process, i.on), built, modules
}

// trainOn trains a pipeline from what was built, and returns by how much a loss differs from that of the plain program at most, as a share of it.
func (i *interpreter) trainOn(t *testing.T, p *stagetest.Pipeline, built foreign.Built, data []plainBatch, losses []float64, rate float32) (worst float64) {
	t.Helper()
	for _, s := range p.Stages {
		if err := s.Load(i.Lookup(built)); err != nil {
			t.Fatal(err)
		}
	}
	for at, b := range data {
		loss, norm, err := p.Run(stagetest.Batch{Pixels: b.X, IDs: b.IDs, Targets: b.Y})
		if err != nil {
			t.Fatal(err)
		}
		worst = max(worst, math.Abs(loss-losses[at])/losses[at])
		if err := p.Update(rate, norm, 0); err != nil {
			t.Fatal(err)
		}
	}
	return worst
}

// twice is a model that a plain program trains, and that is trained here by stages.
type twice struct {
	name      string
	of        kind
	program   foreign.Program
	optimizer string                   // of the plain program; "": Rounded
	pipeline  stagetest.PipelineConfig // what is not the same of all
	exact     bool                     // parameters and running statistics have the same bits
}

// trainTwice trains models, by a plain program and here, in one interpreter for each side; and here again with copies of what the arena has, on the processor and on a
// pretended GPU, which have the same bits.
func trainTwice(t *testing.T, script string, all []twice) {
	t.Helper()
	const rate = 0.1
	var requests []plainRequest
	for _, c := range all {
		requests = append(requests, plainRequest{
			c.program.Path, c.program.Function, c.program.Args, seed, cmp.Or(c.optimizer, "Rounded"), map[string]any{"lr": rate}, micros, samples, c.of.data, false, c.program.Cut, c.program.Loss, c.program.Samples,
		})
	}
	wants, python := plain(t, script, requests...), newInterpreter(t, nil)
	copies := map[string]*interpreter{"cpu": newInterpreterOn(t, "cpu", nil)}
	if script == plainTorch {
		copies["cuda"] = newInterpreterOn(t, "cuda", nil)
	}
	for at, c := range all {
		t.Run(c.name, func(t *testing.T) {
			found, cut := c.train(t, python, wants[at], rate)
			for on, copied := range copies {
				again, other := c.train(t, copied, wants[at], rate)
				for name, values := range again {
					// Cuts follow times, and where parameters are tied across stages, so does the order in which gradients are added.
					if (c.exact || slices.Equal(cut, other)) && !slices.Equal(values, found[name]) {
						t.Errorf("%s has other bits with copies on %s", name, on)
					}
				}
			}
		})
	}
}

// train trains a model as a plain program did, and returns what became of its parameters, and where it was cut.
func (c *twice) train(t *testing.T, python *interpreter, want plainAnswer, rate float32) (found map[string][]float32, cut []stage.Range) {
	t.Helper()
	d, built, modules := python.open(t, c.program, c.of.input)
	config, pipeline := c.of.config, c.pipeline
	config.Modules = modules
	m, err := config.Build()
	if err != nil {
		t.Fatal(err)
	}
	pipeline.Device, pipeline.Model, pipeline.Samples, pipeline.Micros, pipeline.Seed, pipeline.Optimizer = d, m, samples, micros, seed, stage.Optimizer{Name: "sgd"}
	p := stagetest.NewPipeline(t, pipeline)
	worst := python.trainOn(t, p, built, c.of.data, want.Losses, rate)
	away, others := 0.0, 0
	found = p.Parameters()
	for _, module := range built.Modules {
		for _, p := range module.Parameters {
			if !p.Trained { // it is not among those that training changes
				delete(want.Values, p.Name)
			}
		}
	}
	for name, values := range want.Values {
		if len(found[name]) != len(values) {
			t.Fatalf("%s has %d values, expected %d", name, len(found[name]), len(values))
		}
		for i, x := range found[name] {
			if float64(x) != values[i] {
				others++
				away = max(away, math.Abs(float64(x)-values[i]))
			}
		}
	}
	t.Logf("losses from %.4f to %.4f, largest difference %.2g; %d parameters differ, by %.2g at most", want.Losses[0], want.Losses[*steps-1], worst, others, away)
	if worst > 1e-6 || away > 1e-5 || c.exact && others > 0 {
		t.Error("it did not train as the plain program")
	}
	if err := p.Close(); err != nil {
		t.Error(err)
	}
	return found, p.Ranges
}

// TestTrainsAsPlainPyTorch trains a model with dropout, batch norm and writes in place by stages, and as a plain program does. With the user's loss its
// parameters and running statistics have the bits of the plain program's, if that rounds its steps as ours does.
func TestTrainsAsPlainPyTorch(t *testing.T) {
	var all []twice
	for _, c := range []struct {
		stages    int
		halves    bool
		recompute stage.Recompute
		loss      string
		as        string
	}{
		{1, false, "", "loss", "Rounded"},
		{2, false, "", "loss", "Rounded"},
		{4, false, "", "loss", "Rounded"},
		{2, true, "", "loss", "Rounded"},
		{2, false, stage.RecomputeBlock, "loss", "Rounded"},
		{3, false, stage.RecomputeFull, "loss", "Rounded"},
		{2, false, "", "loss", "SGD"},
		{2, false, "", "", "Rounded"},
	} {
		of := images()
		of.config.UserLoss = c.loss != ""
		all = append(all, twice{
			name: fmt.Sprintf("%d stages, halves %v, recompute %s, loss %s, as %s", c.stages, c.halves, c.recompute, c.loss, c.as), of: of, optimizer: c.as,
			program:  foreign.Program{Path: "testdata/mlp.py", Function: "build", Args: map[string]any{"width": 32}, Loss: c.loss},
			pipeline: stagetest.PipelineConfig{Stages: c.stages, Halves: c.halves, Recompute: c.recompute}, exact: c.loss != "" && c.as == "Rounded",
		})
	}
	trainTwice(t, plainTorch, all)
}
