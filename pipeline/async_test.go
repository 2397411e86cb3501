package pipeline

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/avgpipe/avgpipe/elastic"
	"github.com/avgpipe/avgpipe/schedule"
	"github.com/avgpipe/avgpipe/stage"
	"github.com/avgpipe/avgpipe/stage/device"
	"github.com/avgpipe/avgpipe/stage/device/ref"
	"github.com/avgpipe/avgpipe/stage/flat"
	"github.com/avgpipe/avgpipe/stage/layer"
	"github.com/avgpipe/avgpipe/stage/model"
)

// asynchronous says of a schedule, without a look at its plan, after how many micro-batches stage k of K updates, and which of the
// versions of its weights since pipelines drained the update's micro-batches read.
var asynchronous = map[string]struct {
	group func(stages, micros int) int
	reads func(update, k, stages int) int
}{
	// Narayanan et al. 2019, section 3.3: the gradient on stage k is that of the weights of K-1-k updates before.
	"pipedream": {
		group: func(int, int) int { return 1 },
		reads: func(update, k, stages int) int { return max(0, update-(stages-1-k)) },
	},
	// Narayanan et al. 2021, section 3.1: on every stage that of the weights of the update before.
	"pipedream-2bw": {
		group: func(stages, micros int) int {
			m := min(stages, micros)
			for micros%m != 0 {
				m++
			}
			return m
		},
		reads: func(update, _, _ int) int { return max(0, update-1) },
	},
}

// asynchronousBatch is run.batch with updates inside of it: micro-batch after micro-batch, each on the weights that it reads, which may be
// those of a batch before where pipelines run on across batches.
func (r *run) asynchronousBatch(t testing.TB, s *sequential, p int, step uint64, deltas []flat.Host) (loss float64) {
	t.Helper()
	stages, rule := s.fakes[p], asynchronous[r.schedule]
	size := rule.group(r.stages, r.micros)
	if step%uint64(max(r.across, 1)) == 0 { // they have drained
		s.versions[p] = make([][]flat.Host, r.stages)
		for k, f := range stages {
			s.versions[p][k] = []flat.Host{slices.Clone(f.params)}
		}
	}
	versions := s.versions[p]
	before := len(versions[0]) - 1 // updates since then
	for update := range r.micros / size {
		for k, f := range stages {
			f.params.Copy(versions[k][rule.reads(before+update, k, r.stages)])
		}
		for m := update * size; m < (update+1)*size; m++ {
			passes(t, stages, p, stage.Micro{Step: step, Index: m, Weight: 1 / float32(size)})
		}
		share := 0.0
		for range size {
			share += 1 / float64(r.micros)
		}
		loss += stages[len(stages)-1].loss * share
		for k, f := range stages {
			f.params.Copy(versions[k][before+update])
			h := stage.Hyper{Step: step*uint64(r.micros/size) + uint64(update), LearningRate: rate(step), GradScale: 1}
			if err := f.Step(h, deltas[k]); err != nil {
				t.Fatal(err)
			}
			f.ZeroGradients()
			versions[k] = append(versions[k], slices.Clone(f.params))
		}
	}
	return loss
}

func TestUpdatesInsideOfABatchComputeTheSameBits(t *testing.T) {
	for name := range asynchronous {
		for stages := 1; stages <= 4; stages++ {
			for _, micros := range []int{1, 4, 6} {
				for pipelines := 1; pipelines <= 2; pipelines++ {
					t.Run(fmt.Sprintf("%s_K%d_M%d_N%d", name, stages, micros, pipelines), func(t *testing.T) {
						t.Parallel()
						r := &run{
							schedule: name, stages: stages, pipelines: pipelines, micros: micros, rounds: 3, tau: 2,
							jitter: 30 * time.Microsecond,
						}
						r.train(t)
						r.compare(t, r.sequential(t))
						if len(r.losses) != pipelines*3*2 {
							t.Errorf("%d steps were reported", len(r.losses))
						}
					})
				}
			}
		}
	}
}

