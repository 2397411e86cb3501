package pipeline

import (
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/avgpipe/avgpipe/elastic"
	"github.com/avgpipe/avgpipe/schedule"
	"github.com/avgpipe/avgpipe/stage/device"
	"github.com/avgpipe/avgpipe/stage/device/cpu"
	"github.com/avgpipe/avgpipe/stage/device/emulated"
)

// onProcessor opens devices that compute on the processor.
func onProcessor(t *testing.T) func() device.Device {
	return func() device.Device {
		d, err := cpu.Open(cpu.Config{})
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
}

// dictated opens such devices with times of their own, which are shorter or longer than the arithmetic takes.
func dictated(t *testing.T) func() device.Device {
	return func() device.Device {
		d, err := emulated.Over(emulated.Config{Stages: []emulated.Times{{Forward: 20 * time.Microsecond, Backward: time.Millisecond}}}, onProcessor(t)())
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
}

// TestWorkBesidePassesChangesNoBits: what other groups wait for is done while emulated devices wait.
func TestWorkBesidePassesChangesNoBits(t *testing.T) {
	groups := [][]int{{2, 0}, {1}}
	for name, c := range map[string]elastic.Config{"allreduce": {}, "elastic": {}, "sapipe": {StaleLayers: 2, Prediction: elastic.PredictLocal}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var opened []*emulated.Device
			open := func() device.Device {
				d, err := emulated.Over(emulated.Config{Stages: []emulated.Times{{Forward: 2 * time.Millisecond, Backward: 2 * time.Millisecond}}}, onProcessor(t)())
				if err != nil {
					t.Fatal(err)
				}
				opened = append(opened, d)
				return d
			}
			var served atomic.Int64
			got, _ := exchanged(t, open, groups, 1, name, c, true, func(c *Config) {
				d := opened[len(opened)-1]
				c.WhileWaiting = func(_ int, f func()) {
					d.WhileWaiting(func() {
						served.Add(1)
						f()
					})
				}
			})
			if want, _ := exchanged(t, onProcessor(t), groups, 1, name, c, true); !slices.Equal(got, want) || served.Load() == 0 {
				t.Errorf("losses, norms and evaluations\n%v, want\n%v; other work was done %d times", got, want, served.Load())
			}
		})
	}
}

// TestDictatedTimesChangeNoBits holds emulated devices that compute to the device that they compute on, by every schedule: losses, norms
// and evaluations, and where a plan has updates the weights.
func TestDictatedTimesChangeNoBits(t *testing.T) {
	for _, name := range schedule.Names() {
		if _, updates := asynchronous[name]; updates {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				got, want := trainAsync(t, dictated(t), 3, name, asyncSteps), trainAsync(t, onProcessor(t), 3, name, asyncSteps)
				if !slices.EqualFunc(got, want, slices.Equal) {
					t.Errorf("weights\n%v, want\n%v", got, want)
				}
			})
			continue
		}
		for _, pipelines := range []int{1, 3} {
			t.Run(fmt.Sprintf("N%d_%s", pipelines, name), func(t *testing.T) {
				t.Parallel()
				grid := plan(t, name, 3, modelMicros)
				got, want := trainModelOn(t, dictated(t), grid, pipelines), trainModelOn(t, onProcessor(t), grid, pipelines)
				if !slices.Equal(got, want) {
					t.Errorf("losses, norms and evaluations\n%v, want\n%v", got, want)
				}
				if len(got) == 0 || slices.Contains(got[:1], 0) {
					t.Errorf("losses, norms and evaluations are %v", got)
				}
			})
		}
	}
}
