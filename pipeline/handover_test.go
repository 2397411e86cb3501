package pipeline

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"

	"golang.org/x/sync/errgroup"

	"github.com/avgpipe/avgpipe/elastic"
	"github.com/avgpipe/avgpipe/internal/wire"
	"github.com/avgpipe/avgpipe/stage"
	"github.com/avgpipe/avgpipe/stage/device"
)

// watched is a stage that says when its last backward of a batch runs.
type watched struct {
	*stage.Computed
	last *atomic.Bool
}

func (w watched) Backward(m stage.Micro, part stage.Part, doutput, dinput stage.Boundary) error {
	w.last.Store(m.Last)
	defer w.last.Store(false)
	return w.Computed.Backward(m, part, doutput, dinput)
}

// countedEnd counts the messages that are filled within a backward, and all.
type countedEnd struct {
	wire.End
	within      *atomic.Bool
	early, sent *atomic.Int64
}

func (c countedEnd) NewFrame(h wire.Header, bytes int) wire.Frame {
	c.sent.Add(1)
	if c.within.Load() {
		c.early.Add(1)
	}
	return c.End.NewFrame(h, bytes)
}

// trainedInGroups is trainedBy with each of two pipelines in a group of its own. early is the share of messages that were filled within a backward.
func trainedInGroups(t *testing.T, open func() device.Device, stages, elements int, name string, c elastic.Config) (numbers []float64, early float64) {
	t.Helper()
	c.Pipelines = 2
	method, err := elastic.NewMethod(name, c)
	if err != nil {
		t.Fatal(err)
	}
	var log modelLog
	var within, sent atomic.Int64
	m := &meeting{pairs: map[meetingKey]*[2]wire.End{}}
	var groups []*Group
	for group := range 2 {
		config := modelConfigBy(t, open, plan(t, "1f1b", stages, modelMicros), method, device.F32, &log)
		config.Groups, config.Group, config.SegmentElements = [][]int{{0}, {1}}, group, elements
		config.Connect = func(_ context.Context, l wire.Link, upper bool, s wire.Spec) (wire.End, error) {
			return m.end(l, group, upper, s)
		}
		last := make([]atomic.Bool, stages)
		config.Publish = func(_ context.Context, l wire.Link, to int, s wire.Spec) (wire.End, error) {
			e, err := m.end(l, to, false, s)
			return countedEnd{e, &last[l.Lower], &within, &sent}, err
		}
		for k := range config.Stages {
			build := config.Stages[k].Build
			config.Stages[k].Build = func(p int) (stage.Stage, error) {
				s, err := build(p)
				if err != nil {
					return nil, err
				}
				return watched{s.(*stage.Computed), &last[k]}, nil
			}
		}
		g, err := New(config)
		if err != nil {
			t.Fatal(err)
		}
		groups = append(groups, g)
	}
	running, ctx := errgroup.WithContext(t.Context())
	for _, g := range groups {
		running.Go(func() error { return g.Run(ctx) })
	}
	if err := running.Wait(); err != nil {
		t.Fatal(err)
	}
	return log.numbers(2), float64(within.Load()) / float64(max(sent.Load(), 1))
}

// TestGradientsAreHandedOverWithinTheBackward: most of what is exchanged leaves before the backward has ended, and the bits are those of pipelines in one process,
// however the vectors are cut.
func TestGradientsAreHandedOverWithinTheBackward(t *testing.T) {
	for name, c := range map[string]elastic.Config{
		"allreduce": {}, "pipesgd": {Warmup: 1},
		"sapipe": {StaleLayers: 3, Prediction: elastic.PredictLocalPrevSync, Compensation: elastic.CompensateOuterAdaptive, Lambda: 2},
	} {
		for _, stages := range someIfRaced([]int{1, 2}, 2) {
			for _, elements := range someIfRaced([]int{0, 50, 1000}, 1000) {
				t.Run(fmt.Sprintf("%s/%d stages/%d elements", name, stages, elements), func(t *testing.T) {
					t.Parallel()
					want := trainedBy(t, onHost, stages, name, c)
					got, early := trainedInGroups(t, onHost, stages, elements, name, c)
					if !slices.Equal(got, want) {
						t.Errorf("losses, norms and evaluations\n%v, in one process\n%v", got, want)
					}
					if elements > 0 && early < 0.3 {
						t.Errorf("%.0f%% of the messages left within a backward, want more", 100*early)
					}
					if got, _ := trainedInGroups(t, queued, stages, elements, name, c); !slices.Equal(got, want) {
						t.Errorf("with queues: %v, in one process %v", got, want)
					}
				})
			}
		}
	}
}
