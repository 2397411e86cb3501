package main

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"
)

// cancelOptions are the flags of `cancel`.
type cancelOptions struct {
	connection
	output
}

func newCancelCommand() *cobra.Command {
	var o cancelOptions
	cmd := &cobra.Command{
		Use:   "cancel JOB",
		Short: "End a job",
		Long: `End a job. It commits the round that it is in first, so what it has learned can be exported; if that takes too long
it ends without. The command returns once the daemon knows, before the job has ended.

Exit codes:
` + exitHelp,
		Example: `  avgpipectl cancel my-job`,
		Args:    arguments(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			return runCancel(cmd.Context(), o, args[0], cmd.OutOrStdout())
		},
	}
	o.connection.addFlags(cmd)
	o.output.addFlags(cmd)
	return cmd
}

func runCancel(ctx context.Context, o cancelOptions, ref string, out io.Writer) error {
	client := o.client()
	defer client.Close()
	s, err := client.Cancel(ctx, ref)
	if err != nil {
		return err
	}
	if o.json() {
		return printJSON(out, s)
	}
	_, err = fmt.Fprintf(out, "job %s (%s) is being cancelled\n", s.ID, s.Name)
	return err
}
