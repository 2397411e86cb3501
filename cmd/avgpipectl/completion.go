package main

import (
	"io"

	"github.com/spf13/cobra"
)

// shells makes the completion script of each shell.
var shells = map[string]func(root *cobra.Command, out io.Writer) error{
	"bash":       func(root *cobra.Command, out io.Writer) error { return root.GenBashCompletionV2(out, true) },
	"zsh":        func(root *cobra.Command, out io.Writer) error { return root.GenZshCompletion(out) },
	"fish":       func(root *cobra.Command, out io.Writer) error { return root.GenFishCompletion(out, true) },
	"powershell": func(root *cobra.Command, out io.Writer) error { return root.GenPowerShellCompletionWithDesc(out) },
}

var shellNames = []string{"bash", "zsh", "fish", "powershell"}

func newCompletionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "completion bash|zsh|fish|powershell",
		Short: "Print a completion script for a shell",
		Long:  `Print a script that makes a shell complete verbs and flags.`,
		Example: `  avgpipectl completion bash > /etc/bash_completion.d/avgpipectl
  avgpipectl completion zsh > "${fpath[1]}/_avgpipectl"`,
		Args:      arguments(cobra.ExactArgs(1)),
		ValidArgs: shellNames,
		RunE: func(cmd *cobra.Command, args []string) error {
			generate, ok := shells[args[0]]
			if !ok {
				return &usageError{notOneOf("completion", args[0], shellNames)}
			}
			return generate(cmd.Root(), cmd.OutOrStdout())
		},
	}
}
