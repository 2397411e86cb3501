package pipeline

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/avgpipe/avgpipe/internal/wire"
	"github.com/avgpipe/avgpipe/schedule"
	"github.com/avgpipe/avgpipe/stage"
)

// endless is a run that something must end.
func endless(change func(*Config)) *run {
	return &run{schedule: "afp", stages: 3, pipelines: 2, micros: 4, rounds: 1 << 40, clip: 0.05, tied: 2, change: change}
}

// failing runs r, in which something fails, and returns the error.
func failing(t *testing.T, r *run) error {
	t.Helper()
	g, err := New(r.config(t))
	if err != nil {
		t.Fatal(err)
	}
	err = g.Run(t.Context())
	if err == nil {
		t.Fatal("Run succeeded")
	}
	for key, f := range r.fakes {
		if !f.closed {
			t.Errorf("pipeline %d, stage %d was not closed", key[0], key[1])
		}
	}
	return err
}

func TestCancelInMidBatchEndsEverything(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	cause := errors.New("the job was cancelled")
	var steps atomic.Int32
	r := endless(func(c *Config) {
		c.Evaluation = &EvaluationConfig{MicroBatches: 3, Due: func(uint64) bool { return true }}
	})
	r.prepare = func(f *fake, _ int) {
		f.faults = func(op string, m stage.Micro) error {
			if op == "forward" && m.Index == 2 && steps.Add(1) == 30 {
				cancel(cause)
			}
			return nil
		}
	}
	g, err := New(r.config(t))
	if err != nil {
		t.Fatal(err)
	}
	if err := g.Run(ctx); !errors.Is(err, cause) {
		t.Errorf("Run: %v, want the cause", err)
	}
}

func TestTheFirstErrorNamesPipelineStageAndStep(t *testing.T) {
	broken := errors.New("out of memory")
	for _, op := range []string{"forward", "backward", "step"} {
		r := endless(nil)
		r.prepare = func(f *fake, p int) {
			f.faults = func(at string, m stage.Micro) error {
				if at == op && p == 1 && f.index == 1 && m.Step == 5 {
					return broken
				}
				return nil
			}
		}
		err := failing(t, r)
		var where *Error
		if !errors.As(err, &where) || where.Pipeline != 1 || where.Stage != 1 || where.Step != 5 || !errors.Is(err, broken) {
			t.Errorf("%s fails: %v, want *Error of pipeline 1, stage 1, step 5", op, err)
		}
	}
}

func TestANonFiniteLossStopsBeforeAnyStageStepped(t *testing.T) {
	r := endless(nil)
	var after atomic.Int32
	r.prepare = func(f *fake, p int) {
		f.faults = func(op string, m stage.Micro) error {
			if p == 0 && m.Step == 3 && op == "backward" && f.last() {
				f.loss = math.NaN()
			}
			if p == 0 && m.Step == 3 && op == "step" {
				after.Add(1)
			}
			return nil
		}
	}
	err := failing(t, r)
	var bad *stage.NonFiniteError
	if !errors.As(err, &bad) || bad.What != "loss" || bad.Stage != 2 || bad.Step != 3 {
		t.Errorf("Run: %v, want *stage.NonFiniteError of the loss at stage 2, step 3", err)
	}
	if n := after.Load(); n != 0 {
		t.Errorf("%d stages applied the step", n)
	}
}

// TestAnErrorSaysItsPlaceOnce, though what is not finite says it as well.
func TestAnErrorSaysItsPlaceOnce(t *testing.T) {
	bad := fmt.Errorf("stage 1 of 2: optimizer step 3: %w", &stage.NonFiniteError{What: "loss", Stage: 1, Step: 3, Value: math.Inf(1)})
	err := &Error{Pipeline: 0, Stage: 1, Step: 3, Op: "optimizer step", Err: bad}
	if want := "pipeline 0, stage 1, step 3: optimizer step: loss is +Inf: lower optimizer.lr, raise optimizer.warmup or set optimizer.clip_norm"; err.Error() != want {
		t.Errorf("%v, want %s", err, want)
	}
}

