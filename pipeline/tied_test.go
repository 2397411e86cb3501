package pipeline

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/sync/errgroup"

	"github.com/avgpipe/avgpipe/elastic"
	"github.com/avgpipe/avgpipe/internal/wire"
	"github.com/avgpipe/avgpipe/stage"
	"github.com/avgpipe/avgpipe/stage/device"
	"github.com/avgpipe/avgpipe/stage/flat"
)

// weighedEnd counts the bytes that an end sends.
type weighedEnd struct {
	wire.End
	bytes *atomic.Int64
}

func (c weighedEnd) Send(ctx context.Context, f wire.Frame) error {
	c.bytes.Add(int64(len(f.Payload)))
	return c.End.Send(ctx, f)
}

// exchanged trains modelConfig's GPT-2, whose embeddings are tied, on some stages in groups of pipelines, and returns losses, norms and evaluations, and what was sent. Where the layout
// knows of no copies everything is sent. change, if there is one, changes the configuration of each group.
func exchanged(t *testing.T, open func() device.Device, groups [][]int, stages int, name string, c elastic.Config, copies bool, change ...func(*Config)) (numbers []float64, bytes int64) {
	t.Helper()
	for _, pipelines := range groups {
		c.Pipelines += len(pipelines)
	}
	m := &meeting{pairs: map[meetingKey]*[2]wire.End{}}
	var sent atomic.Int64
	logs := make([]modelLog, len(groups))
	kept := make([]embeddings, len(groups))
	running, ctx := errgroup.WithContext(t.Context())
	for group := range groups {
		method, err := elastic.NewMethod(name, c)
		if err != nil {
			t.Fatal(err)
		}
		config := modelConfigBy(t, open, plan(t, "1f1b", stages, modelMicros), method, device.F32, &logs[group])
		config.Groups, config.Group, config.SegmentElements = groups, group, 100
		config.Connect = func(_ context.Context, l wire.Link, upper bool, s wire.Spec) (wire.End, error) {
			return m.end(l, group, upper, s)
		}
		config.Publish = func(_ context.Context, l wire.Link, to int, s wire.Spec) (wire.End, error) {
			e, err := m.end(l, to, false, s)
			return weighedEnd{e, &sent}, err
		}
		if !copies {
			for i := range config.Stages[0].Layout {
				config.Stages[0].Layout[i].Original = flat.Range{}
			}
		}
		kept[group].tensors = map[int][]stage.Tensor{}
		for _, s := range config.Stages {
			built, err := s.Build(0)
			if err != nil {
				t.Fatal(err)
			}
			kept[group].tensors[s.Index] = built.(finalTeller).Tensors()
			built.Close()
		}
		for _, f := range change {
			f(&config)
		}
		var g *Group
		config.Events.OnSnapshot = kept[group].snapshot
		config.Events.OnStarted = func() { g.Commit(config.FinalRound, false) }
		g, err = New(config)
		if err != nil {
			t.Fatal(err)
		}
		running.Go(func() error { return g.Run(ctx) })
	}
	if err := running.Wait(); err != nil {
		t.Fatal(err)
	}
	for i := range kept {
		kept[i].check(t)
	}
	for i, pipelines := range groups {
		for _, p := range pipelines {
			for step := range uint64(6) {
				s := logs[i].steps[[2]uint64{uint64(p), step}]
				numbers = append(numbers, s.Loss, s.GradientNorm)
			}
		}
		for _, e := range logs[i].evals {
			numbers = append(numbers, e.Score.MeanLoss(), float64(e.Round))
		}
	}
	return numbers, sent.Load()
}

// embeddings keeps the copies of the embedding that snapshots of a group have: of every pipeline's weights, and of the center.
type embeddings struct {
	tensors map[int][]stage.Tensor // by stage
	mu      sync.Mutex
	copies  [][]float32
}

