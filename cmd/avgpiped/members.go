package main

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"os/user"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/avgpipe/avgpipe/internal/api"
	"github.com/avgpipe/avgpipe/internal/node"
)

// configured is the configuration that a verb reads with --config, without which it does nothing.
func configured(cmd *cobra.Command, path string) (config, error) {
	if path == "" {
		return config{}, configError(fmt.Errorf("%s needs --config FILE, the configuration of the daemon", cmd.Name()))
	}
	return readConfig(path)
}

// reachable is the address that a configuration tells other nodes.
func (c *config) reachable() (string, error) {
	at := cmp.Or(string(c.Advertise), string(c.Listen))
	host, _, err := net.SplitHostPort(at)
	switch {
	case c.Listen == "":
		return "", configError(errors.New("a node of a cluster needs a port: set listen in the configuration to where the others reach it, such as 192.0.2.7:7700"))
	case err != nil || host == "" || net.ParseIP(host).IsUnspecified():
		return "", configError(fmt.Errorf("others cannot reach this node at %s: set advertise in the configuration to an address of this host and the port, such as 192.0.2.7:7700", at))
	}
	return at, nil
}

func newInitCommand() *cobra.Command {
	var path string
	cmd := &cobra.Command{
		Use:   "init --config FILE",
		Short: "Make the state directory that of the first node of a cluster",
		Long: `Init makes the state directory of a daemon that does not run that of the first node of a cluster: it makes the cluster's
authority, which signs all certificates, and the certificate of this node. Jobs that are there stay. It asks nothing of the network. The
next start of the daemon begins the cluster; avgpiped token then makes tokens, with which other nodes join and users log in.

The configuration needs listen, where the other nodes reach this one. Run it as the user that the state directory belongs to, with the
daemon stopped.

Exit codes:
  0  the state directory is that of a node of a new cluster
  1  it failed, a daemon runs, or the state directory belongs to a cluster already
  78 the flags or the configuration file are not usable`,
		Example: `  sudo systemctl stop avgpiped
  sudo -u avgpipe avgpiped init --config /etc/avgpipe/avgpiped.yaml
  sudo systemctl start avgpiped`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := configured(cmd, path)
			if err != nil {
				return err
			}
			address, err := c.reachable()
			if err != nil {
				return err
			}
			id, err := node.Init(c.StateDir, c.Node)
			if err != nil {
				return c.explain(err)
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), `cluster %s: %s is that of its first node, at %s.
Next: start the daemon here; then, for each other host, avgpiped token here, and there
avgpiped join %s --token TOKEN --config FILE.
`, id, c.StateDir, address, address)
			return err
		},
	}
	cmd.Flags().StringVar(&path, "config", "", "configuration `FILE` of the daemon")
	return cmd
}

func newJoinCommand() *cobra.Command {
	var path, token string
	cmd := &cobra.Command{
		Use:   "join ADDRESS... --token TOKEN --config FILE",
		Short: "Make a new state directory that of a node of a cluster",
		Long: `Join makes the state directory of this host that of a node of a cluster. It asks a node of the cluster at ADDRESS, HOST:PORT, for a
certificate, with a token that avgpiped token made there; of several addresses it takes the first that answers. The token says which
cluster it is: join sends nothing to a host of another one. The next start of the daemon is then one of the cluster's.

The configuration needs listen, where the other nodes reach this one. The state directory must be new: jobs of a daemon that was alone do
not move. Run it as the user that the state directory is to belong to, with the daemon stopped. Where the answer was lost, the same
command once more succeeds with the same token.

Exit codes:
  0  this host is a node of the cluster
  1  it failed, or the cluster refuses; the message says why
  78 the flags or the configuration file are not usable`,
		Example: `  sudo -u avgpipe avgpiped join 192.0.2.7:7700 --token avgpipe-... --config /etc/avgpipe/avgpiped.yaml
  sudo systemctl start avgpiped`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, addresses []string) error {
			c, err := configured(cmd, path)
			if err != nil {
				return err
			}
			for _, a := range addresses {
				if !new(address).Set(a) {
					return configError(fmt.Errorf("ADDRESS %q: want HOST:PORT, such as 192.0.2.7:7700", a))
				}
			}
			advertise, err := c.reachable()
			if err != nil {
				return err
			}
			id, err := node.Join(cmd.Context(), c.StateDir, c.Node, advertise, version, token, addresses)
			if err != nil {
				return c.explain(err)
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "cluster %s: %s is that of a node, at %s.\nNext: start the daemon here; avgpipectl nodes then lists it.\n", id, c.StateDir, advertise)
			return err
		},
	}
	cmd.Flags().StringVar(&path, "config", "", "configuration `FILE` of the daemon")
	return required(cmd, &token, "token", "`TOKEN` of avgpiped token")
}

// tokenOptions are the flags of token.
type tokenOptions struct {
	config, socket, role, user string
	expires                    time.Duration
}

func newTokenCommand() *cobra.Command {
	var o tokenOptions
	cmd := &cobra.Command{
		Use:   "token [--role ROLE --user NAME] [--expires TIME]",
		Short: "Make a token, with which a node joins the cluster or a user logs in, once",
		Long: `Token asks the running daemon for a token and prints it, alone on a line. With the role node, the default, another host joins
by it (avgpiped join); with one of the others the user that --user names logs in by it from anywhere (avgpipectl login): view may read,
submit may own jobs too, admin may do everything. A token can be used once, until it expires. Whoever has it can use it: keep it secret.

Only administrators of the daemon may make one.

Exit codes:
  0  the token was printed
  1  it failed: no daemon answers, it is not one of a cluster, or you are no administrator
  78 the flags or the configuration file are not usable`,
		Example: `  sudo avgpiped token
  sudo avgpiped token --role submit --user ada --expires 15m`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			r, err := o.request()
			if err != nil {
				return err
			}
			c := defaultConfig()
			if o.config != "" {
				if c, err = readConfig(o.config); err != nil {
					return err
				}
			}
			client := api.NewClient(cmp.Or(o.socket, c.Socket))
			defer client.Close()
			answer, err := client.Token(cmd.Context(), r)
			if err != nil {
				return err
			}
			_, err = fmt.Fprintln(cmd.OutOrStdout(), answer.Token)
			return err
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.config, "config", "", "configuration `FILE` of the daemon, for its socket")
	f.StringVar(&o.socket, "socket", "", "`PATH` of the daemon's socket, where it is not that of the configuration")
	f.StringVar(&o.role, "role", "node", "`ROLE` that it gives: node, view, submit or admin")
	f.StringVar(&o.user, "user", "", "user of this host whom it is for, by `NAME`; not with the role node")
	f.DurationVar(&o.expires, "expires", time.Hour, "`TIME` until it can be used no more")
	return cmd
}

// request is what the flags ask for.
func (o *tokenOptions) request() (api.TokenRequest, error) {
	r := api.TokenRequest{Role: o.role, User: o.user, ValidS: o.expires.Seconds()}
	switch {
	case o.role == "node" && o.user == "":
		return r, nil
	case o.role == "node":
		return r, configError(errors.New("--user is for users: say --role view, submit or admin as well, or drop --user"))
	case o.user == "":
		return r, configError(fmt.Errorf("--role %s needs --user NAME, whom the certificate is for", o.role))
	}
	u, err := user.Lookup(o.user)
	if err != nil {
		return r, configError(fmt.Errorf("--user %s: %w; name a user that this host knows", o.user, err))
	}
	uid, err := strconv.ParseUint(u.Uid, 10, 32)
	r.UID = uint32(uid) //nolint:gosec // of 32 bits
	return r, err
}
