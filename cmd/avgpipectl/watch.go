package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/avgpipe/avgpipe/internal/api"
)

// reconnectFor is how long a watch waits for a daemon that went away: an upgrade takes seconds.
const reconnectFor = time.Minute

func newWatchCommand() *cobra.Command {
	var o daemonFlags
	cmd := &cobra.Command{
		Use:   "watch JOB",
		Short: "Follow a job until it ends",
		Long: `Follow a job until it ends: a progress bar on a terminal, else a line whenever something changed, at most every few
seconds. Ctrl-C ends the watching, not the job. A daemon that is restarted meanwhile is waited for, up to a minute.
The json output is one API status per line.`,
		Example: `  avgpipectl watch my-job
  avgpipectl watch my-job -o json | jq .loss`,
		Args: arguments(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			client := o.client()
			defer client.Close()
			_, err := watch(cmd.Context(), client, o.json(), args[0], cmd.OutOrStdout(), cmd.ErrOrStderr())
			return err
		},
	}
	o.addFlags(cmd)
	return cmd
}

// watch follows a job until it ends and returns its last status. A job that is not done is a *failure, after its reason
// was printed.
func watch(ctx context.Context, client *api.Client, asJSON bool, ref string, out, messages io.Writer) (api.JobStatus, error) {
	var show display = &lineDisplay{out: out, now: time.Now}
	if asJSON {
		show = jsonDisplay{out}
	} else if width, ok := terminal(out); ok {
		show = newBarDisplay(out, width)
	}
	last, err := follow(ctx, client, ref, show)
	if finish := show.finish(); err == nil {
		err = finish
	}
	switch {
	case errors.Is(err, context.Canceled) && last.ID != "":
		fmt.Fprintf(messages, "job %s goes on; see it again with: avgpipectl watch %s\n", last.ID, last.ID) //nolint:errcheck // for show
		return last, &failure{exitInterrupted}
	case err != nil:
		return last, err
	case last.State != api.Done:
		if !asJSON {
			fmt.Fprintf(messages, "job %s %s: %s\n", last.ID, last.State, last.Reason) //nolint:errcheck // the exit code says it too
		}
		return last, &failure{exitFailed}
	}
	return last, nil
}

// follow passes a job's statuses on, across restarts of the daemon.
func follow(ctx context.Context, client *api.Client, ref string, show display) (api.JobStatus, error) {
	var last api.JobStatus
	var shown error
	err := acrossRestarts(ctx, show.say, func(answered func()) error {
		_, err := client.Watch(ctx, ref, func(s api.JobStatus) {
			answered()
			last, ref = s, s.ID
			shown = errors.Join(shown, show.show(s))
		})
		return err
	})
	return last, errors.Join(err, shown)
}

// acrossRestarts calls ask, and calls it again while a daemon that has answered goes away and comes back within reconnectFor. ask calls
// answered whenever something comes.
func acrossRestarts(ctx context.Context, say func(string), ask func(answered func()) error) error {
	gone, answered := time.Time{}, false
	for {
		err := ask(func() { gone, answered = time.Time{}, true })
		var unreachable *api.ConnectError
		broken := errors.Is(err, io.ErrUnexpectedEOF)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if !broken && !errors.As(err, &unreachable) || !broken && !answered {
			return err
		}
		if answered = true; gone.IsZero() {
			gone = time.Now()
			say("the daemon went away; waiting for it to come back")
		}
		if time.Since(gone) > reconnectFor {
			return err
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(reconnectFor / 240):
		}
	}
}
