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
	return daemonVerb(&cobra.Command{
		Use:   "watch JOB",
		Short: "Follow a job until it ends",
		Long: `Follow a job until it ends: a progress bar on a terminal, else a line whenever something changed, at most every few
seconds. Ctrl-C ends the watching, not the job. A daemon that is restarted meanwhile is waited for, up to a minute.
The json output is one API status per line.`,
		Example: `  avgpipectl watch my-job
  avgpipectl watch my-job -o json | jq .loss`,
	}, func(c *call) error {
		_, err := c.watch(c.args[0])
		return err
	})
}

// watch follows a job until it ends, across restarts of the daemon, and returns its last status. A job that is not done is an error,
// after its reason was printed.
func (c *call) watch(ref string) (api.JobStatus, error) {
	var last api.JobStatus
	var shown error
	p := newProgress(c.out)
	show, say := p.status, p.say
	if c.format == formatJSON {
		show, say = func(s api.JobStatus) error { return printLine(c.out, s) }, func(string) {}
	}
	err := c.acrossRestarts(say, func(answered func()) error {
		_, err := c.client.Watch(c.ctx, ref, func(s api.JobStatus) {
			answered()
			last, ref = s, s.ID
			shown = errors.Join(shown, show(s))
		})
		return err
	})
	if err = errors.Join(err, shown); c.format == formatText {
		err = errors.Join(err, p.finish())
	}
	switch {
	case errors.Is(err, context.Canceled) && last.ID != "":
		fmt.Fprintf(c.messages, "job %s goes on; see it again with: avgpipectl watch %s\n", last.ID, last.ID) //nolint:errcheck // for show
		return last, &exit{code: exitInterrupted}
	case err != nil:
		return last, err
	case last.State != api.Done:
		if c.format == formatText {
			fmt.Fprintf(c.messages, "job %s %s: %s\n", last.ID, last.State, last.Reason) //nolint:errcheck // the exit code says it too
		}
		return last, &exit{code: exitFailed}
	}
	return last, nil
}

// acrossRestarts calls ask, and calls it again while a daemon that has answered goes away and comes back within reconnectFor. ask calls
// answered whenever something comes.
func (c *call) acrossRestarts(say func(string), ask func(answered func()) error) error {
	gone, answered := time.Time{}, false
	for {
		err := ask(func() { gone, answered = time.Time{}, true })
		var unreachable *api.ConnectError
		broken := errors.Is(err, io.ErrUnexpectedEOF)
		if c.ctx.Err() != nil {
			return context.Cause(c.ctx)
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
		case <-c.ctx.Done():
			return context.Cause(c.ctx)
		case <-time.After(reconnectFor / 240):
		}
	}
}
