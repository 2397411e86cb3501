package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/avgpipe/avgpipe/internal/worker"
)

// workerError carries a worker's exit code (package control) through run.
type workerError struct {
	code int
	err  error
}

func (e *workerError) Error() string { return e.err.Error() }
func (e *workerError) Unwrap() error { return e.err }
func (e *workerError) ExitCode() int { return e.code }

func newWorkerCommand() *cobra.Command {
	var c worker.Config
	cmd := &cobra.Command{
		Use:    "worker --assignment FILE",
		Short:  "Train a job's stages; the daemon starts this, nobody else needs to",
		Hidden: true,
		Args:   usageArguments(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			c.Log = cmd.ErrOrStderr()
			code, err := worker.Run(cmd.Context(), c)
			if err != nil {
				return &workerError{code, err}
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&c.Assignment, "assignment", "", "file that says what to train")
	if err := cmd.MarkFlagRequired("assignment"); err != nil {
		panic(fmt.Sprintf("flag: %v", err)) // it was defined a line above
	}
	return cmd
}
