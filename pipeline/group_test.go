package pipeline

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/avgpipe/avgpipe/elastic"
	"github.com/avgpipe/avgpipe/schedule"
	"github.com/avgpipe/avgpipe/stage"
	"github.com/avgpipe/avgpipe/stage/flat"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// run is one training run of fakes, and what came of it.
type run struct {
	schedule                  string
	grid                      string // the plan instead of schedule's
	stages, pipelines, micros int
	by                        string            // the averaging, one of averagings; "": predicted
	precision                 elastic.Precision // of messages between groups; "": f32
	groups                    int               // with a precision, how many there are
	was                       string            // the averaging of the rounds up to the one at, where that was another
	at                        uint64
	tau                       int
	across                    int // batches of a round that a plan with updates runs on across; 0: 1
	clip                      float64
	tied                      int
	rounds                    uint64
	jitter                    time.Duration
	local                     []int // stages of this group; nil for all
	change                    func(c *Config)
	prepare                   func(f *fake, pipeline int)

	mu     sync.Mutex
	fakes  map[[2]int]*fake // by pipeline and stage
	losses map[[2]uint64]float64
	snaps  map[uint64]map[int]*Snapshot // by round and stage: deep copies
	evals  map[uint64]Evaluation
	shards map[int]flat.Host // the centers at the end
}