// TestPlansThatRunOnAcrossBatchesComputeTheSameBits as micro-batch after micro-batch, on the weights that the paper has each read: one drain in so many batches,
// however many a round has, and as many losses as batches.
func TestPlansThatRunOnAcrossBatchesComputeTheSameBits(t *testing.T) {
	for name := range asynchronous {
		for stages := 1; stages <= 4; stages++ {
			for _, micros := range []int{1, 2, 5} {
				for _, across := range []int{2, 5} {
					for pipelines := 1; pipelines <= 2; pipelines++ {
						t.Run(fmt.Sprintf("%s_K%d_M%d_S%d_N%d", name, stages, micros, across, pipelines), func(t *testing.T) {
							t.Parallel()
							r := &run{
								schedule: name, stages: stages, pipelines: pipelines, micros: micros, rounds: 2, tau: 10, across: across,
								jitter: 30 * time.Microsecond,
							}
							r.train(t)
							r.compare(t, r.sequential(t))
							if len(r.losses) != pipelines*2*10 {
								t.Errorf("%d steps were reported", len(r.losses))
							}
						})
					}
				}
			}
		}
	}
}

func TestPlansThatRunOnAcrossBatchesOverTCPAndResumedComputeTheSameBits(t *testing.T) {
	for name := range asynchronous {
		resumed(t, &run{schedule: name, stages: 3, pipelines: 2, micros: 2, rounds: 9, tau: 4, across: 4, jitter: 30 * time.Microsecond})
		link := overTCP(t, 3)
		var nodes []*run
		for _, local := range [][]int{{0, 2}, {1}} {
			nodes = append(nodes, &run{
				schedule: name, stages: 3, pipelines: 2, micros: 2, rounds: 4, tau: 4, across: 4, local: local,
				change: func(c *Config) { c.Connect = link },
			})
		}
		for i, err := range trainBoth(t, nodes...) {
			if err != nil {
				t.Fatalf("node %d: %v", i, err)
			}
			nodes[i].compare(t, nodes[i].sequential(t))
		}
	}
}

// TestAPlanThatRunsOnAcrossBatchesFailsWhereItsBatchDoes: the error has the step and the micro-batch of that.
func TestAPlanThatRunsOnAcrossBatchesFailsWhereItsBatchDoes(t *testing.T) {
	broken := errors.New("broken")
	r := &run{schedule: "pipedream", stages: 3, pipelines: 1, micros: 2, rounds: 2, tau: 6, across: 6}
	r.prepare = func(f *fake, _ int) {
		f.faults = func(op string, m stage.Micro) error {
			if f.index == 1 && op == "backward" && m.Step == 9 && m.Index == 1 {
				return broken
			}
			return nil
		}
	}
	err := failing(t, r)
	if !errors.Is(err, broken) || !strings.Contains(err.Error(), "pipeline 0, stage 1, step 9: B1: broken") {
		t.Errorf("Run: %v", err)
	}
	if len(r.losses) < 6 {
		t.Errorf("%d steps were reported of a round that ended and one that did not", len(r.losses))
	}
}

// TestARoundIsDrained, so a plan is of as many batches as divide it.
func TestARoundIsDrained(t *testing.T) {
	r := &run{schedule: "pipedream", stages: 2, pipelines: 1, micros: 2, rounds: 1, tau: 6, across: 4}
	if _, err := New(r.config(t)); err == nil || !strings.Contains(err.Error(), "the plan runs on across 4 batches, and a round has 6") {
		t.Errorf("New: %v, want a refusal of rounds that end inside of a plan", err)
	}
}

