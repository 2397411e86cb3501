//go:build cuda && cgo && linux && amd64

package pipeline

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/avgpipe/avgpipe/schedule"
	"github.com/avgpipe/avgpipe/stage/device"
	"github.com/avgpipe/avgpipe/stage/device/cuda"
	"github.com/avgpipe/avgpipe/stage/device/cuda/cudatest"
)

// TestPipelinesTrainOnGraphicsProcessors trains on the driver of cudatest, by every schedule to the same bits, and nearly as package ref does.
func TestPipelinesTrainOnGraphicsProcessors(t *testing.T) {
	library := cudatest.Library(t)
	open := func() device.Device {
		d, err := cuda.Open(cuda.Config{Library: library.Path(), Libraries: []string{library.Directory()}})
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	first := []float64{alone(t, 0), alone(t, 1)}
	for _, pipelines := range []int{1, 2} {
		want := trainModelOn(t, open, plan(t, "gpipe", 1, modelMicros), pipelines)
		for i, other := range trainModel(t, plan(t, "gpipe", 1, modelMicros), pipelines) {
			if math.Abs(want[i]-other) > 1e-3*math.Abs(other) {
				t.Errorf("number %d is %v, and %v on package ref", i, want[i], other)
			}
		}
		for _, name := range schedule.Names() {
			if _, updates := asynchronous[name]; updates {
				continue
			}
			t.Run(fmt.Sprintf("N%d_%s", pipelines, name), func(t *testing.T) {
				if got := trainModelOn(t, open, plan(t, name, 2, modelMicros), pipelines); !slices.Equal(got, want) {
					t.Errorf("losses, norms and evaluations\n%v, want\n%v", got, want)
				}
				holdSquares(t, open, plan(t, name, 2, modelMicros), want, first[:pipelines], 1e-3)
			})
		}
	}
}

// slowed is a transport that is never the fastest.
type slowed struct{ Transport }

func (s slowed) Copy(dst, src device.Mem) error {
	time.Sleep(3 * time.Millisecond)
	return s.Transport.Copy(dst, src)
}

// TestStagesOnTwoGraphicsProcessorsTrainToTheSameBits as one does, whatever copies between them, and goes on when NCCL fails.
func TestStagesOnTwoGraphicsProcessorsTrainToTheSameBits(t *testing.T) {
	t.Setenv("FAKE_CUDA_DEVICES", "2")
	library := cudatest.Library(t)
	opened := 0
	open := func() device.Device {
		d, err := cuda.Open(cuda.Config{Library: library.Path(), Libraries: []string{library.Directory()}, Ordinal: opened % 2})
		if err != nil {
			t.Fatal(err)
		}
		opened++
		return d
	}
	want := trainModelOn(t, open, plan(t, "gpipe", 1, modelMicros), 2)
	for _, one := range []struct {
		by, schedule string
		fails        bool
	}{{"peer copies", "1f1b", false}, {"page-locked memory", "gpipe", false}, {"NCCL 2.19.3", "zb-h1", false}, {"NCCL 2.19.3", "interleaved", true}} {
		t.Run(fmt.Sprintf("%s_%s_%t", one.by, one.schedule, one.fails), func(t *testing.T) {
			opened = 0
			transports := func(from, to device.Device, bytes int) (all []Transport) {
				found, err := cuda.Transports(from, to, cuda.Config{Libraries: []string{library.Directory()}}, bytes)
				if err != nil {
					t.Error(err)
				}
				for _, f := range found {
					if all = append(all, f); f.Name() != one.by {
						all[len(all)-1] = slowed{f}
					}
				}
				return all
			}
			var told []RouteReport
			var mu sync.Mutex
			got, _, inHost, err := trainApart(t, open, transports, plan(t, one.schedule, 2, modelMicros), 2, func(r RouteReport) {
				mu.Lock()
				defer mu.Unlock()
				if told = append(told, r); len(told) == 2 && one.fails {
					library.Fail("ncclGroupEnd", 2)
				}
			})
			library.Fail("ncclGroupEnd", 0)
			if err != nil || !slices.Equal(got, want) || inHost != 0 {
				t.Errorf("losses, norms and evaluations\n%v (%v, %d boundaries in host memory), want\n%v", got, err, inHost, want)
			}
			for _, r := range told {
				switch failed := r.Failed != nil; {
				case failed && (!one.fails || r.Transport != "peer copies" || !strings.Contains(r.Failed.Error(), "unhandled system error")):
					t.Errorf("a transport failed, and %s copies: %v", r.Transport, r.Failed)
				case !failed && !one.fails && r.Transport != one.by:
					t.Errorf("%s copies, expected %s", r.Transport, one.by)
				}
			}
			if one.fails == (len(told) == 2) {
				t.Errorf("%d routes were told of", len(told))
			}
		})
	}
}

// A device that fails in the middle of a training ends it, with the operation, the device and what failed. What is opened later trains.
func TestTrainingsOnGraphicsProcessorsEndWhenTheyFail(t *testing.T) {
	library := cudatest.Library(t)
	for _, one := range []struct {
		name string
		fail func()
		says []string
	}{
		{"lost", func() { library.Lose(cudatest.Unknown) }, []string{"no GPU, fibers", "Unknown"}},
		{"trap", func() { library.Trap("adam_step", cudatest.IllegalAddress) }, []string{"no GPU, fibers", "run operations: IllegalAddress", "AdamStep"}},
		{"named", func() { library.Trap("adam_step", cudatest.IllegalAddress) }, []string{"run AdamStep: P ", "LearningRate=0.01", "IllegalAddress"}},
	} {
		t.Run(one.name, func(t *testing.T) {
			var devices []*cuda.Device
			launches := cuda.Graphs
			if one.name == "named" {
				launches = cuda.Synchronous
			}
			build := func(log *modelLog) Config {
				devices = nil
				return modelConfig(t, func() device.Device {
					d, err := cuda.Open(cuda.Config{Library: library.Path(), Libraries: []string{library.Directory()}, Launches: launches})
					if err != nil {
						t.Fatal(err)
					}
					devices = append(devices, d)
					return closed{d}
				}, plan(t, "gpipe", 1, modelMicros), 1, device.F32, log)
			}
			var log modelLog
			c := build(&log)
			told := c.Events.OnStep
			c.Events.OnStep = func(s StepReport) {
				if told(s); s.Step == 2 {
					one.fail()
				}
			}
			g, err := New(c)
			if err != nil {
				t.Fatal(err)
			}
			err = g.Run(t.Context())
			t.Log(err)
			for _, words := range one.says {
				if err == nil || !strings.Contains(err.Error(), words) {
					t.Errorf("the training ended with %v, expected it to say %q", err, words)
				}
			}
			for _, d := range devices {
				_ = d.Close()
			}
			library.Reset(cudatest.Memory)
			if g, err = New(build(&log)); err != nil {
				t.Fatal(err)
			}
			if err := g.Run(t.Context()); err != nil {
				t.Errorf("a training after one that failed: %v", err)
			}
			for _, d := range devices {
				if err := d.Close(); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

// closed is a device that its test closes.
type closed struct{ *cuda.Device }

// Close implements device.Device.
func (closed) Close() error { return nil }