func plan(t testing.TB, name string, stages, micros int) schedule.Plan {
	t.Helper()
	p, _, err := schedule.Generate(name, schedule.Request{Devices: stages, MicroBatches: micros})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func rate(step uint64) float32 { return 0.05 / float32(1+step%7) }

// config is the configuration of the group that runs r.
func (r *run) config(t testing.TB) Config {
	t.Helper()
	r.fakes, r.losses = map[[2]int]*fake{}, map[[2]uint64]float64{}
	r.snaps, r.evals, r.shards = map[uint64]map[int]*Snapshot{}, map[uint64]Evaluation{}, map[int]flat.Host{}
	c := Config{
		Generation: 3, Plan: r.plan(t), MicroBatches: r.micros, Pipelines: r.pipelines,
		Method: r.method(), ClipNorm: r.clip, LearningRate: rate, FinalRound: r.rounds,
		Events: Events{OnStep: r.onStep, OnSnapshot: r.onSnapshot, OnEvaluated: r.onEvaluated},
	}
	local := r.local
	if local == nil {
		for k := range r.stages {
			local = append(local, k)
		}
	}
	slots, placement := schedule.InFlightByStage(c.Plan), c.Plan.Placement()
	busy := make([]atomic.Int32, len(c.Plan))
	for _, k := range local {
		c.Stages = append(c.Stages, r.stageConfig(k, slots[k], &busy[placement[k]]))
	}
	if r.change != nil {
		r.change(&c)
	}
	return c
}

func (r *run) plan(t testing.TB) schedule.Plan {
	t.Helper()
	if r.grid == "" {
		p, _, err := schedule.Generate(r.schedule, schedule.Request{Devices: r.stages, MicroBatches: r.micros, RoundBatches: r.across})
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	p, err := schedule.Parse(r.grid)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func (r *run) stageConfig(k, slots int, busy *atomic.Int32) StageConfig {
	predicts := r.method().Needs().Predicts
	return StageConfig{
		Index: k, Layout: r.layout(k),
		Build: func(p int) (stage.Stage, error) {
			f := newFake(k, r.stages)
			if predicts {
				f.predicted = slices.Clone(f.params)
			}
			f.slots, f.tied, f.jitter, f.busy = slots, r.tied, r.jitter, busy
			if k == 0 || k == r.stages-1 {
				copy(f.params[:r.tied], newFake(0, r.stages).params) // tied copies start equal
				if predicts {
					copy(f.predicted, f.params)
				}
			}
			if r.prepare != nil {
				r.prepare(f, p)
			}
			r.mu.Lock()
			defer r.mu.Unlock()
			r.fakes[[2]int{p, k}] = f
			return f, nil
		},
		Source:           func(p int) Source { return data{p} },
		EvaluationSource: data{99},
	}
}

// layout is that of a stage of two layers, of which the second lies first, behind what may be tied to the first stage's.
func (r *run) layout(k int) elastic.Layout {
	n, tied := len(newFake(k, r.stages).params), 0
	var l elastic.Layout
	if r.tied > 0 && (k == 0 || k == r.stages-1) {
		tied = r.tied
		l = append(l, elastic.Run{Range: flat.Range{To: tied}})
	}
	return append(l, elastic.Run{Range: flat.Range{From: tied, To: 4}, Layer: 2*k + 1, Trained: 2*k + 1}, elastic.Run{Range: flat.Range{From: 4, To: n}, Layer: 2 * k, Trained: 2 * k})
}

func (r *run) onStep(s StepReport) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.losses[[2]uint64{uint64(s.Pipeline), s.Step}] = s.Loss
}

func (r *run) onEvaluated(e Evaluation) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.evals[e.Round] = e
}

// onSnapshot keeps a copy: the memory is the group's.
func (r *run) onSnapshot(s *Snapshot) {
	c := clone(s)
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.snaps[s.Round] == nil {
		r.snaps[s.Round] = map[int]*Snapshot{}
	}
	r.snaps[s.Round][s.Stage] = c
}

// clone copies a snapshot, whose memory is its consumer's only for the time of a call.
func clone(s *Snapshot) *Snapshot {
	c := *s
	c.Center, c.State, c.Pipelines = slices.Clone(s.Center), clones(s.State), nil
	for _, p := range s.Pipelines {
		p.Parameters, p.State = slices.Clone(p.Parameters), clones(p.State)
		p.Predicted, p.Message, p.Residual = slices.Clone(p.Predicted), slices.Clone(p.Message), slices.Clone(p.Residual)
		c.Pipelines = append(c.Pipelines, p)
	}
	return &c
}

func clones(vectors [][]float32) (all [][]float32) {
	for _, v := range vectors {
		all = append(all, slices.Clone(v))
	}
	return all
}

// train runs the group to its end.
func (r *run) train(t testing.TB) {
	t.Helper()
	g, err := New(r.config(t))
	if err != nil {
		t.Fatal(err)
	}
	if err := g.Run(context.Background()); err != nil {
		t.Fatal(err)
	}
	r.collect(g)
}

func (r *run) collect(g *Group) {
	for _, d := range g.stages {
		r.shards[d.config.Index] = d.shard.weights().(flat.Host)
	}
}

// sequential computes what the run must compute, with no plan, link, executor or state center: stage after stage, micro-batch
// after micro-batch, pipeline after pipeline, and the averaging rules written out.
type sequential struct {
	fakes   [][]*fake // by pipeline, stage
	centers []flat.Host
	kept    []flat.Host          // by stage: what the method goes on with beside weights; nil of one that keeps nothing
	earlier [][]flat.Host        // by pipeline, stage: the gradient of the step before, of methods that predict
	updates []uint64             // by stage: that optimizers have taken
	lost    map[[2]int]flat.Host // by pipeline and stage: what rounding has left out of messages
	losses  map[[2]uint64]float64
	round   uint64 // in progress
	// synchronous says, by stage, whether the next round is by the bound of the drift, and changes after which rounds that has changed.
	synchronous map[int]bool
	changes     map[int][]uint64
	// versions are, by pipeline and stage, all that its weights have been since pipelines drained, with updates inside of batches.
	versions [][][]flat.Host
}

func (r *run) sequential(t testing.TB) *sequential {
	t.Helper()
	s := &sequential{losses: map[[2]uint64]float64{}, synchronous: map[int]bool{}, changes: map[int][]uint64{}, lost: map[[2]int]flat.Host{}, versions: make([][][]flat.Host, r.pipelines)}
	for range r.pipelines {
		var stages []*fake
		for k := range r.stages {
			f := newFake(k, r.stages)
			f.tied = r.tied
			if k == 0 || k == r.stages-1 {
				copy(f.params[:r.tied], newFake(0, r.stages).params)
			}
			if r.before().method().Needs().Predicts {
				f.predicted = slices.Clone(f.params)
			}
			stages = append(stages, f)
		}
		s.fakes = append(s.fakes, stages)
	}
	for k := range r.stages {
		s.centers = append(s.centers, slices.Clone(s.fakes[0][k].params))
		s.kept = append(s.kept, flat.NewHost(len(s.centers[k])))
	}
	s.updates = make([]uint64, r.stages)
	tau := uint64(max(r.tau, 1))
	for round := uint64(1); round <= r.rounds; round++ {
		s.round = round
		if r.exchangesGradients() {
			of := r
			switch {
			case round <= r.at:
				of = r.before()
			case round == r.at+1:
				r.applyInFlight(s)
			}
			of.gradientRound(t, s, round)
			continue
		}
		for k := range s.updates {
			s.updates[k] = round * tau
		}
		deltas := make([][]flat.Host, r.pipelines)
		for p, stages := range s.fakes {
			for _, f := range stages {
				deltas[p] = append(deltas[p], flat.NewHost(len(f.params)))
			}
			for step := (round - 1) * tau; step < round*tau; step++ {
				s.losses[[2]uint64{uint64(p), step}] = r.batch(t, s, p, step, deltas[p])
			}
		}
		for k := range r.stages {
			r.averageStage(s, k, round, deltas)
		}
	}
	return s
}

func (r *run) batch(t testing.TB, s *sequential, p int, step uint64, deltas []flat.Host) float64 {
	t.Helper()
	stages := s.fakes[p]
	if _, async := asynchronous[r.schedule]; async {
		return r.asynchronousBatch(t, s, p, step, deltas)
	}
	r.gradients(t, stages, p, step)
	return r.updateAll(stages, step, step, deltas)
}

// gradients computes those of a batch.
func (r *run) gradients(t testing.TB, stages []*fake, p int, step uint64) {
	t.Helper()
	for m := range r.micros {
		passes(t, stages, p, stage.Micro{Step: step, Index: m, Weight: 1 / float32(r.micros)})
	}
	first, last := stages[0], stages[len(stages)-1]
	for i := range r.tied {
		if first != last {
			sum := first.grads[i] + last.grads[i]
			first.grads[i], last.grads[i] = sum, sum
		}
	}
}

// passes run the forward and the backward of one micro-batch through all stages.
func passes[S stage.Stage](t testing.TB, stages []S, p int, micro stage.Micro) {
	t.Helper()
	first, last := stages[0].Shape(), stages[len(stages)-1].Shape()
	input, labels := stage.NewBoundary(first.InputBytes), stage.NewBoundary(last.LabelBytes)
	var source Source = data{p}
	if _, fakes := any(stages[0]).(*fake); !fakes {
		source = tokens{p}
	}
	if err := source.Fill(micro.Step, micro.Index, input, labels); err != nil {
		t.Fatal(err)
	}
	for _, s := range stages {
		var next []byte
		if !s.Shape().Last {
			next = stage.NewBoundary(s.Shape().OutputBytes)
		}
		if err := s.Forward(micro, stage.OnHost(input), labels, stage.OnHost(next)); err != nil {
			t.Fatal(err)
		}
		input = next
	}
	var gradient []byte
	for _, s := range slices.Backward(stages) {
		var next []byte
		if !s.Shape().First {
			next = stage.NewBoundary(s.Shape().InputBytes)
		}
		if err := s.Backward(micro, stage.Whole, stage.OnHost(gradient), stage.OnHost(next)); err != nil {
			t.Fatal(err)
		}
		gradient = next
	}
}

// updateAll takes the optimizer step of all stages of a pipeline, with gradients of its own or exchanged ones.
func (r *run) updateAll(stages []*fake, step, updates uint64, deltas []flat.Host) float64 {
	loss := stages[len(stages)-1].loss
	sum := 0.0
	for _, f := range stages {
		sum, _ = f.SquaredNorm(sum)
	}
	scale := float32(1)
	if r.clip > 0 {
		scale = stage.ClipFactor(sum, r.clip)
	}
	for k, f := range stages {
		var delta flat.Vector
		if deltas != nil {
			delta = deltas[k]
		}
		_ = f.Step(stage.Hyper{Step: updates, LearningRate: rate(step), GradScale: scale}, delta)
		f.ZeroGradients()
	}
	return loss
}

// compare holds a run to the sequential model, bit by bit.
func (r *run) compare(t testing.TB, s *sequential) {
	t.Helper()
	for key, f := range r.fakes {
		want := s.fakes[key[0]][key[1]]
		if !slices.Equal(f.params, want.params) {
			t.Errorf("pipeline %d, stage %d: weights %v, want %v", key[0], key[1], f.params, want.params)
		}
		if !slices.Equal(f.momentum, want.momentum) {
			t.Errorf("pipeline %d, stage %d: momentum %v, want %v", key[0], key[1], f.momentum, want.momentum)
		}
	}
	for k, center := range r.shards {
		if !slices.Equal(center, s.centers[k]) {
			t.Errorf("center of stage %d: %v, want %v", k, center, s.centers[k])
		}
	}
	for key, loss := range r.losses {
		if want := s.losses[key]; loss != want {
			t.Errorf("pipeline %d, step %d: loss %v, want %v", key[0], key[1], loss, want)
		}
	}
}

func TestEveryScheduleComputesTheSequentialModelToTheBit(t *testing.T) {
	for _, name := range []string{"gpipe", "1f1b", "afp"} {
		for stages := 1; stages <= 4; stages++ {
			for _, micros := range []int{1, 2, 3, 5, 8} {
				for pipelines := 1; pipelines <= 3; pipelines++ {
					r := &run{
						schedule: name, stages: stages, pipelines: pipelines, micros: micros, rounds: 4, clip: 0.05,
						tied: 3, tau: 1 + micros%2,
					}
					t.Run(fmt.Sprintf("%s_K%d_M%d_N%d", name, stages, micros, pipelines), func(t *testing.T) {
						t.Parallel()
						r.train(t)
						if len(r.losses) != pipelines*4*r.tau {
							t.Errorf("%d steps were reported, want %d", len(r.losses), pipelines*4*r.tau)
						}
						r.compare(t, r.sequential(t))
					})
				}
			}
		}
	}
}
