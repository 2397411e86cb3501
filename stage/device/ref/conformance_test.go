package ref_test

import (
	"testing"

	"github.com/avgpipe/avgpipe/stage/device"
	"github.com/avgpipe/avgpipe/stage/device/ref"
	"github.com/avgpipe/avgpipe/stage/stagetest"
)

// The comparison with itself is trivial here; memory, invariants, causality, flat vectors and allocations are not.
func TestConforms(t *testing.T) {
	stagetest.Device(t, func() device.Device { return ref.New() })
}
