package main

import (
	"cmp"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
)

func newNodesCommand() *cobra.Command {
	return daemonVerb(&cobra.Command{
		Use:   "nodes",
		Short: "Show the nodes of the cluster",
		Long:  `Show the nodes of the cluster: what each one computes with, and the jobs that it works on.`,
		Example: `  avgpipectl nodes
  avgpipectl nodes -o json | jq '.[].devices'`,
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
		})
	})
}
