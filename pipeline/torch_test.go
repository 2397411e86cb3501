package pipeline

import (
	"encoding/binary"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/avgpipe/avgpipe/elastic"
	"github.com/avgpipe/avgpipe/stage"
	"github.com/avgpipe/avgpipe/stage/device"
	"github.com/avgpipe/avgpipe/stage/model"
	"github.com/avgpipe/avgpipe/stage/stagetest"
)

const (
	torchSteps = 12
	// torchTolerance is relative: what float32 rounds in so many steps, of losses that PyTorch computes in float64. Methods differ by 1e-2.
	torchTolerance = 2e-6
)

// torchOptimizers are those that pipelines train with. Adam's epsilon is large, since it would turn the rounding noise of gradients that are 0 into
// steps of full size.
var torchOptimizers = map[string]struct {
	rate  float64
	ours  stage.Optimizer
	torch map[string]any
}{
	"momentum": {
		rate:  0.1,
		ours:  stage.Optimizer{Name: "sgd", Momentum: 0.9, WeightDecay: 0.1},
		torch: map[string]any{"kind": "sgd", "momentum": 0.9, "weight_decay": 0.1},
	},
	"adamw": {
		rate:  0.02,
		ours:  stage.Optimizer{Name: "adamw", Betas: []float64{0.9, 0.95}, Epsilon: 1e-4, WeightDecay: 0.1},
		torch: map[string]any{"kind": "adamw", "betas": []float64{0.9, 0.95}, "eps": 1e-4, "weight_decay": 0.1},
	},
}

// torchMethods are the averagings that are held against PyTorch.
var torchMethods = []struct {
	method string
	config elastic.Config
	clip   float64
}{
	{"allreduce", elastic.Config{Pipelines: 2}, 0},
	{"allreduce", elastic.Config{Pipelines: 3}, 0.4},
	{"localsgd", elastic.Config{Pipelines: 2, Tau: 3}, 0},
	{"localsgd", elastic.Config{Pipelines: 3, Tau: 2}, 0.4},
	{"diloco", elastic.Config{Pipelines: 2, Tau: 3, OuterRate: 0.7, OuterMomentum: 0.9}, 0},
	{"diloco", elastic.Config{Pipelines: 3, Tau: 2, OuterRate: 0.5, OuterMomentum: 0.6}, 0.4},
	{"pipesgd", elastic.Config{Pipelines: 2}, 0},
	{"sapipe", elastic.Config{Pipelines: 2, StaleLayers: 99}, 0},
	{"sapipe", elastic.Config{Pipelines: 2, StaleLayers: 3}, 0},
	{"sapipe", elastic.Config{Pipelines: 2, StaleLayers: 5, Prediction: elastic.PredictNothing}, 0},
	{"sapipe", elastic.Config{Pipelines: 3, StaleLayers: 99, Prediction: elastic.PredictPrevSync}, 0},
	{"sapipe", elastic.Config{Pipelines: 3, StaleLayers: 99, Prediction: elastic.PredictLocalPrevSync}, 0},
}

// torchCase and torchAnswer are what testdata/torch_averaging.py reads and writes.
type torchCase struct {
	Config        map[string]any         `json:"config"`
	Weights       map[string]torchTensor `json:"weights"`
	Batches       [][]torchBatch         `json:"batches"`  // [pipeline][step]
	HeldOut       []torchBatch           `json:"held_out"` // by round, from 0
	Method        string                 `json:"method"`
	Tau           int                    `json:"tau"`
	OuterRate     float64                `json:"outer_rate"`
	OuterMomentum float64                `json:"outer_momentum"`
	Late          int                    `json:"late"`
	Prediction    elastic.Prediction     `json:"prediction"` // "": none
	Optimizer     map[string]any         `json:"optimizer"`
	Rates         []float64              `json:"rates"` // of each step, and of the one after the last
	Clip          float64                `json:"clip"`  // 0: none

	name   string
	log    *modelLog
	config Config
}

type torchTensor struct {
	Shape  []int     `json:"shape"`
	Values []float32 `json:"values"`
}

type torchBatch struct {
	IDs    [][]int32 `json:"ids"` // [sample][position]
	Labels [][]int32 `json:"labels"`
}

type torchAnswer struct {
	Losses      [][]float64 `json:"losses"`      // [pipeline][step]
	Norms       [][]float64 `json:"norms"`       // the same; 0 where nothing is clipped
	Evaluations []float64   `json:"evaluations"` // of the center, by round
}

// torchBatchOf reads the samples of a batch, one in each micro-batch.
func torchBatchOf(t *testing.T, from Source, step uint64, micros, length int) (b torchBatch) {
	t.Helper()
	read := func(bytes []byte) []int32 {
		out := make([]int32, length)
		for i := range out {
			out[i] = int32(binary.NativeEndian.Uint32(bytes[4*i:])) //nolint:gosec // a token
		}
		return out
	}
	for m := range micros {
		ids, labels := make([]byte, 4*length), make([]byte, 4*length)
		if err := from.Fill(step, m, ids, labels); err != nil {
			t.Fatal(err)
		}
		b.IDs, b.Labels = append(b.IDs, read(ids)), append(b.Labels, read(labels))
	}
	return b
}

// torchRate falls, so that a step with the rate of another one is seen.
func torchRate(first float64, step uint64) float32 {
	return float32(first * math.Pow(0.93, float64(step)))
}