// TestAFeederIsAheadOfWhatAStageHasInFlight: it fills a batch more than the stage has begun and not ended.
func TestAFeederIsAheadOfWhatAStageHasInFlight(t *testing.T) {
	for _, c := range []struct {
		name                                string
		stages, micros, across, first, last int
	}{
		{"1f1b", 4, 2, 8, 2, 2},
		{"pipedream", 4, 8, 1, 2, 2},
		{"pipedream", 4, 8, 8, 3, 2},
		{"pipedream", 4, 1, 8, 5, 2},
		{"pipedream", 4, 2, 8, 4, 2},
		{"pipedream-2bw", 4, 2, 8, 3, 2},
	} {
		p, _, err := schedule.Generate(c.name, schedule.Request{Devices: c.stages, MicroBatches: c.micros, RoundBatches: c.across})
		if err != nil {
			t.Fatal(err)
		}
		last := c.stages - 1
		if first, last := feedAhead(p[0], 0, c.micros), feedAhead(p[last], last, c.micros); first != c.first || last != c.last {
			t.Errorf("%+v: the first stage's is %d batches ahead, the last's %d", c, first, last)
		}
	}
}

func TestUpdatesInsideOfABatchOverTCPAndResumedComputeTheSameBits(t *testing.T) {
	r := &run{schedule: "pipedream", stages: 3, pipelines: 2, micros: 6, rounds: 9, tau: 2, jitter: 30 * time.Microsecond}
	resumed(t, r)
	link := overTCP(t, 3)
	var nodes []*run
	for _, local := range [][]int{{0, 2}, {1}} {
		nodes = append(nodes, &run{
			schedule: "pipedream", stages: 3, pipelines: 2, micros: 6, rounds: 4, tau: 2, local: local,
			change: func(c *Config) { c.Connect = link },
		})
	}
	for i, err := range trainBoth(t, nodes...) {
		if err != nil {
			t.Fatalf("node %d: %v", i, err)
		}
		nodes[i].compare(t, nodes[i].sequential(t))
	}
}

func TestWhatNeedsAFlushIsRefusedWithUpdatesInsideOfABatch(t *testing.T) {
	r := &run{schedule: "pipedream", stages: 2, pipelines: 1, micros: 4, rounds: 1, clip: 1}
	if _, err := New(r.config(t)); err == nil || !strings.Contains(err.Error(), "clip norm is 1: the plan takes optimizer steps inside of a batch") {
		t.Errorf("New: %v, want a refusal of clipping", err)
	}
	r = &run{schedule: "pipedream", stages: 2, pipelines: 1, micros: 4, rounds: 1, tied: 2}
	if err := failing(t, r); !strings.Contains(err.Error(), "tied is tied to a parameter of another stage") {
		t.Errorf("Run: %v, want a refusal of tied parameters", err)
	}
}

const asyncMicros, asyncSteps, asyncRate = 8, 3, 0.01

// asyncModel is a small GPT-2 without ties, cut into stages.
func asyncModel(t *testing.T, stages int) (*model.Model, []stage.Range) {
	t.Helper()
	m, err := model.Build("gpt2", map[string]any{
		"n_layer": 3, "n_head": 2, "n_embd": 12, "n_positions": 6, "vocab_size": 11, "tie_word_embeddings": false,
	})
	if err != nil {
		t.Fatal(err)
	}
	ranges, err := stage.Split(m.Costs(layer.Size{B: 1, T: 6}), stages)
	if err != nil {
		t.Fatal(err)
	}
	return m, ranges
}

// trainAsync trains it by a schedule that may run on across so many batches, each stage on a device that open returns, and returns the weights
// of each stage.
func trainAsync(t *testing.T, open func() device.Device, stages int, name string, across int) [][]float32 {
	t.Helper()
	m, ranges := asyncModel(t, stages)
	method, err := elastic.NewMethod("elastic", elastic.Config{Pipelines: 1, Tau: across})
	if err != nil {
		t.Fatal(err)
	}
	weights := make([][]float32, stages)
	var g *Group
	grid, _, err := schedule.Generate(name, schedule.Request{Devices: stages, MicroBatches: asyncMicros, RoundBatches: across})
	if err != nil {
		t.Fatal(err)
	}
	rounds := uint64(asyncSteps / across)
	c := Config{
		Plan: grid, MicroBatches: asyncMicros, Pipelines: 1, Method: method, FinalRound: rounds,
		LearningRate: func(uint64) float32 { return asyncRate },
		Events: Events{
			OnStarted:  func() { g.Commit(rounds, false) },
			OnSnapshot: func(s *Snapshot) { weights[s.Stage] = slices.Clone(s.Center) },
		},
	}
	slots, versions := schedule.InFlightByStage(c.Plan), schedule.VersionsByStage(c.Plan)
	for k, r := range ranges {
		dev := open()
		defer dev.Close()
		c.Stages = append(c.Stages, StageConfig{
			Index: k,
			Build: func(int) (stage.Stage, error) {
				return stage.New(stage.Config{
					Device: dev, Model: m, Range: r, Index: k, Count: stages, Samples: 1, Slots: slots[k], Versions: versions[k], Seed: 5,
				})
			},
			Source: func(p int) Source { return tokens{p} },
		})
	}
	if g, err = New(c); err != nil {
		t.Fatal(err)
	}
	if err := g.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	return weights
}

