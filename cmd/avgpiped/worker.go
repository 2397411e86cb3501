package main

import (
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/avgpipe/avgpipe/internal/worker"
)

func newWorkerCommand() *cobra.Command {
	var c worker.Config
	cmd := hidden("worker --assignment FILE", "Train a job's stages", func(cmd *cobra.Command) error {
		signal.Ignore(syscall.SIGHUP) // the kernel sends it to a worker that is stopped when its daemon dies (setpgid(2))
		c.Log = cmd.ErrOrStderr()
		if code, err := worker.Run(cmd.Context(), c); err != nil {
			return &exit{code, err} // of package control
		}
		return nil
	})
	return required(graphicsFlags(cmd, &c.Graphics), &c.Assignment, "assignment", "file that says what to train")
}
