package main

import (
	"context"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/avgpipe/avgpipe/internal/api"
)

// drainLook is how often drain --wait asks how far it is.
const drainLook = 500 * time.Millisecond

func newDrainCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "drain NODE",
		Short: "Place nothing new on a node",
		Long: `Place nothing new on a node, as before its host is upgraded; its jobs go elsewhere once they have committed, and shards that only it has are copied to
other nodes. With --wait the command returns when nothing runs there any more and that is done; where no other node takes copies, it says of which
jobs there are none. avgpipectl nodes resume takes the node back. It is for administrators.`,
		Example: `  avgpipectl nodes drain node2 --wait --reason "new disk"`,
	}
	reason := cmd.Flags().String("reason", "", "`WHY`, for others who look at the nodes")
	wait := cmd.Flags().Bool("wait", false, "wait until nothing runs there any more, and nothing is only there")
	return daemonVerb(cmd, func(c *call) error {
		nodes, err := c.client.Drain(c.ctx, c.args[0], api.DrainRequest{Reason: *reason})
		for err == nil && *wait && !isDrained(nodes, c.args[0]) {
			if err = pause(c.ctx, drainLook); err == nil {
				nodes, err = c.client.Nodes(c.ctx)
			}
		}
		if err != nil {
			return err
		}
		return c.showNodes(nodes)
	})
}

// isDrained reports whether a node is drained, or that it is gone.
func isDrained(nodes []api.NodeStatus, name string) bool {
	i := slices.IndexFunc(nodes, func(n api.NodeStatus) bool { return n.ID == name })
	return i < 0 || nodes[i].State == api.NodeDrained
}

func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func newUndrainCommand() *cobra.Command {
	return daemonVerb(&cobra.Command{
		Use:     "resume NODE",
		Short:   "Place jobs on a drained node again",
		Long:    "Place jobs on a drained node again. It is for administrators.",
		Example: `  avgpipectl nodes resume node2`,
	}, func(c *call) error {
		nodes, err := c.client.Undrain(c.ctx, c.args[0])
		if err != nil {
			return err
		}
		return c.showNodes(nodes)
	})
}

func newRemoveNodeCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "remove NODE",
		Short: "End the membership of a node",
		Long: `End the membership of a node: the others refuse it from then on, and what only it keeps of jobs is lost to them. One that is alive and not
drained, works on jobs, or alone has shards of a job's last committed round, is refused; --force removes it. One that votes is removed only where the others that vote are a majority without
it, and the one that leads not at all. To come back, the host joins with a new state directory. It is for administrators.`,
		Example: `  avgpipectl nodes drain node2 --wait && avgpipectl nodes remove node2
  avgpipectl nodes remove node3 --force`,
	}
	force := cmd.Flags().Bool("force", false, "also when it is alive, works on jobs, or alone has a job's shards")
	return daemonVerb(cmd, func(c *call) error {
		nodes, err := c.client.RemoveNode(c.ctx, c.args[0], *force)
		if err != nil {
			return err
		}
		return c.showNodes(nodes)
	})
}
