package pipeline

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"sync"
	"testing"

	"github.com/avgpipe/avgpipe/elastic"
	"github.com/avgpipe/avgpipe/internal/trace"
	"github.com/avgpipe/avgpipe/stage"
	"github.com/avgpipe/avgpipe/stage/device"
)

// snapshotsOn trains a model on devices that open returns, and returns the parts of the snapshots of most rounds, by round and stage.
func snapshotsOn(t *testing.T, open func() device.Device, method elastic.Method) map[[2]uint64]*Snapshot {
	t.Helper()
	var log modelLog
	var mu sync.Mutex
	var g *Group
	parts := map[[2]uint64]*Snapshot{}
	c := modelConfigBy(t, open, plan(t, "1f1b", 2, modelMicros), method, device.F32, &log)
	c.Events.OnSnapshot = func(s *Snapshot) {
		mu.Lock()
		defer mu.Unlock()
		parts[[2]uint64{s.Round, uint64(s.Stage)}] = clone(s) //nolint:gosec // counts from 0
	}
	c.Events.OnStep = func(s StepReport) { // the pipeline waits for it, so it has not left its next round
		for round := s.Step + 2; s.Pipeline == 0 && round <= c.FinalRound; round++ {
			if _, accepted := g.Commit(round, false); accepted { // else others are beyond it
				return
			}
		}
	}
	g, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	if err := g.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	return parts
}

// clone copies what a snapshot lends to its consumer.
func clone(s *Snapshot) *Snapshot {
	c := *s
	c.Center, c.State, c.Pipelines = slices.Clone(s.Center), nil, nil
	for _, v := range s.State {
		c.State = append(c.State, slices.Clone(v))
	}
	for _, p := range s.Pipelines {
		of := p
		of.Parameters, of.State = slices.Clone(p.Parameters), nil
		for _, v := range p.State {
			of.State = append(of.State, slices.Clone(v))
		}
		c.Pipelines = append(c.Pipelines, of)
	}
	return &c
}

// TestSnapshotsHaveTheSameBitsOnAnyNumberOfQueues: those of the host's device, of one queue and of several, which read a pipeline's vectors while others compute.
// A pipeline is captured by its round of averaging, on queue 0, or by its own step, on its queue, where gradients are averaged.
func TestSnapshotsHaveTheSameBitsOnAnyNumberOfQueues(t *testing.T) {
	const pipelines = 3
	for _, name := range []string{"elastic", "allreduce"} {
		method, err := elastic.NewMethod(name, elastic.Config{Pipelines: pipelines})
		if err != nil {
			t.Fatal(err)
		}
		want := map[[2]uint64]*Snapshot{}
		for range 3 { // which rounds some pipeline has left when they are asked for depends on the moment
			maps.Copy(want, snapshotsOn(t, onHost, method))
		}
		for _, queues := range someIfRaced([]int{1, 2, 3, 4, 5}, 2, 4) {
			t.Run(fmt.Sprintf("%s_on_%d", name, queues), func(t *testing.T) {
				compared := 0
				for at, got := range snapshotsOn(t, severalQueues(queues), method) {
					if want[at] == nil {
						continue
					}
					compared++
					if !reflect.DeepEqual(got, want[at]) {
						t.Errorf("round %d, stage %d: other bits than on the host's device", at[0], at[1])
					}
				}
				if compared == 0 {
					t.Error("no part of a snapshot was compared")
				}
			})
		}
	}
}

// TestWorkInTheMiddleOfAPassTurnsTheDeviceBack: the rest of the pass is given to the queue that the pass began on.
func TestWorkInTheMiddleOfAPassTurnsTheDeviceBack(t *testing.T) {
	var turned []int
	e := execute(t, &executor{queues: make([]underWay, 3), use: func(queue int) { turned = append(turned, queue) }})
	began, waits := make(chan struct{}), make(chan struct{})
	pass := make(chan error, 1)
	go func() {
		pass <- e.doOn(t.Context(), 1, trace.Span{}, func() error {
			close(began)
			<-waits
			e.between()
			return nil
		})
	}()
	<-began
	read := make(chan error, 1)
	go func() { read <- e.doBetween(t.Context(), 2, trace.Span{}, func() error { return nil }) }()
	for queued := false; !queued; {
		e.mu.Lock()
		queued = len(e.queue) > 0
		e.mu.Unlock()
	}
	close(waits)
	if err := <-read; err != nil {
		t.Fatal(err)
	}
	if err := <-pass; err != nil {
		t.Fatal(err)
	}
	if want := []int{1, 2, 1}; !slices.Equal(turned, want) {
		t.Errorf("the device was turned to queues %v, want %v", turned, want)
	}
}

// never is the event of a pass that ends when the test says so.
type never struct{ end chan struct{} }

func (n never) Wait() error { <-n.end; return nil }

var _ stage.Event = never{}

// TestAVectorIsReadBesideThePassesOfOtherPipelines: what is read on the queue of one pipeline waits for no pass of another.
func TestAVectorIsReadBesideThePassesOfOtherPipelines(t *testing.T) {
	e := execute(t, &executor{queues: make([]underWay, 3)})
	other := never{make(chan struct{})}
	ended := make(chan error, 1)
	if err := e.Do(t.Context(), trace.Span{}, func() error {
		e.later(e.queueOf(1), other, func(err error) { ended <- err })
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	read := false
	if err := e.doBetween(t.Context(), e.queueOf(0), trace.Span{}, func() error { read = true; return nil }); err != nil || !read {
		t.Errorf("read: %v, %v", read, err)
	}
	close(other.end)
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
