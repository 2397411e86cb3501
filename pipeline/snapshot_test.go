package pipeline

import (
	"fmt"
	"reflect"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/avgpipe/avgpipe/elastic"
	"github.com/avgpipe/avgpipe/internal/envtest"
	"github.com/avgpipe/avgpipe/internal/trace"
	"github.com/avgpipe/avgpipe/stage"
	"github.com/avgpipe/avgpipe/stage/device"
	"github.com/avgpipe/avgpipe/stage/device/emulated"
)

// snapshotsOn trains a model on devices that open returns, and returns the parts of the snapshots of rounds 2, 4 and 6, which is the last, by round and stage.
func snapshotsOn(t *testing.T, open func() device.Device, method elastic.Method) map[[2]uint64]*Snapshot {
	t.Helper()
	var log modelLog
	var mu sync.Mutex
	parts := map[[2]uint64]*Snapshot{}
	c := modelConfigBy(t, open, plan(t, "1f1b", 2, modelMicros), method, device.F32, &log)
	c.Events.OnSnapshot = func(s *Snapshot) {
		mu.Lock()
		defer mu.Unlock()
		parts[[2]uint64{s.Round, uint64(s.Stage)}] = clone(s) //nolint:gosec // counts from 0
	}
	trainCommitting(t, c, 2, 4, c.FinalRound)
	return parts
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
		want := snapshotsOn(t, onHost, method)
		if len(want) != 6 {
			t.Fatalf("%s: %d parts of snapshots, want those of two stages and three rounds", name, len(want))
		}
		for _, queues := range someIfRaced([]int{1, 2, 3, 4, 5}, 2, 4) {
			t.Run(fmt.Sprintf("%s_on_%d", name, queues), func(t *testing.T) {
				got := snapshotsOn(t, severalQueues(queues), method)
				for at, s := range want {
					if !reflect.DeepEqual(got[at], s) {
						t.Errorf("round %d, stage %d: other bits than on the host's device", at[0], at[1])
					}
				}
			})
		}
	}
}

// TestPipelinesThatShareADeviceAverageInItsTime: an emulated device that waits for a pass serves other groups, and not the averaging of its own pipelines.
func TestPipelinesThatShareADeviceAverageInItsTime(t *testing.T) {
	method, err := elastic.NewMethod("elastic", elastic.Config{Pipelines: 3})
	if err != nil {
		t.Fatal(err)
	}
	spent := func(serve bool) (all []time.Duration) {
		var log modelLog
		var opened []*emulated.Device
		open := func() device.Device {
			times := emulated.Times{Forward: 2 * time.Millisecond, Backward: 4 * time.Millisecond}
			d, err := emulated.Over(emulated.Config{Stages: []emulated.Times{times}, Launch: 20 * time.Microsecond}, onProcessor(t)())
			if err != nil {
				t.Fatal(err)
			}
			opened = append(opened, d)
			return d
		}
		c := modelConfigBy(t, open, plan(t, "1f1b", 2, modelMicros), method, device.F32, &log)
		if serve {
			c.WhileWaiting = func(row int, f func()) {
				opened[row].WhileWaiting(f)
			}
		}
		trainCommitting(t, c)
		for _, d := range opened {
			all = append(all, d.Spent())
		}
		return all
	}
	if with, without := spent(true), spent(false); !slices.Equal(with, without) {
		t.Errorf("devices have spent %v, and %v where they serve nothing while they wait", with, without)
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
	averaged := make(chan error, 1)
	go func() { averaged <- e.doBetween(t.Context(), trace.Span{}, func() error { return nil }) }()
	envtest.Eventually(t, "the averaging waits", func() bool {
		e.mu.Lock()
		defer e.mu.Unlock()
		return len(e.queue) > 0
	})
	close(waits)
	if err := <-averaged; err != nil {
		t.Fatal(err)
	}
	if err := <-pass; err != nil {
		t.Fatal(err)
	}
	if want := []int{1, 0, 1}; !slices.Equal(turned, want) {
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
	if err := e.doOn(t.Context(), e.queueOf(0), trace.Span{}, func() error { read = true; return nil }); err != nil || !read {
		t.Errorf("read: %v, %v", read, err)
	}
	close(other.end)
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
