package main

import (
	"cmp"
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/avgpipe/avgpipe/internal/api"
	"github.com/avgpipe/avgpipe/internal/gpu"
	"github.com/avgpipe/avgpipe/internal/words"
)

func newNodesCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "nodes",
		Short: "Show the nodes of the cluster",
		Long: `Show the nodes of the cluster: what each one computes with, and the jobs that it works on. Nodes are a leader, voters and non-voters of the replicated
state. They are alive, suspect or down, as the one that leads sees them: SEEN is how long ago each answered it, and RTT the round trip of its last probe.
What a node has is not known (-) before one leads that has asked it.
One that is draining gets no new jobs.

Of each GPU that jobs may use it shows how it is. A sick GPU gets no stages. docs/operations.md says what to do about each reason.
What an error (XID) said of a GPU is kept until the host is booted or the driver says that the GPU was reset, or until an administrator, who has
seen to the GPU, says --clear-gpu.`,
		Example: `  avgpipectl nodes
  avgpipectl nodes --clear-gpu 0
  avgpipectl nodes -o json | jq '.[].gpus[] | select(.health.level != "healthy")'`,
	}
	healed := cmd.Flags().String("clear-gpu", "", "forget what errors (XIDs) said of the `GPU`, an index or a UUID")
	cmd.Args = onlyVerbs
	defer cmd.AddCommand(newDrainCommand(), newUndrainCommand(), newRemoveNodeCommand())
	return daemonVerb(cmd, func(c *call) error {
		list := c.client.Nodes
		if c.flags.Changed("clear-gpu") {
			if *healed == "" {
				return usagef("nodes: --clear-gpu names a GPU by its index or UUID, as avgpipectl nodes shows them")
			}
			list = func(ctx context.Context) ([]api.NodeStatus, error) { return c.client.ClearGPU(ctx, *healed) }
		}
		nodes, err := list(c.ctx)
		if err != nil {
			return err
		}
		return c.showNodes(nodes)
	})
}

// showNodes shows the nodes, and the GPUs of each.
func (c *call) showNodes(nodes []api.NodeStatus) error {
	return c.show(nodes, func(p *page) {
		t := table{narrow: []string{"ADDRESS", "RTT", "VERSION", "UP", "SEEN"}}
		t.add("NODE", "ROLE", "STATE", "SEEN", "RTT", "CORES", "GPUS", "JOBS", "UP", "VERSION", "ADDRESS")
		for _, n := range nodes {
			cores, gpus, up, seen := "-", "-", "-", seconds(&n.AgeS)
			if n.Cores > 0 { // what it has is known
				cores, gpus, up = strconv.Itoa(n.Cores), strconv.Itoa(len(n.GPUs)), seconds(&n.UptimeS)
			} else if n.AgeS == 0 {
				seen = "-"
			}
			t.add(n.ID, string(n.Role), string(n.State), seen, roundTrip(n.RoundTripS), cores, gpus, cmp.Or(strings.Join(n.Jobs, ","), "-"), up, n.Version, n.Address)
		}
		p.table(&t)
		for _, n := range nodes {
			if n.Reason != "" {
				p.printf("\n%s: %s\n", n.ID, n.Reason)
			}
		}
		for _, n := range nodes {
			showGPUs(p, n.GPUs, n.HiddenGPUs)
		}
	})
}

// showGPUs adds a table of the GPUs of a node, with every reason why one is not healthy, and what is said of those that are hidden from jobs.
func showGPUs(p *page, all []gpu.GPUStatus, hidden string) {
	if hidden != "" {
		defer p.printf("\nhidden from jobs: %s\n", hidden)
	}
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

// roundTrip prints a round trip in seconds; 0 is not known.
func roundTrip(s float64) string {
	if s == 0 {
		return "-"
	}
	return words.Seconds(s)
}
