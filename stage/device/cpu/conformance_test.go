package cpu_test

import (
	"fmt"
	"testing"

	"github.com/avgpipe/avgpipe/stage/device"
	"github.com/avgpipe/avgpipe/stage/device/cpu"
	"github.com/avgpipe/avgpipe/stage/stagetest"
)

func open(t *testing.T, c cpu.Config) *cpu.Device {
	t.Helper()
	d, err := cpu.Open(c)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func TestConforms(t *testing.T) {
	for _, threads := range []int{1, 2} {
		t.Run(fmt.Sprintf("threads=%d", threads), func(t *testing.T) {
			stagetest.Device(t, func() device.Device { return open(t, cpu.Config{Threads: threads}) })
		})
	}
}