func (e *embeddings) snapshot(s *Snapshot) {
	e.mu.Lock()
	defer e.mu.Unlock()
	vectors := [][]float32{s.Center}
	for _, p := range s.Pipelines {
		vectors = append(vectors, p.Parameters)
	}
	for _, tensor := range e.tensors[s.Stage] {
		if !strings.HasSuffix(tensor.Name, "wte.weight") && !strings.HasSuffix(tensor.TiedTo, "wte.weight") {
			continue
		}
		for i, v := range vectors {
			if len(e.copies) <= i {
				e.copies = append(e.copies, nil)
			}
			e.copies[i] = append(e.copies[i], v[tensor.Offset:tensor.Offset+tensor.Len()]...)
		}
	}
}

// check holds the two copies of each to each other.
func (e *embeddings) check(t *testing.T) {
	t.Helper()
	if len(e.copies) < 2 {
		t.Fatalf("snapshots have %d vectors", len(e.copies))
	}
	for i, both := range e.copies {
		if half := len(both) / 2; half != 11*12 || !slices.Equal(both[:half], both[half:]) {
			t.Errorf("vector %d: the embedding is %v..., its copy %v...", i, both[:3], both[half:half+3])
		}
	}
}

// TestCopiesAreNotSent: a tied copy in the same stage takes what came for its original, to the bit of what would have come for it. With int8 that depends on where segments end, and so do
// copies in other stages.
func TestCopiesAreNotSent(t *testing.T) {
	for _, precision := range []elastic.Precision{elastic.Float32, elastic.BFloat16, elastic.Int8} {
		for _, groups := range [][][]int{{{2, 0}, {1}}, {{0}, {1}, {2}}} {
			if len(groups) == 3 && precision == elastic.BFloat16 {
				continue
			}
			if raced && (len(groups) == 3) != (precision == elastic.Int8) { // goroutines and messages are the same by any precision
				continue
			}
			for name, c := range map[string]elastic.Config{
				"allreduce": {}, "elastic": {}, "pipesgd": {Warmup: 1}, "diloco": {Tau: 2}, "streaming-diloco": {}, "sapipe": {StaleLayers: 1, Prediction: elastic.PredictLocal},
			} {
				c.Precision = precision
				t.Run(fmt.Sprintf("%v/%s/%s", groups, precision, name), func(t *testing.T) {
					t.Parallel()
					got, bytes := exchanged(t, onHost, groups, 1, name, c, true)
					exchanged(t, onHost, groups, 2, name, c, true)
					if precision == elastic.Int8 {
						return
					}
					if want, all := exchanged(t, onHost, groups, 1, name, c, false); !slices.Equal(got, want) || bytes >= all {
						t.Errorf("with %d bytes %v, where copies are sent with %d bytes %v", bytes, got, all, want)
					}
				})
			}
		}
	}
}

// TestSquaresAreOfAPipelinesOwnGradients: an exchange with other groups that goes on beside the backward has not begun.
func TestSquaresAreOfAPipelinesOwnGradients(t *testing.T) {
	of := func(groups [][]int) map[[2]uint64]Squares {
		var mu sync.Mutex
		all := map[[2]uint64]Squares{}
		exchanged(t, onHost, groups, 1, "allreduce", elastic.Config{}, true, func(c *Config) {
			c.NoiseEvery = 2
			reported := c.Events.OnStep
			c.Events.OnStep = func(s StepReport) {
				reported(s)
				if s.Squares != nil {
					mu.Lock()
					defer mu.Unlock()
					all[[2]uint64{uint64(s.Pipeline), s.Step}] = *s.Squares //nolint:gosec // not negative
				}
			}
		})
		return all
	}
	want := of([][]int{{0, 1}})
	for range 3 {
		if got := of([][]int{{0}, {1}}); len(got) != 6 || !maps.Equal(got, want) {
			t.Fatalf("in groups %v, in one %v", got, want)
		}
	}
}