func TestANonFiniteGradientIsFoundWithAndWithoutClipping(t *testing.T) {
	for _, clip := range []float64{0, 0.05} {
		r := endless(nil)
		r.clip = clip
		r.prepare = func(f *fake, p int) {
			f.faults = func(op string, m stage.Micro) error {
				if p == 1 && m.Step == 2 && op == "backward" && f.index == 1 {
					f.grads[0] = float32(math.Inf(1))
				}
				return nil
			}
		}
		err := failing(t, r)
		var bad *stage.NonFiniteError
		if !errors.As(err, &bad) || bad.What != "gradient norm" || bad.Stage != 1 || bad.Step != 2 {
			t.Errorf("clip %v: %v, want *stage.NonFiniteError of the gradient norm at stage 1, step 2", clip, err)
		}
	}
}

// brokenSource fails at step 4.
type brokenSource struct{ data }

func (b brokenSource) Fill(step uint64, micro int, input, labels []byte) error {
	if step == 4 {
		return errors.New("file vanished")
	}
	return b.data.Fill(step, micro, input, labels)
}

func TestAFailingSourceIsReportedWithItsMicroBatch(t *testing.T) {
	err := failing(t, endless(func(c *Config) {
		c.Stages[2].Source = func(p int) Source { return brokenSource{data{p}} }
	}))
	if !strings.Contains(err.Error(), "stage 2, step 4: data of micro-batch 0: file vanished") {
		t.Errorf("Run: %v", err)
	}
}

func TestADeviceThatCannotAttachIsWhyTheRunFails(t *testing.T) {
	err := failing(t, endless(func(c *Config) {
		c.Attach = func(device int) error {
			if device == 1 {
				return errors.New("core 99 is not there")
			}
			return nil
		}
	}))
	if !strings.Contains(err.Error(), "core 99 is not there") {
		t.Errorf("Run: %v", err)
	}
}

func TestAStageThatCannotBeBuiltIsNamed(t *testing.T) {
	err := failing(t, endless(func(c *Config) {
		build := c.Stages[1].Build
		c.Stages[1].Build = func(p int) (stage.Stage, error) {
			if p == 1 {
				return nil, errors.New("needs 3 GiB, 2 GiB are free")
			}
			return build(p)
		}
	}))
	if !strings.Contains(err.Error(), "stage 1: build it for pipeline 1: needs 3 GiB") {
		t.Errorf("Run: %v", err)
	}
}

// TestAFrameThatThePlanDoesNotExpectIsAnError runs two groups whose plans differ.
func TestAFrameThatThePlanDoesNotExpectIsAnError(t *testing.T) {
	link := inProcess()
	lower := &run{schedule: "gpipe", stages: 2, pipelines: 1, micros: 2, rounds: 3, local: []int{0}}
	upper := &run{schedule: "gpipe", stages: 2, pipelines: 1, micros: 2, rounds: 3, local: []int{1}}
	lower.change = func(c *Config) { c.Connect = link }
	upper.change = func(c *Config) {
		c.Connect = link
		var err error
		if c.Plan, err = schedule.Parse("F0 F1 B1 B0\nF0 F1 B1 B0"); err != nil {
			panic(err)
		}
	}
	errs := trainBoth(t, lower, upper)
	if errs[0] == nil || !strings.Contains(errs[0].Error(), "the stages do not run the same plan") {
		t.Errorf("lower: %v", errs[0])
	}
	if errs[1] == nil || !strings.Contains(errs[1].Error(), "link failed") {
		t.Errorf("upper: %v, want the link's failure", errs[1])
	}
}

// inProcess connects the groups of one test process by pairs.
func inProcess() func(context.Context, wire.Link, bool, wire.Spec) (wire.End, error) {
	type half struct {
		link  wire.Link
		upper bool
	}
	ends := make(chan map[half]wire.End, 1)
	ends <- map[half]wire.End{}
	return func(_ context.Context, l wire.Link, upper bool, s wire.Spec) (wire.End, error) {
		m := <-ends
		defer func() { ends <- m }()
		if e, ok := m[half{l, upper}]; ok {
			return e, nil
		}
		a, b, err := wire.NewPair(s)
		m[half{l, false}], m[half{l, true}] = a, b
		return m[half{l, upper}], err
	}
}

