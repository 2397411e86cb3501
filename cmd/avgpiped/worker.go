package main

import (
	"github.com/spf13/cobra"

	"github.com/avgpipe/avgpipe/internal/worker"
)

func newWorkerCommand() *cobra.Command {
	var c worker.Config
	cmd := hidden("worker --assignment FILE", "Train a job's stages", func(cmd *cobra.Command) error {
		c.Log = cmd.ErrOrStderr()
		if code, err := worker.Run(cmd.Context(), c); err != nil {
			return &exit{code, err} // of package control
		}
		return nil
	})
	return required(cmd, &c.Assignment, "assignment", "file that says what to train")
}
