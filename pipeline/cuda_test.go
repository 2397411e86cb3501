//go:build cuda && cgo && linux && amd64

package pipeline

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

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
			})
		}
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
