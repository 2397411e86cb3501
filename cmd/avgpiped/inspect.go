package main

import (
	"github.com/spf13/cobra"

	"github.com/avgpipe/avgpipe/internal/admission"
	"github.com/avgpipe/avgpipe/internal/outputdir"
)

func newInspectCommand() *cobra.Command {
	return &cobra.Command{
		Use:    "inspect",
		Short:  "Check the job file on standard input, and what it names; the daemon starts this, nobody else needs to",
		Hidden: true,
		Args:   usageArguments(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return admission.Inspect(cmd.Context(), cmd.InOrStdin(), cmd.OutOrStdout())
		},
	}
}

func newExportCommand() *cobra.Command {
	return &cobra.Command{
		Use:    "export",
		Short:  "Write the model on standard input to a job's output.dir; the daemon starts this, nobody else needs to",
		Hidden: true,
		Args:   usageArguments(cobra.NoArgs),
		RunE:   func(cmd *cobra.Command, _ []string) error { return outputdir.Receive(cmd.InOrStdin()) },
	}
}
