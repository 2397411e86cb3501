package main

import (
	"context"
	"io"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
)

func newNodesCommand() *cobra.Command {
	var o daemonFlags
	cmd := &cobra.Command{
		Use:   "nodes",
		Short: "Show the nodes of the cluster",
		Long:  `Show the nodes of the cluster: what each one computes with, and the jobs that it works on.`,
		Example: `  avgpipectl nodes
  avgpipectl nodes -o json | jq '.[].devices'`,
		Args: arguments(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return runNodes(cmd.Context(), o, cmd.OutOrStdout())
		},
	}
	o.addFlags(cmd)
	return cmd
}

func runNodes(ctx context.Context, o daemonFlags, out io.Writer) error {
	client := o.client()
	defer client.Close()
	nodes, err := client.Nodes(ctx)
	if err != nil {
		return err
	}
	if o.json() {
		return printJSON(out, nodes)
	}
	var t table
	t.add("NODE", "ROLE", "CORES", "JOBS", "UP", "VERSION", "ADDRESS")
	for _, n := range nodes {
		role, jobs, up := "follower", strings.Join(n.Jobs, ","), n.UptimeS
		if n.Leader {
			role = "leader"
		}
		if jobs == "" {
			jobs = "-"
		}
		t.add(n.ID, role, strconv.Itoa(n.Cores), jobs, seconds(&up), n.Version, n.Address)
	}
	return t.print(out)
}
