package main

import (
	"context"
	"errors"
	"runtime"
	"time"

	"github.com/spf13/cobra"

	"github.com/avgpipe/avgpipe/internal/api"
)

// versionTimeout bounds the wait for the daemon's version.
const versionTimeout = 5 * time.Second

func newVersionCommand() *cobra.Command {
	return daemonVerb(&cobra.Command{
		Use:     "version",
		Short:   "Print the version of this program and of the daemon",
		Long:    `Print the version of this program and, when one answers, of the daemon.`,
		Example: `  avgpipectl version -o json`,
	}, func(c *call) error {
		view := map[string]any{"client": version, "go": runtime.Version(), "daemon": nil} // nil: none answers
		ctx, stop := context.WithTimeout(c.ctx, versionTimeout)                           // the client's own is worth knowing without a daemon
		defer stop()
		daemon, err := c.client.Version(ctx)
		unreachable, absent := errors.AsType[*api.ConnectError](err)
		if err == nil {
			view["daemon"] = daemon
		} else if !absent {
			return err
		}
		return c.show(view, func(p *page) {
			var t table
			t.add("avgpipectl", version, runtime.Version())
			if !absent {
				t.add("avgpiped", daemon.Version, daemon.Go, "node "+daemon.Node)
			} else {
				t.add("avgpiped", unreachable.Error())
			}
			p.table(&t)
		})
	})
}
