package main

import (
	"cmp"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/avgpipe/avgpipe/internal/api"
)

func newContextCommand() *cobra.Command {
	cmd := verb(&cobra.Command{
		Use:   "context",
		Short: "List the clusters that this program reaches, or choose one",
		Long: `List the clusters that this program reaches; the one that verbs ask is marked *. They are in
$XDG_CONFIG_HOME/avgpipe/config.yaml, else ~/.config/avgpipe/config.yaml; avgpipectl login adds one. The context
` + localContext + ` is the socket of the daemon of this host.`,
		Example: `  avgpipectl context
  avgpipectl context use production`,
		Args: onlyVerbs,
	}, listContexts)
	cmd.AddCommand(verb(&cobra.Command{
		Use: "use NAME", Short: "Choose the context that verbs ask", Long: "Choose the context that verbs ask where neither --context, --socket nor the environment says another.",
		Example: "  avgpipectl context use production\n  avgpipectl context use " + localContext,
	}, useContext))
	return cmd
}

// contextLine is a line of `avgpipectl context`.
type contextLine struct {
	Name      string   `json:"name"`
	Current   bool     `json:"current"`
	Addresses []string `json:"addresses"`
}

func listContexts(c *call) error {
	all, err := readContexts()
	if err != nil {
		return err
	}
	lines := []contextLine{{localContext, all.Context == localContext, []string{socketPath("")}}}
	for _, one := range all.all {
		lines = append(lines, contextLine{one.name, all.Context == one.name, one.addresses})
	}
	return c.show(lines, func(p *page) {
		t := table{}
		t.add("", "CONTEXT", "ADDRESSES")
		for _, l := range lines {
			mark := ""
			if l.Current {
				mark = "*"
			}
			t.add(mark, l.Name, strings.Join(l.Addresses, ", "))
		}
		p.table(&t)
	})
}

func useContext(c *call) error {
	all, err := readContexts()
	if err != nil {
		return err
	}
	if _, err := all.find(c.args[0]); err != nil {
		return err
	}
	all.Context = c.args[0]
	if err := all.write(); err != nil {
		return err
	}
	return c.show(contextLine{Name: all.Context, Current: true}, func(p *page) { p.printf("context %s is used\n", all.Context) })
}

// where says which daemon or cluster a verb asks.
type where struct{ socket, context string }

// whereVar adds the flags that say it.
func whereVar(flags *pflag.FlagSet) *where {
	w := &where{}
	flags.StringVar(&w.socket, "socket", "", "the daemon's `PATH` (default $AVGPIPE_SOCKET, else "+api.DefaultSocket+")")
	flags.StringVar(&w.context, "context", "", "the cluster's `NAME` in the list of contexts (default $AVGPIPE_CONTEXT, else the one in use)")
	return w
}

// find returns the context; nil: a socket. What is said nearest wins: a flag, the environment, the configuration.
func (w *where) find() (*remoteContext, error) {
	switch {
	case w.socket != "" && w.context != "":
		return nil, usagef("--socket stands beside --context; remove one of them")
	case w.socket != "" || w.context == "" && os.Getenv("AVGPIPE_SOCKET") != "":
		return nil, nil //nolint:nilnil // as documented
	}
	all, err := readContexts()
	if err != nil {
		return nil, err
	}
	return all.find(cmp.Or(w.context, os.Getenv("AVGPIPE_CONTEXT"), all.Context))
}

// client returns a client of it, and the context, with its certificate, where it is one.
func (w *where) client() (*api.Client, *remoteContext, *api.Remote, error) {
	context, err := w.find()
	if err != nil {
		return nil, nil, nil, err
	}
	if context == nil {
		return api.NewClient(socketPath(w.socket)), nil, nil, nil
	}
	r, err := context.open()
	if err != nil {
		return nil, nil, nil, err
	}
	return api.NewRemoteClient(*r), context, r, nil
}

// sayAge says once that what is shown is old.
func (c *call) sayAge() {
	said := false
	c.client.OnAge(func(age time.Duration, why string) {
		if !said {
			said = true
			fmt.Fprintf(c.messages, "%s: this is as of %v ago\n", cmp.Or(why, "no node leads"), max(age, time.Millisecond).Round(time.Millisecond)) //nolint:errcheck // for show
		}
	})
}
