package worker

import (
	"testing"

	"github.com/avgpipe/avgpipe/internal/worker/control"
)

// A device rounds to TF32 where the job says so, and nowhere else.
func TestTheJobSaysWhetherItsGPUsRoundToTF32(t *testing.T) {
	for _, tf32 := range []bool{false, true} {
		a := control.Assignment{Node: "a", Stages: []control.StagePlace{{Node: "a", GPU: "GPU-1"}}}
		a.Spec.Job.Devices.GPU.TF32 = tf32
		h := &host{assignment: a}
		if got := h.onGPU(0); got.TF32 != tf32 || len(got.Visible) != 1 {
			t.Errorf("TF32 %v of the job opens %+v", tf32, got)
		}
	}
}
