package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os/user"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/avgpipe/avgpipe/internal/api"
	"github.com/avgpipe/avgpipe/internal/node"
	"github.com/avgpipe/avgpipe/internal/pki"
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

// warnOfLoopback says it where only this host reaches an address.
func warnOfLoopback(cmd *cobra.Command, at string) {
	host, _, _ := net.SplitHostPort(at) // reachable has seen that it is HOST:PORT
	if host == "localhost" || net.ParseIP(host).IsLoopback() {
		cmd.PrintErrf("Warning: only this host reaches %s: where nodes of other hosts are to join, set listen, or advertise, to an address that they reach, before the daemon starts.\n", at)
	}
}

func newInitCommand() *cobra.Command {
	var path, authority string
	var others []string
	cmd := &cobra.Command{
		Use:   "init --config FILE",
		Short: "Make the state directory that of the first node of a cluster",
		Long: `Init makes the state directory of a daemon that does not run that of the first node of a cluster: it makes the cluster's
authority, which signs all certificates, and the certificate of this node. Jobs that are there stay. It asks nothing of the network. The
next start of the daemon begins the cluster; avgpiped token then makes tokens, with which other nodes join and users log in.

The configuration needs listen, where the other nodes reach this one. Run it as the user that the state directory belongs to, with the
daemon stopped.

With --authority the authority is one that avgpiped authority made before. A state directory that is a node of its cluster already stays as it
is; and where a node of it answers at an address of --others, the cluster has begun, and init refuses to begin another.

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
			if err := checkAddresses("--others", others); err != nil {
				return err
			}
			begin := func() (string, error) { return node.Init(c.StateDir, c.Node) }
			if authority != "" {
				a, err := pki.ReadAuthority(authority)
				if err != nil {
					return err
				}
				begin = func() (string, error) { return node.InitAuthority(cmd.Context(), c.StateDir, c.Node, a, others) }
			}
			id, err := begin()
			if err != nil {
				return c.explain(err)
			}
			warnOfLoopback(cmd, address)
			_, err = fmt.Fprintf(cmd.OutOrStdout(), `cluster %s: %s is that of its first node, at %s.
Next: start the daemon here; then, for each other host, avgpiped token here, and there
avgpiped join %s --token TOKEN --config FILE.
`, id, c.StateDir, address, address)
			return err
		},
	}
	f := cmd.Flags()
	f.StringVar(&path, "config", "", "configuration `FILE` of the daemon")
	f.StringVar(&authority, "authority", "", "begin the cluster of the authority in `DIR`")
	f.StringSliceVar(&others, "others", nil, "do not begin it where a node of it answers at one of these `ADDRESSES`")
	return cmd
}

// joinOptions are the flags of join.
type joinOptions struct {
	config, token, authority string
	wait                     time.Duration
}

func newJoinCommand() *cobra.Command {
	var o joinOptions
	cmd := &cobra.Command{
		Use:   "join ADDRESS... (--token TOKEN | --authority DIR) --config FILE",
		Short: "Make a new state directory that of a node of a cluster",
		Long: `Join makes the state directory of this host that of a node of a cluster. It asks a node of the cluster at ADDRESS, HOST:PORT, for a
certificate, with a token that avgpiped token made there; of several addresses it takes the first that answers. The token says which
cluster it is: join sends nothing to a host of another one. The next start of the daemon is then one of the cluster's.

The configuration needs listen, where the other nodes reach this one. The state directory must be new: jobs of a daemon that was alone do
not move. Run it as the user that the state directory is to belong to, with the daemon stopped. Where the answer was lost, the same
command once more succeeds with the same token.

With --authority it needs no token: whoever holds the authority's key is an administrator, and join has the token made. A state
directory that is a node of the authority's cluster already stays as it is, and nobody is asked.

Exit codes:
  0  this host is a node of the cluster
  1  it failed, or the cluster refuses; the message says why
  78 the flags or the configuration file are not usable`,
		Example: `  sudo -u avgpipe avgpiped join 192.0.2.7:7700 --token avgpipe-... --config /etc/avgpipe/avgpiped.yaml
  sudo systemctl start avgpiped
  avgpiped join node0:7700 --authority DIR --wait 2m --config avgpiped.yaml`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, addresses []string) error { return o.join(cmd, addresses) },
	}
	f := cmd.Flags()
	f.StringVar(&o.config, "config", "", "configuration `FILE` of the daemon")
	f.StringVar(&o.token, "token", "", "`TOKEN` of avgpiped token")
	f.StringVar(&o.authority, "authority", "", "join by the authority in `DIR`, which avgpiped authority made")
	f.DurationVar(&o.wait, "wait", 0, "`TIME` to ask again for where no node answers")
	cmd.MarkFlagsMutuallyExclusive("token", "authority")
	cmd.MarkFlagsOneRequired("token", "authority")
	return cmd
}

func (o *joinOptions) join(cmd *cobra.Command, addresses []string) error {
	c, err := configured(cmd, o.config)
	if err != nil {
		return err
	}
	if err := checkAddresses("ADDRESS", addresses); err != nil {
		return err
	}
	advertise, err := c.reachable()
	if err != nil {
		return err
	}
	join := func(ctx context.Context) (string, error) {
		return node.Join(ctx, c.StateDir, c.Node, advertise, version, o.token, addresses)
	}
	if o.authority != "" {
		a, err := pki.ReadAuthority(o.authority)
		if err != nil {
			return err
		}
		join = func(ctx context.Context) (string, error) {
			return node.JoinAuthority(ctx, c.StateDir, c.Node, advertise, version, a, addresses)
		}
	}
	id, err := node.Patiently(cmd.Context(), o.wait, join)
	if err != nil {
		return c.explain(err)
	}
	warnOfLoopback(cmd, advertise)
	_, err = fmt.Fprintf(cmd.OutOrStdout(), "cluster %s: %s is that of a node, at %s.\nNext: start the daemon here; avgpipectl nodes then lists it.\n", id, c.StateDir, advertise)
	return err
}

// checkAddresses refuses what is no address.
func checkAddresses(what string, all []string) error {
	for _, a := range all {
		if !new(address).Set(a) {
			return configError(fmt.Errorf("%s %q: want HOST:PORT, such as 192.0.2.7:7700", what, a))
		}
	}
	return nil
}

func newAuthorityCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "authority DIR",
		Short: "Make the authority of a cluster that is yet to begin, for nodes that join without a token",
		Long: `Authority makes an authority, which signs all certificates of a cluster, and keeps its certificate and its key in DIR, authority.crt and
authority.key. Nothing is asked of the network. With it, avgpiped init --authority DIR begins the cluster, and avgpiped join --authority DIR
makes hosts members without a person. Whoever can read the key is an administrator of the cluster: keep it as secret as root's password.

Exit codes:
  0  DIR has the authority
  1  it failed, or DIR has one already
  78 the flags are not usable`,
		Example: `  avgpiped authority ./authority`,
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			a, err := pki.MakeAuthority(args[0], time.Now())
			if err == nil {
				_, err = fmt.Fprintf(cmd.OutOrStdout(), "cluster %s: its authority is in %s\n", a.Cluster(), args[0])
			}
			return err
		},
	}
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
			if e, is := errors.AsType[*api.Error](err); is && e.Status == http.StatusBadRequest {
				return configError(err)
			} else if err != nil {
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
	case o.expires < time.Second:
		return r, configError(fmt.Errorf("--expires %v: want at least 1s", o.expires))
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
