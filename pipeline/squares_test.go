package pipeline

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/avgpipe/avgpipe/schedule"
	"github.com/avgpipe/avgpipe/stage"
	"github.com/avgpipe/avgpipe/stage/device"
	"github.com/avgpipe/avgpipe/stage/model"
)

// closeTo reports whether two sums of squares differ by the order of additions alone.
func closeTo(a, b float64) bool { return math.Abs(a-b) <= 1e-6*math.Abs(b) }

// synchronousSchedules are those that step at the end of a batch.
func synchronousSchedules() (all []string) {
	for _, name := range schedule.Names() {
		if _, updates := asynchronous[name]; !updates {
			all = append(all, name)
		}
	}
	return all
}

// alone is the squared gradient norm of the first micro-batch of a pipeline's first step, of a model of one stage that sees nothing else.
func alone(t *testing.T, pipeline int) float64 {
	t.Helper()
	m, err := model.Build("gpt2", smallGPT2)
	if err != nil {
		t.Fatal(err)
	}
	s, err := stage.New(stage.Config{Device: onHost(), Model: m, Range: stage.Range{To: len(m.Layers)}, Count: 1, Samples: 1, Slots: 1, Seed: 5})
	if err != nil {
		t.Fatal(err)
	}
	shape := s.Shape()
	input, labels := stage.NewBoundary(shape.InputBytes), stage.NewBoundary(shape.LabelBytes)
	if err := (tokens{pipeline}).Fill(0, 0, input, nil); err != nil {
		t.Fatal(err)
	}
	if err := (tokens{pipeline}).Fill(0, 0, nil, labels); err != nil {
		t.Fatal(err)
	}
	s.ZeroGradients()
	micro := stage.Micro{Weight: 1}
	if err := s.Forward(micro, stage.OnHost(input), labels, stage.Boundary{}); err != nil {
		t.Fatal(err)
	}
	if err := s.Backward(micro, stage.Whole, stage.Boundary{}, stage.Boundary{}); err != nil {
		t.Fatal(err)
	}
	sum, err := s.SquaredNorm(0)
	if err != nil {
		t.Fatal(err)
	}
	return sum
}

// holdSquares trains pipelines that report squares in every step, to the numbers of some that report none. first is of the first micro-batch of each pipeline in the first step, within a relative bound.
func holdSquares(t *testing.T, open func() device.Device, grid schedule.Plan, want, first []float64, within float64) {
	t.Helper()
	var log modelLog
	c := modelConfig(t, open, grid, len(first), device.F32, &log)
	c.NoiseEvery = 1
	g, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	if err := g.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := log.numbers(len(first)); !slices.Equal(got, want) {
		t.Errorf("losses, norms and evaluations\n%v, want\n%v", got, want)
	}
	for key, s := range log.steps {
		q := s.Squares
		if q == nil || !closeTo(q.All, s.GradientNorm*s.GradientNorm) || !closeTo(q.Share, 1./modelMicros) {
			t.Fatalf("pipeline %d, step %d: squares %+v, gradient norm %v", key[0], key[1], q, s.GradientNorm)
		}
		if alone := first[key[0]]; key[1] == 0 && math.Abs(q.First-alone) > within*alone {
			t.Errorf("pipeline %d: squares of the first micro-batch are %v, alone %v", key[0], q.First, alone)
		}
	}
}

// TestSquaresAreThoseOfTheGradientsByEverySchedule holds what each plan reports of a tied model to the norm of a micro-batch that is computed alone, and to the norm that clipping finds; and all else
// that it trains to the bits of a run that reports nothing.
func TestSquaresAreThoseOfTheGradientsByEverySchedule(t *testing.T) {
	first := []float64{alone(t, 0), alone(t, 1)}
	for _, pipelines := range someIfRaced([]int{1, 2}, 2) {
		want := trainModel(t, plan(t, "gpipe", 1, modelMicros), pipelines)
		for _, devices := range someIfRaced([]int{1, 2, 3}, 3) {
			for _, name := range synchronousSchedules() {
				for on, open := range map[string]func() device.Device{"host": onHost, "queue": queued} {
					t.Run(fmt.Sprintf("N%d_K%d_%s_on_%s", pipelines, devices, name, on), func(t *testing.T) {
						t.Parallel()
						holdSquares(t, open, plan(t, name, devices, modelMicros), want, first[:pipelines], 1e-6)
					})
				}
			}
		}
	}
}