// overTCP connects two groups over the loopback: the listener serves the upper stages.
func overTCP(t *testing.T, generation uint64) func(context.Context, wire.Link, bool, wire.Spec) (wire.End, error) {
	t.Helper()
	l, err := wire.Listen(t.Context(), "127.0.0.1:0", generation, wire.Config{Job: "test"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return func(ctx context.Context, link wire.Link, upper bool, s wire.Spec) (wire.End, error) {
		if upper {
			return l.Accept(ctx, link, s)
		}
		return wire.Dial(ctx, l.Address(), link, s, wire.Config{Job: "test"})
	}
}

// trainBoth runs two groups side by side, as two nodes do.
func trainBoth(t *testing.T, runs ...*run) []error {
	t.Helper()
	errs := make([]error, len(runs))
	done := make(chan struct{})
	for i, r := range runs {
		g, err := New(r.config(t))
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			defer func() { done <- struct{}{} }()
			if errs[i] = g.Run(t.Context()); errs[i] == nil {
				r.collect(g)
			}
		}()
	}
	for range runs {
		<-done
	}
	return errs
}

func TestStagesOnTwoNodesComputeTheSameBits(t *testing.T) {
	links := map[string]func(context.Context, wire.Link, bool, wire.Spec) (wire.End, error){
		"in process": inProcess(), "tcp": overTCP(t, 3),
	}
	for name, link := range links {
		t.Run(name, func(t *testing.T) {
			var nodes []*run
			for _, local := range [][]int{{0, 2}, {1, 3}} { // every link crosses, in both roles
				nodes = append(nodes, &run{
					schedule: "afp", stages: 4, pipelines: 2, micros: 5, rounds: 6, clip: 0.05, tied: 3, tau: 2,
					local: local, jitter: 50 * time.Microsecond, change: func(c *Config) {
						c.Connect = link
						c.Evaluation = &EvaluationConfig{MicroBatches: 2, Due: func(r uint64) bool { return r%2 == 0 }}
					},
				})
			}
			for i, err := range trainBoth(t, nodes...) {
				if err != nil {
					t.Fatalf("node %d: %v", i, err)
				}
				nodes[i].compare(t, nodes[i].sequential(t))
				if len(nodes[i].shards) != 2 || len(nodes[i].fakes) != 4 {
					t.Errorf("node %d ran %d shards and %d stages", i, len(nodes[i].shards), len(nodes[i].fakes))
				}
			}
			if len(nodes[1].evals) != 4 {
				t.Errorf("%d evaluations, want 4", len(nodes[1].evals))
			}
		})
	}
}

func TestTheLossOfANodeEndsTheOthersAtOnce(t *testing.T) {
	for name, link := range map[string]func(context.Context, wire.Link, bool, wire.Spec) (wire.End, error){
		"in process": inProcess(), "tcp": overTCP(t, 3),
	} {
		t.Run(name, func(t *testing.T) {
			lower, upper := endless(func(c *Config) { c.Connect = link }), endless(func(c *Config) { c.Connect = link })
			lower.local, upper.local = []int{0}, []int{1, 2}
			upper.prepare = func(f *fake, p int) {
				f.faults = func(_ string, m stage.Micro) error {
					if f.index == 2 && p == 0 && m.Step == 4 {
						return errors.New("device lost")
					}
					return nil
				}
			}
			errs := trainBoth(t, lower, upper)
			for i, err := range errs {
				if err == nil || !strings.Contains(err.Error(), "device lost") {
					t.Errorf("node %d: %v, want to learn of the device", i, err)
				}
			}
		})
	}
}

func TestAnUnusableConfigurationIsRefusedBeforeAnythingStarts(t *testing.T) {
	tests := map[string]func(c *Config){
		"plan":                 func(c *Config) { c.Plan = c.Plan[:1:1]; c.Plan[0] = c.Plan[0][1:] },
		"micro-batches":        func(c *Config) { c.MicroBatches = 7 },
		"pipelines":            func(c *Config) { c.Pipelines = 5 },
		"clip norm":            func(c *Config) { c.ClipNorm = math.NaN() },
		"Connect":              func(c *Config) { c.Stages = c.Stages[1:] },
		"nothing to restore":   func(c *Config) { c.StartRound = 2 },
		"training starts from": func(c *Config) { c.Stages[0].Restore = &Snapshot{Round: 3} },
	}
	for want, change := range tests {
		t.Run(want, func(t *testing.T) {
			r := endless(change)
			if _, err := New(r.config(t)); err == nil || !strings.Contains(err.Error(), want) && want != "plan" && want != "micro-batches" {
				t.Errorf("New: %v, want an error about %s", err, want)
			}
		})
	}
}

func TestMicroBatchesFewerThanStagesRun(t *testing.T) {
	r := &run{schedule: "1f1b", stages: 4, pipelines: 1, micros: 1, rounds: 3}
	r.train(t)
	r.compare(t, r.sequential(t))
	if fmt.Sprint(r.losses) == "map[]" {
		t.Error("no step was reported")
	}
}
