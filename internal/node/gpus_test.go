package node_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/avgpipe/avgpipe/internal/api"
	"github.com/avgpipe/avgpipe/internal/gpu"
	"github.com/avgpipe/avgpipe/internal/node"
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
	nodetest.Eventually(t, "the GPU is sick", func() bool { return slices.Equal(levels(), []gpu.Level{gpu.Sick, gpu.Degraded}) })
	nodes, err := d.Client.Nodes(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	g := nodes[0].GPUs[0]
	if !strings.HasPrefix(g.Health.String(), "sick: XID 79: it has fallen off the bus") || len(g.XIDs) != 1 {
		t.Errorf("the lost GPU is %+v", g)
	}
}

// What an XID said of a GPU outlives the daemon, until somebody clears it or the host is booted.
func TestASickGPUStaysSickOverARestart(t *testing.T) {
	dir := nodetest.StateDir(t)
	nodetest.GPUs(t, dir, gpu.Sample{GPU: gpu.GPU{UUID: "GPU-a", Name: "A100", MemoryBytes: 40 << 30}})
	boot := "one"
	start := func() *nodetest.Daemon {
		return nodetest.Start(t, dir, func(c *node.Config) { c.BootID = func() (string, error) { return boot, nil } })
	}
	level := func(nodes []api.NodeStatus, err error) gpu.Level {
		if err != nil || len(nodes) != 1 || len(nodes[0].GPUs) != 1 {
			t.Fatalf("%+v, error %v", nodes, err)
		}
		return nodes[0].GPUs[0].Health.Level
	}
	is := func(d *nodetest.Daemon) gpu.Level { return level(d.Client.Nodes(t.Context())) }
	fail := func(d *nodetest.Daemon) {
		nodetest.ReportXID(t, dir, "GPU-a", 79)
		nodetest.Eventually(t, "the GPU is sick", func() bool { return is(d) == gpu.Sick })
	}
	d := start()
	fail(d)
	d.Stop(t)
	d = start()
	if got := is(d); got != gpu.Sick {
		t.Errorf("it is %s after a restart", got)
	}
	if got := level(d.Client.ClearGPU(t.Context(), "0")); got != gpu.Healthy {
		t.Errorf("it is %s once it was cleared", got)
	}
	if _, err := d.Client.ClearGPU(t.Context(), "0"); err == nil || !strings.Contains(err.Error(), "nothing is kept of GPU 0 (A100, GPU-") {
		t.Errorf("cleared twice: %v", err)
	}
	d.Stop(t)
	d = start()
	if got := is(d); got != gpu.Healthy {
		t.Errorf("it is %s after it was cleared and a restart", got)
	}
	fail(d)
	d.Stop(t)
	boot = "two"
	if got := is(start()); got != gpu.Healthy {
		t.Errorf("it is %s after a boot", got)
	}
}