// TestReportingSquaresChangesNoBits does so by every method of averaging, whatever it exchanges before the norm, with and without clipping, and in every second step.
func TestReportingSquaresChangesNoBits(t *testing.T) {
	for _, by := range averagings {
		for _, name := range []string{"1f1b", "zb-h1"} {
			for _, clip := range []float64{0, 0.05} {
				t.Run(fmt.Sprintf("%s %s clip %v", by, name, clip), func(t *testing.T) {
					t.Parallel()
					reported := map[[2]uint64]*Squares{}
					r := &run{schedule: name, stages: 3, micros: 4, pipelines: 2, by: by, rounds: 6, clip: clip, tied: 3}
					r.change = func(c *Config) {
						c.NoiseEvery = 2
						c.Events.OnStep = func(s StepReport) {
							r.onStep(s)
							r.mu.Lock()
							defer r.mu.Unlock()
							reported[[2]uint64{uint64(s.Pipeline), s.Step}] = s.Squares
						}
					}
					r.train(t)
					r.compare(t, r.sequential(t))
					for key, q := range reported {
						if reports := key[1]%2 == 1; (q != nil) != reports || reports && !(q.First > 0 && q.All > 0 && q.Share == 0.25) {
							t.Errorf("pipeline %d, step %d: %+v", key[0], key[1], q)
						}
					}
				})
			}
		}
	}
}

func TestSquaresOfStagesOnTwoNodesAreThoseOfOne(t *testing.T) {
	train := func(local [][]int, connect func(c *Config)) map[[2]uint64]Squares {
		found := map[[2]uint64]Squares{}
		var nodes []*run
		for _, here := range local {
			r := &run{schedule: "1f1b", stages: 3, micros: 4, pipelines: 2, rounds: 4, tied: 3, local: here}
			r.change = func(c *Config) {
				connect(c)
				c.NoiseEvery = 2
				c.Events.OnStep = func(s StepReport) {
					r.onStep(s)
					r.mu.Lock()
					defer r.mu.Unlock()
					if s.Squares != nil {
						found[[2]uint64{uint64(s.Pipeline), s.Step}] = *s.Squares
					}
				}
			}
			nodes = append(nodes, r)
		}
		if len(nodes) == 1 {
			nodes[0].train(t)
			return found
		}
		for i, err := range trainBoth(t, nodes...) {
			if err != nil {
				t.Fatalf("node %d: %v", i, err)
			}
		}
		return found
	}
	want := train([][]int{nil}, func(*Config) {})
	link := overTCP(t, 3)
	got := train([][]int{{0, 1}, {2}}, func(c *Config) { c.Connect = link })
	if len(want) != 4 || len(got) != len(want) {
		t.Fatalf("%d and %d reports, want 4", len(got), len(want))
	}
	for key, w := range want {
		if got[key] != w {
			t.Errorf("pipeline %d, step %d: %+v on two nodes, %+v on one", key[0], key[1], got[key], w)
		}
	}
}

func TestAPlanSaysWhyItsNoiseCannotBeMeasured(t *testing.T) {
	for _, c := range []struct {
		grid   string
		micros int
		want   string
	}{
		{"F0 B0", 1, "one micro-batch"},
		{"F0 B0 U0 F1 B1 U1", 2, "steps inside of a batch"},
		{"F0 F1 B0 B1\nF0 F1 B1 B0", 2, "with micro-batch 0 on one stage and with 1 on another"},
		{"F0 F1 I0 I1 W1 W0\nF0 F1 I0 I1 W0 W1", 2, "with micro-batch 0 on one stage and with 1 on another"},
		{"F0 F1 B1 B0\nF0 F1 I1 I0 W1 W0", 2, ""},
	} {
		p, err := schedule.Parse(c.grid)
		if err != nil {
			t.Fatal(err)
		}
		found := NoiseProblem(p, c.micros)
		if (c.want == "") != (found == "") || !strings.Contains(found, c.want) {
			t.Errorf("%s: %q, want %q in it", c.grid, found, c.want)
		}
		r := &run{grid: c.grid, stages: p.Stages(), micros: c.micros, pipelines: 1, rounds: 1, change: func(c *Config) { c.NoiseEvery = 1 }}
		if _, err := New(r.config(t)); (err != nil) != (c.want != "") {
			t.Errorf("%s: New: %v", c.grid, err)
		}
	}
	for _, name := range synchronousSchedules() {
		for micros := 2; micros <= 8; micros *= 2 {
			if problem := NoiseProblem(plan(t, name, 2, micros), micros); problem != "" {
				t.Errorf("%s, %d micro-batches: %s", name, micros, problem)
			}
		}
	}
}
