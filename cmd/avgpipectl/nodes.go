package main

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/avgpipe/avgpipe/internal/gpu"
	"github.com/avgpipe/avgpipe/internal/words"
)

func newNodesCommand() *cobra.Command {
	return daemonVerb(&cobra.Command{
		Use:   "nodes",
		Short: "Show the nodes of the cluster",
		Long: `Show the nodes of the cluster: what each one computes with, and the jobs that it works on.

Of each GPU that jobs may use it shows how it is. A sick GPU gets no stages. docs/operations.md says what to do about each reason.`,
		Example: `  avgpipectl nodes
  avgpipectl nodes -o json | jq '.[].gpus[] | select(.health.level != "healthy")'`,
	}, func(c *call) error {
		nodes, err := c.client.Nodes(c.ctx)
		if err != nil {
			return err
		}
		return c.show(nodes, func(p *page) {
			t := table{narrow: []string{"ADDRESS", "VERSION", "UP"}}
			t.add("NODE", "ROLE", "CORES", "JOBS", "UP", "VERSION", "ADDRESS")
			for _, n := range nodes {
				role := "follower"
				if n.Leader {
					role = "leader"
				}
				t.add(n.ID, role, strconv.Itoa(n.Cores), cmp.Or(strings.Join(n.Jobs, ","), "-"), seconds(&n.UptimeS), n.Version, n.Address)
			}
			p.table(&t)
			for _, n := range nodes {
				showGPUs(p, n.GPUs)
			}
		})
	})
}

// showGPUs adds a table of the GPUs of a node, with every reason why one is not healthy.
func showGPUs(p *page, all []gpu.GPUStatus) {
	if len(all) == 0 {
		return
	}
	t := table{narrow: []string{"CLOCK", "POWER", "UUID", "TEMP", "BUSY"}}
	t.add("GPU", "NAME", "UUID", "MEMORY", "FREE", "BUSY", "TEMP", "POWER", "CLOCK", "HEALTH")
	for _, g := range all {
		r, health := &g.Readings, []string{string(g.Health.Level)}
		for _, reason := range g.Health.Reasons {
			health = append(health, reason.Text+" ("+reason.Code+")")
		}
		t.add(strconv.Itoa(g.Index), g.Name, g.UUID, words.Bytes(g.MemoryBytes), or(r.MemoryFreeBytes, words.Bytes),
			or(r.Utilization, func(share float64) string { return fmt.Sprintf("%.0f%%", 100*share) }),
			or(r.TemperatureC, func(c int) string { return fmt.Sprintf("%d°C", c) }),
			or(r.PowerWatts, func(w float64) string { return fmt.Sprintf("%.0fW", w) }),
			or(r.SMClockMHz, func(mhz int) string { return fmt.Sprintf("%dMHz", mhz) }), strings.Join(health, "; "))
	}
	p.printf("\n")
	p.table(&t)
}

// or writes a value, or a dash where it is not known.
func or[T any](v *T, text func(T) string) string {
	if v == nil {
		return "-"
	}
	return text(*v)
}
