package stagetest

import (
	"testing"

	"github.com/avgpipe/avgpipe/internal/envtest"
	"github.com/avgpipe/avgpipe/stage/device"
	"github.com/avgpipe/avgpipe/stage/device/pick"
)

// EachDevice runs test on every kind of device of this build that computes. Stages that the test leaves open close first.
func EachDevice(t *testing.T, test func(t *testing.T, dev device.Device)) {
	for _, kind := range pick.Kinds() {
		if kind == "auto" { // one of the others
			continue
		}
		t.Run(kind, func(t *testing.T) {
			dev, reason, err := pick.Open(kind, devices(t))
			if err != nil {
				t.Fatal(err)
			}
			t.Logf("device: %s", reason)
			t.Cleanup(func() {
				if err := dev.Close(); err != nil {
					t.Error(err)
				}
			})
			if !device.KeepsValues(dev) {
				envtest.Impossible(t, "it computes nothing")
			}
			test(t, dev)
		})
	}
}
