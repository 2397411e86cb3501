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
)

// version is stamped by the Makefile.
var version = "unknown"

// Exit codes. Nothing but a refused configuration ends with exitConfig, for after that code alone systemd does not start the
// daemon again. The Go runtime ends with 2 after a panic.
const (
	exitDone   = 0
	exitFailed = 1
	exitUsage  = 2  // of the hidden verbs
	exitConfig = 78 // EX_CONFIG of sysexits(3)
)

// run is the program without its process.
func run(ctx context.Context, arguments []string, out, messages io.Writer) int {
	root := newRootCommand()
	root.SetArgs(arguments)
	root.SetOut(out)
	root.SetErr(messages)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return exitDone
	}
	fmt.Fprintln(messages, "avgpiped:", err) //nolint:errcheck // nowhere left to say it
	return exitCode(err)
}

// usageError is an error of whoever started a hidden verb.
type usageError struct{ err error }

func (e *usageError) Error() string { return e.err.Error() }
func (e *usageError) Unwrap() error { return e.err }

// exitCoder is an error that knows its exit code.
type exitCoder interface{ ExitCode() int }

func (e *usageError) ExitCode() int { return exitUsage }

// configError is a fault of the daemon's flags or configuration file: starting it again does not help.
type configError struct{ err error }

func (e *configError) Error() string { return e.err.Error() }
func (e *configError) Unwrap() error { return e.err }
func (e *configError) ExitCode() int { return exitConfig }

func exitCode(err error) int {
	var coder exitCoder
	if errors.As(err, &coder) {
		return coder.ExitCode()
	}
	return exitFailed
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
		Args:          configArguments,
		SilenceErrors: true,
		SilenceUsage:  true,
		RunE:          func(cmd *cobra.Command, _ []string) error { return runDaemon(cmd.Context(), o, cmd.ErrOrStderr()) },
	}
	cmd.Flags().StringVar(&o.config, "config", "", "configuration `FILE`")
	cmd.Flags().BoolVar(&o.dev, "dev", false, "one node whose state is in a temporary directory and goes with it")
	cmd.SetFlagErrorFunc(func(at *cobra.Command, err error) error {
		if at == cmd {
			return &configError{err}
		}
		return &usageError{err}
	})
	cmd.CompletionOptions.HiddenDefaultCmd = true
	cmd.AddCommand(newVersionCommand(), newRecoverCommand(), newWorkerCommand(), newTuneCommand(), newInspectCommand(), newExportCommand(), newInferCommand())
	return cmd
}

// configArguments refuses arguments of the daemon itself.
func configArguments(cmd *cobra.Command, arguments []string) error {
	if err := cobra.NoArgs(cmd, arguments); err != nil {
		return &configError{fmt.Errorf("%w; see %s --help", err, cmd.CommandPath())}
	}
	return nil
}

// usageArguments makes an error about arguments a usage error.
func usageArguments(check cobra.PositionalArgs) cobra.PositionalArgs {
	return func(cmd *cobra.Command, arguments []string) error {
		if err := check(cmd, arguments); err != nil {
			return &usageError{fmt.Errorf("%w; see %s --help", err, cmd.CommandPath())}
		}
		return nil
	}
}

func newVersionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  usageArguments(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprintf(cmd.OutOrStdout(), "avgpiped %s (%s %s/%s)\n", version, runtime.Version(), runtime.GOOS, runtime.GOARCH)
			return err
		},
	}
}
