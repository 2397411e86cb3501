package main

import (
	"errors"

	"github.com/spf13/cobra"

	"github.com/avgpipe/avgpipe/internal/node"
)

func newRecoverCommand() *cobra.Command {
	var path string
	var dryRun bool
	cmd := &cobra.Command{
		Use:   "recover --config FILE [--dry-run]",
		Short: "Make a lost or damaged record of jobs again from the jobs' directories",
		Long: `Recover makes the record of jobs again, which the daemon keeps in state_dir/raft, when it is lost or damaged: from the copy
in each job's directory. The damaged files are moved aside; nothing is deleted. Jobs that had ended come back as they were. The
others come back as failed: avgpipectl resume JOB starts one again from its last committed round.

It asks nothing of the network and refuses to run beside a daemon. Run it as the user that the state directory belongs to.

Exit codes:
  0  the record was made again, or --dry-run said how it would be
  1  it failed, or there is nothing to recover
  78 the flags or the configuration file are not usable`,
		Example: `  sudo -u avgpipe avgpiped recover --config /etc/avgpipe/avgpiped.yaml --dry-run`,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if path == "" {
				return configError(errors.New("recover needs --config FILE, which says where the state directory is"))
			}
			c, err := readConfig(path)
			if err != nil {
				return err
			}
			return c.explain(node.Recover(cmd.Context(), c.StateDir, c.Node, dryRun, cmd.OutOrStdout()))
		},
	}
	cmd.Flags().StringVar(&path, "config", "", "configuration `FILE` of the daemon")
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "say what would be done and change nothing")
	return cmd
}
