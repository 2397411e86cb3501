//go:build cuda && cgo && linux && amd64

package pipeline

import (
	"fmt"
	"math"
	"slices"
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
