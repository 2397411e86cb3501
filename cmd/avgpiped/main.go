// Avgpiped is the daemon that hosts training jobs: it keeps their state, starts and watches their workers, and answers
// avgpipectl on a unix socket.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"

	"github.com/spf13/cobra"

	"github.com/avgpipe/avgpipe/internal/admission"
	"github.com/avgpipe/avgpipe/internal/nearest"
	"github.com/avgpipe/avgpipe/internal/outputdir"
	"github.com/avgpipe/avgpipe/stage/device/pick"
)

// version is stamped by the Makefile.
var version = "unknown"

// Exit codes. Nothing but a refused configuration ends with exitConfig, for after that code alone systemd does not start the
// daemon again. The Go runtime ends with 2 after a panic.
const (
	exitDone   = 0
	exitFailed = 1
	exitConfig = 78 // EX_CONFIG of sysexits(3)
)

// run is the program without its process.
func run(ctx context.Context, arguments []string, out, messages io.Writer) int {
	root := newRootCommand()
	root.SetArgs(arguments)
	root.SetOut(out)
	root.SetErr(messages)
	cmd, err := root.ExecuteContextC(ctx)
	if err == nil {
		return exitDone
	}
	coded, ok := errors.AsType[*exit](err)
	if !ok { // cobra's own: of the command line
		coded = &exit{exitConfig, fmt.Errorf("%w; see %s --help", err, cmd.CommandPath())}
	}
	fmt.Fprintln(messages, "avgpiped:", coded) //nolint:errcheck // nowhere left to say it
	return coded.code
}

// exit is an error that ends the program with a code.
type exit struct {
	code int
	err  error
}

func (e *exit) Error() string { return e.err.Error() }
func (e *exit) Unwrap() error { return e.err }

// configError is a fault of the daemon's flags or configuration file: starting it again does not help.
func configError(err error) error { return &exit{exitConfig, err} }

// withCodes gives every error of what the verbs do a code: exitFailed where it has none.
func withCodes(cmd *cobra.Command) {
	if do := cmd.RunE; do != nil {
		cmd.RunE = func(cmd *cobra.Command, args []string) error {
			err := do(cmd, args)
			if _, coded := errors.AsType[*exit](err); err == nil || coded {
				return err
			}
			return &exit{exitFailed, err}
		}
	}
	for _, verb := range cmd.Commands() {
		withCodes(verb)
	}
}

func newRootCommand() *cobra.Command {
	var o daemonOptions
	cmd := &cobra.Command{
		Use:   "avgpiped (--config FILE | --dev)",
		Short: "Host training jobs on this machine",
		Long: `Avgpiped hosts training jobs on this machine. It keeps their state, starts and watches their workers,
makes their averaged weights durable, and answers avgpipectl on a unix socket.

SIGTERM or SIGINT ends it in order: every job commits the round it is in, the workers end, and the jobs
resume when it is started again. A second signal ends it at once; workers then train on until the next
start adopts them, or for orphan_after. SIGHUP reads the configuration file again: keys marked * change at
once, the log names the others that differ, and a file that is refused changes nothing.

Configuration file (YAML; every key has a default):
` + configHelp() + `
Exit codes:
  0   it was told to end and did
  1   it failed; the last line of its log says why
  2   it crashed: a Go panic or a fatal error, whose stacks end its log
  78  the flags or the configuration file are not usable: starting it again does not help`,
		Example: `  avgpiped --dev
  avgpiped --config /etc/avgpipe/avgpiped.yaml`,
		Args:          cobra.NoArgs,
		SilenceErrors: true,
		SilenceUsage:  true,
		RunE:          func(cmd *cobra.Command, _ []string) error { return runDaemon(cmd.Context(), o, cmd.ErrOrStderr()) },
	}
	cmd.Flags().StringVar(&o.config, "config", "", "configuration `FILE`")
	cmd.Flags().BoolVar(&o.dev, "dev", false, "one node whose state is in a temporary directory and goes with it")
	cmd.CompletionOptions.HiddenDefaultCmd = true
	cmd.AddCommand(
		newVersionCommand(), newInitCommand(), newJoinCommand(), newAuthorityCommand(), newTokenCommand(), newRecoverCommand(), newWorkerCommand(), newTuneCommand(), newInferCommand(), newGPUsCommand(), newProbeCommand(), newSpeedCommand(),
		hidden("inspect", "Check the job file on standard input, and what it names", func(cmd *cobra.Command) error {
			return admission.Inspect(cmd.Context(), cmd.InOrStdin(), cmd.OutOrStdout())
		}),
		hidden("export", "Write the model on standard input to a job's output.dir", func(cmd *cobra.Command) error { return outputdir.Receive(cmd.InOrStdin()) }),
	)
	cmd.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error { return nearest.Flag(err, cmd.Flags()) })
	withCodes(cmd)
	return cmd
}

// hidden is a verb without arguments that the daemon starts, or avgpipectl, and nobody else needs to.
func hidden(use, does string, run func(cmd *cobra.Command) error) *cobra.Command {
	return &cobra.Command{
		Use: use, Short: does + "; the daemon starts this, nobody else needs to", Hidden: true, Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return run(cmd) },
	}
}

// required is the value of a flag of a hidden verb without which it does nothing.
func required(cmd *cobra.Command, to *string, name, usage string) *cobra.Command {
	cmd.Flags().StringVar(to, name, "", usage)
	_ = cmd.MarkFlagRequired(name) // the flag is there
	return cmd
}

func newVersionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version, and what this build computes on",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			d, on, err := pick.Open("", pick.Config{})
			if err == nil {
				err = d.Close()
			}
			if err != nil {
				return &exit{exitFailed, fmt.Errorf("open a device: %w", err)}
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "avgpiped %s (%s %s/%s)\ndevice: %s\n", version, runtime.Version(), runtime.GOOS, runtime.GOARCH, on)
			return err
		},
	}
}
