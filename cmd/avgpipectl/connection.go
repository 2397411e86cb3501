package main

import (
	"os"

	"github.com/spf13/cobra"

	"github.com/avgpipe/avgpipe/internal/api"
)

// connection says where the daemon is.
type connection struct{ socket string }

func (c *connection) addFlags(cmd *cobra.Command) {
	cmd.Flags().StringVar(&c.socket, "socket", "", "the daemon's `PATH` (default $AVGPIPE_SOCKET, else "+api.DefaultSocket+")")
}

// daemonFlags are the flags of every verb that asks the daemon.
type daemonFlags struct {
	connection
	output
}

func (d *daemonFlags) addFlags(cmd *cobra.Command) {
	d.connection.addFlags(cmd)
	d.output.addFlags(cmd)
}

// client returns a client of the daemon. The caller closes it.
func (c *connection) client() *api.Client {
	socket := c.socket
	if socket == "" {
		socket = os.Getenv("AVGPIPE_SOCKET")
	}
	if socket == "" {
		socket = api.DefaultSocket
	}
	return api.NewClient(socket)
}