// torchWeights are larger than those that training starts with: a step is seen in the loss of the next one.
func torchWeights(m *model.Model) map[string]torchTensor {
	random, weights := rand.New(rand.NewPCG(3, 1)), map[string]torchTensor{}
	for _, p := range m.Params() {
		if p.TiedTo != "" {
			continue
		}
		values := make([]float32, p.Len())
		for i := range values {
			values[i] = float32(p.Init.Mean + 0.25*random.NormFloat64())
		}
		weights[p.Name] = torchTensor{p.Shape, values}
	}
	return weights
}

// newTorchCase makes a run of modelConfig's GPT-2 over two stages, and what PyTorch is to be asked about it.
func newTorchCase(t *testing.T, name, optimizer string, clip float64, c elastic.Config) *torchCase {
	t.Helper()
	method, err := elastic.NewMethod(name, c)
	if err != nil {
		t.Fatal(err)
	}
	o, c := torchOptimizers[optimizer], method.Config()
	q := &torchCase{
		Config: smallGPT2, Method: name, Tau: c.Tau, OuterRate: c.OuterRate, OuterMomentum: c.OuterMomentum, Optimizer: o.torch, Clip: clip,
		name: fmt.Sprintf("%s N%d tau%d clip%v %s", name, c.Pipelines, c.Tau, clip, optimizer), log: &modelLog{},
	}
	switch name {
	case "pipesgd":
		q.Late = 99
	case "sapipe":
		q.Late, q.name = c.StaleLayers, fmt.Sprintf("%s, %d late, %s", q.name, c.StaleLayers, c.Prediction)
		if c.Prediction != elastic.PredictNothing {
			q.Prediction = c.Prediction
		}
	}
	q.config = modelConfigBy(t, onHost, plan(t, "1f1b", 2, modelMicros), method, device.F32, q.log, func(s *stage.Config) {
		s.Optimizer = o.ours
		q.Weights = torchWeights(s.Model)
	})
	q.config.ClipNorm, q.config.FinalRound = clip, uint64(torchSteps/c.Tau)
	q.config.LearningRate = func(step uint64) float32 { return torchRate(o.rate, step) }
	q.config.Evaluation.Due = func(uint64) bool { return true }
	for i := range q.config.Stages {
		build := q.config.Stages[i].Build
		q.config.Stages[i].Build = func(p int) (stage.Stage, error) {
			s, err := build(p)
			if err != nil {
				return nil, err
			}
			return s, s.(*stage.Computed).Load(func(name string) ([]int, []float32, bool, error) {
				x, ok := q.Weights[name]
				return x.Shape, x.Values, ok, nil
			})
		}
	}
	length := smallGPT2["n_positions"].(int)
	for p := range c.Pipelines {
		var steps []torchBatch
		for step := range uint64(torchSteps) {
			steps = append(steps, torchBatchOf(t, tokens{p}, step, modelMicros, length))
		}
		q.Batches = append(q.Batches, steps)
	}
	for round := range q.config.FinalRound + 1 {
		q.HeldOut = append(q.HeldOut, torchBatchOf(t, tokens{99}, round, q.config.Evaluation.MicroBatches, length))
	}
	for step := range uint64(torchSteps + 1) {
		q.Rates = append(q.Rates, float64(torchRate(o.rate, step)))
	}
	return q
}

// check trains, and holds every loss, gradient norm and evaluation against those of PyTorch.
func (q *torchCase) check(t *testing.T, want torchAnswer) {
	t.Helper()
	g, err := New(q.config)
	if err != nil {
		t.Fatal(err)
	}
	if err := g.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	worst := 0.0
	compare := func(what string, found, want float64) {
		off := math.Abs(found - want)
		if worst = max(worst, off/math.Abs(want)); !(off <= torchTolerance*math.Abs(want)) {
			t.Errorf("%s is %v, with PyTorch %v", what, found, want)
		}
	}
	for p := range q.config.Pipelines {
		for step := range torchSteps {
			s := q.log.steps[[2]uint64{uint64(p), uint64(step)}]
			compare(fmt.Sprintf("pipeline %d, step %d: the loss", p, step), s.Loss, want.Losses[p][step])
			if norm := want.Norms[p][step]; norm != 0 || s.GradientNorm != 0 {
				compare(fmt.Sprintf("pipeline %d, step %d: the gradient norm", p, step), s.GradientNorm, norm)
			}
		}
	}
	if len(q.log.evals) != len(want.Evaluations) {
		t.Fatalf("%d evaluations, want %d", len(q.log.evals), len(want.Evaluations))
	}
	for _, e := range q.log.evals {
		compare(fmt.Sprintf("round %d: the loss of the center", e.Round), e.Score.MeanLoss(), want.Evaluations[e.Round])
	}
	t.Logf("largest relative difference %.2g, tolerance %.1g", worst, torchTolerance)
}

// TestAveragingTrainsAsPyTorchsOwn holds pipelines that average against replicas that PyTorch trains: by DistributedDataParallel, by PostLocalSGDOptimizer, and
// where it has no such method by its optimizers alone.
func TestAveragingTrainsAsPyTorchsOwn(t *testing.T) {
	var asked []*torchCase
	methods := torchMethods
	if raced {
		methods = methods[:1]
	}
	for _, m := range methods {
		for _, optimizer := range slices.Sorted(maps.Keys(torchOptimizers)) {
			asked = append(asked, newTorchCase(t, m.method, optimizer, m.clip, m.config))
		}
	}
	var answers []torchAnswer
	stagetest.PyTorch(t, "testdata/torch_averaging.py", asked, &answers)
	for i, q := range asked {
		t.Run(q.name, func(t *testing.T) { q.check(t, answers[i]) })
	}
}
