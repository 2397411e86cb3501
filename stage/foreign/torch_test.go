package foreign_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/avgpipe/avgpipe/stage"
	"github.com/avgpipe/avgpipe/stage/device/pick"
	"github.com/avgpipe/avgpipe/stage/foreign"
	"github.com/avgpipe/avgpipe/stage/model"
	"github.com/avgpipe/avgpipe/stage/stagetest"
)

const (
	micros  = 4
	samples = 8
	steps   = 50
	seed    = 7
)

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

func batches(inputs, classes int) (all []plainBatch) {
	r := rand.New(rand.NewPCG(1, 2))
	for range steps {
		var b plainBatch
		for range micros * samples {
			y := r.IntN(classes)
			b.Y = append(b.Y, int32(y))
			for i := range inputs {
				b.X = append(b.X, float32(r.NormFloat64()+float64((y+i)%3)))
			}
		}
		all = append(all, b)
	}
	return all
}

// open starts an interpreter that has built and tried a model.
func open(t *testing.T, program foreign.Program, input foreign.ProbeInput) (*foreign.Device, *foreign.Process, foreign.Built, []model.Module) {
	t.Helper()
	p, err := foreign.Start(t.Context(), foreign.Config{Interpreter: stagetest.Python(t), Log: func(stream, line string) { t.Log(stream, line) }})
	if err != nil {
		t.Fatal(err)
	}
	on, _, err := pick.Open("cpu", pick.Config{Threads: 1})
	if err != nil {
		t.Fatal(err)
	}
	d := foreign.Over(p, on)
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	built, err := p.Build(program, seed)
	if err != nil {
		t.Fatal(err)
	}
	probed, err := p.Probe(foreign.Probe{Inputs: []foreign.ProbeInput{input}, Seed: seed})
	if err != nil {
		t.Fatal(err)
	}
	modules, err := foreign.Modules(built, probed, input.Shape[0])
	if err != nil {
		t.Fatal(err)
	}
	return d, p, built, modules
}

// trainOn trains a pipeline from what was built, and returns by how much a loss differs from that of the plain program at most, as a share of it.
func trainOn(t *testing.T, p *stagetest.Pipeline, process *foreign.Process, built foreign.Built, data []plainBatch, losses []float64, rate float32) (worst float64) {
	t.Helper()
	for _, s := range p.Stages {
		if err := s.Load(process.Lookup(built)); err != nil {
			t.Fatal(err)
		}
	}
	for i, b := range data {
		loss, norm, err := p.Run(stagetest.Batch{Pixels: b.X, IDs: b.IDs, Targets: b.Y})
		if err != nil {
			t.Fatal(err)
		}
		worst = max(worst, math.Abs(loss-losses[i])/losses[i])
		if err := p.Update(rate, norm, 0); err != nil {
			t.Fatal(err)
		}
	}
	return worst
}

// TestTrainsAsPlainPyTorch trains a model with dropout, batch norm and writes in place by stages, and as a plain program does. With the user's loss its
// parameters and running statistics have the bits of the plain program's, if that rounds its steps as ours does.
func TestTrainsAsPlainPyTorch(t *testing.T) {
	const inputs, classes, rate = 12, 5, 0.1
	program := foreign.Program{Path: "testdata/mlp.py", Function: "build", Args: map[string]any{"width": 32}}
	data := batches(inputs, classes)
	wants := map[string]plainAnswer{}
	for _, optimizer := range []string{"Rounded", "SGD"} {
		var want plainAnswer
		stagetest.PyTorch(t, "testdata/plain.py", plainRequest{program.Path, program.Function, program.Args, seed, optimizer, map[string]any{"lr": rate}, micros, samples, data, false, nil}, &want)
		wants[optimizer] = want
	}
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
		t.Run(fmt.Sprintf("%d stages, halves %v, recompute %s, loss %s, as %s", c.stages, c.halves, c.recompute, c.loss, c.as), func(t *testing.T) {
			want := wants[c.as]
			program := program
			program.Loss = c.loss
			d, process, built, modules := open(t, program, foreign.ProbeInput{Shape: []int{samples, inputs}, Type: "f32"})
			m, err := (&model.ModulesConfig{Task: model.Images, Sequence: 1, UserLoss: c.loss != "", Modules: modules}).Build()
			if err != nil {
				t.Fatal(err)
			}
			p := stagetest.NewPipeline(t, stagetest.PipelineConfig{
				Device: d, Model: m, Stages: c.stages, Samples: samples, Micros: micros, Seed: seed, Halves: c.halves, Recompute: c.recompute, Optimizer: stage.Optimizer{Name: "sgd"},
			})
			worst := trainOn(t, p, process, built, data, want.Losses, rate)
			away, others := 0.0, 0
			for name, found := range p.Parameters() {
				for i, x := range found {
					if plain := want.Values[name][i]; float64(x) != plain {
						others++
						away = max(away, math.Abs(float64(x)-plain))
					}
				}
			}
			t.Logf("losses from %.4f to %.4f, largest difference %.2g; %d parameters differ, by %.2g at most", want.Losses[0], want.Losses[steps-1], worst, others, away)
			if worst > 1e-6 || away > 1e-5 || c.loss != "" && c.as == "Rounded" && others > 0 {
				t.Errorf("it did not train as the plain program")
			}
		})
	}
}
