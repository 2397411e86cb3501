package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"

	"github.com/spf13/cobra"

	"github.com/avgpipe/avgpipe/internal/api"
)

// versionView is the json output.
type versionView struct {
	Client string           `json:"client"`
	Go     string           `json:"go"`
	Daemon *api.VersionInfo `json:"daemon"` // null: none answers
}

func newVersionCommand() *cobra.Command {
	var o daemonFlags
	cmd := &cobra.Command{
		Use:     "version",
		Short:   "Print the version of this program and of the daemon",
		Long:    `Print the version of this program and, when one answers, of the daemon.`,
		Example: `  avgpipectl version -o json`,
		Args:    arguments(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return runVersion(cmd.Context(), o, cmd.OutOrStdout())
		},
	}
	o.addFlags(cmd)
	return cmd
}

func runVersion(ctx context.Context, o daemonFlags, out io.Writer) error {
	client := o.client()
	defer client.Close()
	view := versionView{Client: version, Go: runtime.Version()}
	daemon, err := client.Version(ctx)
	var unreachable *api.ConnectError
	switch {
	case err == nil:
		view.Daemon = &daemon
	case !errors.As(err, &unreachable):
		return err
	}
	if o.json() {
		return printJSON(out, view)
	}
	var t table
	t.add("avgpipectl", version, view.Go)
	if view.Daemon != nil {
		t.add("avgpiped", daemon.Version, daemon.Go, "node "+daemon.Node)
	} else {
		t.add("avgpiped", "none answers at "+unreachable.Socket)
	}
	if err := t.print(out); err != nil {
		return fmt.Errorf("version: %w", err)
	}
	return nil
}
