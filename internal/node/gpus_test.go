package node_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/avgpipe/avgpipe/internal/gpu"
	"github.com/avgpipe/avgpipe/internal/node/nodetest"
)

// What the driver says of a GPU reaches `nodes`, and an XID at once.
func TestNodesSayHowEachGPUIs(t *testing.T) {
	dir := nodetest.StateDir(t)
	nodetest.GPUs(t, dir,
		gpu.Sample{GPU: gpu.GPU{Index: 0, UUID: "GPU-a", Name: "A100", MemoryBytes: 40 << 30}},
		gpu.Sample{GPU: gpu.GPU{Index: 1, UUID: "GPU-b", Name: "A100", MemoryBytes: 40 << 30}, Readings: gpu.Readings{Rows: &gpu.Rows{Pending: true}}},
	)
	d := nodetest.Start(t, dir)
	levels := func() (all []gpu.Level) {
		nodes, err := d.Client.Nodes(t.Context())
		if err != nil || len(nodes) != 1 {
			t.Fatalf("%d nodes, error %v", len(nodes), err)
		}
		for _, g := range nodes[0].GPUs {
			all = append(all, g.Health.Level)
		}
		return all
	}
	if got := levels(); !slices.Equal(got, []gpu.Level{gpu.Healthy, gpu.Degraded}) {
		t.Fatalf("GPUs are %v", got)
	}
	nodetest.ReportXID(t, dir, "GPU-a", 79)
	for !slices.Equal(levels(), []gpu.Level{gpu.Sick, gpu.Degraded}) && t.Context().Err() == nil {
		time.Sleep(10 * time.Millisecond)
	}
	nodes, err := d.Client.Nodes(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if g := nodes[0].GPUs[0]; !strings.HasPrefix(g.Health.String(), "sick: XID 79: it has fallen off the bus") || len(g.XIDs) != 1 {
		t.Errorf("the lost GPU is %+v", g)
	}
}
