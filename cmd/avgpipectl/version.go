package main

import (
	"context"
	"errors"
	"runtime"
	"time"

	"github.com/spf13/cobra"

	"github.com/avgpipe/avgpipe/internal/api"
)

// versionView is the json output.
type versionView struct {
	Client string           `json:"client"`
	Go     string           `json:"go"`
	Daemon *api.VersionInfo `json:"daemon"` // null: none answers
}

// versionTimeout bounds the wait for the daemon's version.
const versionTimeout = 5 * time.Second

func newVersionCommand() *cobra.Command {
	return daemonVerb(&cobra.Command{
		Use:     "version",
		Short:   "Print the version of this program and of the daemon",
		Long:    `Print the version of this program and, when one answers, of the daemon.`,
		Example: `  avgpipectl version -o json`,
		Args:    cobra.NoArgs,
	}, func(c *call) error {
		view := versionView{Client: version, Go: runtime.Version()}
		ctx, stop := context.WithTimeout(c.ctx, versionTimeout) // the client's own is worth knowing without a daemon
		defer stop()
		daemon, err := c.client.Version(ctx)
		unreachable, absent := errors.AsType[*api.ConnectError](err)
		if err == nil {
			view.Daemon = &daemon
		} else if !absent {
			return err
		}
		return c.show(view, func(p *page) {
			var t table
			t.add("avgpipectl", version, view.Go)
			if view.Daemon != nil {
				t.add("avgpiped", daemon.Version, daemon.Go, "node "+daemon.Node)
			} else {
				t.add("avgpiped", unreachable.Error())
			}
			p.table(&t)
		})
	})
}
