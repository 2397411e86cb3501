package main

import (
	"strings"
	"testing"

	"github.com/avgpipe/avgpipe/internal/api"
	"github.com/avgpipe/avgpipe/internal/gpu"
)

// TestNodesOfWhichNothingIsKnownHaveNoFigures: while no node leads, nobody knows what the others have.
func TestNodesOfWhichNothingIsKnownHaveNoFigures(t *testing.T) {
	var out strings.Builder
	c := &call{out: &out, format: formatText}
	if err := c.showNodes([]api.NodeStatus{
		{ID: "n1", Role: api.RoleVoter, State: api.NodeAlive, Cores: 2, UptimeS: 61, Version: "v1", Address: "a:1"},
		{ID: "n2", Role: api.RoleVoter, State: api.NodeDown, AgeS: 68, Version: "v1", Address: "b:1"},
		{ID: "n3", Role: api.RoleVoter, State: api.NodeUnknown, Version: "v1", Address: "c:1"},
	}); err != nil {
		t.Fatal(err)
	}
	want := `NODE  ROLE   STATE    SEEN  RTT  CORES  GPUS  JOBS  UP    VERSION  ADDRESS
n1    voter  alive    0s    -    2      0     -     1m1s  v1       a:1
n2    voter  down     1m8s  -    -      -     -     -     v1       b:1
n3    voter  unknown  -     -    -      -     -     -     v1       c:1
`
	if out.String() != want {
		t.Errorf("it shows\n%swant\n%s", out.String(), want)
	}
}

func TestNodesShowHowEachGPUIs(t *testing.T) {
	var out strings.Builder
	p := newPage(&out)
	showGPUs(p, nil, "")
	if p.text.Len() > 0 {
		t.Errorf("of no GPU it shows %q", p.text.String())
	}
	sick := gpu.Health{Level: gpu.Sick, Reasons: []gpu.Reason{{Code: "xid_79", Text: "XID 79: it has fallen off the bus"}, {Code: "nvlink_down", Text: "0 of 12 NVLinks are active"}}}
	showGPUs(p, []gpu.GPUStatus{
		{
			GPU:      gpu.GPU{Index: 0, Name: "A100", UUID: "GPU-a", MemoryBytes: 40 << 30, Health: gpu.Health{Level: gpu.Healthy}},
			Readings: gpu.Readings{MemoryFreeBytes: new(int64(30 << 30)), Utilization: new(0.87), TemperatureC: new(61), PowerWatts: new(250.4), SMClockMHz: new(1410)},
		},
		{GPU: gpu.GPU{Index: 1, Name: "A100", UUID: "GPU-b", MemoryBytes: 40 << 30, Health: sick}},
	}, "GPU 2 (V100): compute capability 7.0, the kernels need 8.0")
	if err := p.print(); err != nil {
		t.Fatal(err)
	}
	want := `
GPU  NAME  UUID   MEMORY   FREE     BUSY  TEMP  POWER  CLOCK    HEALTH
0    A100  GPU-a  42.9 GB  32.2 GB  87%   61°C  250W   1410MHz  healthy
1    A100  GPU-b  42.9 GB  -        -     -     -      -        sick; XID 79: it has fallen off the bus (xid_79); 0 of 12 NVLinks are active (nvlink_down)

hidden from jobs: GPU 2 (V100): compute capability 7.0, the kernels need 8.0
`
	if out.String() != want {
		t.Errorf("it shows:%swant:%s", out.String(), want)
	}
}
