package main

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/avgpipe/avgpipe/internal/api"
)

// rmOptions are the flags of `rm`.
type rmOptions struct {
	daemonFlags
	force bool
}

func newRmCommand() *cobra.Command {
	var o rmOptions
	cmd := &cobra.Command{
		Use:   "rm JOB...",
		Short: "Remove ended jobs and what the daemon keeps of them",
		Long: `Remove ended jobs: their entries, logs and committed rounds. What was not exported is gone then. A job that has not
ended is refused; with --force it is cancelled first. The command returns once the jobs are gone. It stops at the first that
cannot be removed.`,
		Example: `  avgpipectl rm my-job
  avgpipectl rm 3 4 5
  avgpipectl rm --force my-job`,
		Args: arguments(cobra.MinimumNArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			return runRm(cmd.Context(), o, args, cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	o.addFlags(cmd)
	cmd.Flags().BoolVar(&o.force, "force", false, "cancel a job first that has not ended")
	return cmd
}

func runRm(ctx context.Context, o rmOptions, refs []string, out, messages io.Writer) error {
	client := o.client()
	defer client.Close()
	for _, ref := range refs {
		if o.force {
			if err := endFirst(ctx, client, ref, messages); err != nil {
				return err
			}
		}
		s, err := client.Remove(ctx, ref)
		if err != nil {
			return err
		}
		if o.json() {
			err = printJSON(out, s)
		} else {
			_, err = fmt.Fprintf(out, "job %s (%s) is removed; it was %s\n", s.ID, s.Name, s.State)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// endFirst cancels a job that has not ended, and waits for its end.
func endFirst(ctx context.Context, client *api.Client, ref string, messages io.Writer) error {
	s, err := client.Job(ctx, ref)
	if err != nil || s.State.Ended() {
		return err
	}
	if _, err := fmt.Fprintf(messages, "job %s (%s) is %s: cancelling it first\n", s.ID, s.Name, s.State); err != nil {
		return err
	}
	if _, err := client.Cancel(ctx, s.ID); err != nil {
		if now, again := client.Job(ctx, s.ID); again != nil || !now.State.Ended() { // it may have ended by itself
			return errors.Join(err, again)
		}
	}
	_, err = client.Watch(ctx, s.ID, nil)
	return err
}