// remembering is a stage with all versions that its weights had since the pipeline drained.
type remembering struct {
	*stage.Computed
	versions [][]float32
}

func (s *remembering) remember() {
	v := make([]float32, s.Parameters().Len())
	s.Parameters().Read(v, 0)
	s.versions = append(s.versions, v)
}

// sequentialAsync computes what trainAsync must: it goes back to the weights that a micro-batch reads for its passes.
func sequentialAsync(t *testing.T, stages int, name string, across int) (weights [][]float32) {
	t.Helper()
	m, ranges := asyncModel(t, stages)
	rule, all := asynchronous[name], make([]*remembering, stages)
	for k, r := range ranges {
		s, err := stage.New(stage.Config{Device: ref.New(), Model: m, Range: r, Index: k, Count: stages, Samples: 1, Slots: 1, Seed: 5})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		s.ZeroGradients()
		all[k] = &remembering{Computed: s}
	}
	size := rule.group(stages, asyncMicros)
	updates := asyncMicros / size
	for step := range uint64(asyncSteps) {
		if step%uint64(across) == 0 {
			for _, s := range all {
				s.versions = nil
				s.remember()
			}
		}
		before := len(all[0].versions) - 1
		for update := range updates {
			for k, s := range all {
				s.Parameters().Write(s.versions[rule.reads(before+update, k, stages)], 0)
			}
			for m := update * size; m < (update+1)*size; m++ {
				passes(t, all, 0, stage.Micro{Step: step, Index: m, Weight: 1 / float32(size)})
			}
			for _, s := range all {
				s.Parameters().Write(s.versions[before+update], 0)
				h := stage.Hyper{Step: step*uint64(updates) + uint64(update), LearningRate: asyncRate, GradScale: 1}
				if err := s.Step(h, nil); err != nil {
					t.Fatal(err)
				}
				s.ZeroGradients()
				s.remember()
			}
		}
	}
	for _, s := range all {
		weights = append(weights, s.versions[len(s.versions)-1])
	}
	return weights
}

func TestGradientsHaveTheDelayOfTheirSchedule(t *testing.T) {
	for name := range asynchronous {
		for stages := 1; stages <= 4; stages++ {
			var drained [][]float32
			for _, across := range []int{1, asyncSteps} {
				found, want := trainAsync(t, onHost, stages, name, across), sequentialAsync(t, stages, name, across)
				late := trainAsync(t, queued, stages, name, across)
				for k := range want {
					if !slices.Equal(found[k], want[k]) {
						t.Errorf("%s, K=%d, S=%d: the weights of stage %d differ from those of a run that goes back to old weights", name, stages, across, k)
					}
					if !slices.Equal(late[k], want[k]) {
						t.Errorf("%s, K=%d, S=%d: the weights of stage %d differ on a device with a queue", name, stages, across, k)
					}
				}
				if stages > 1 && slices.Equal(found[0], trainAsync(t, onHost, stages, "1f1b", 1)[0]) {
					t.Errorf("%s, K=%d, S=%d: the weights are those of a plan without updates", name, stages, across)
				}
				if across > 1 && stages > 1 && slices.Equal(found[0], drained[0]) {
					t.Errorf("%s, K=%d: the weights are those of a plan that drains after each batch", name, stages)
				}
				drained = found
			}
		}
	}
}
