package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/avgpipe/avgpipe/internal/api"
	"github.com/avgpipe/avgpipe/internal/nearest"
	"github.com/avgpipe/avgpipe/job"
	"github.com/avgpipe/avgpipe/schedule"
)

// call is a verb that is being run.
type call struct {
	ctx           context.Context //nolint:containedctx // a call lasts as long as its context
	args          []string
	flags         *pflag.FlagSet
	in            io.Reader
	out, messages io.Writer
	format        string         // a value of -o
	client        *api.Client    // of a verb that asks the daemon
	remote        *remoteContext // that it asks; nil: the daemon of a socket
}

// The output formats that nearly all verbs have.
const (
	formatText = "text"
	formatJSON = "json"
)

// verb completes a command with -o, for text, json and more formats, and with what it does.
func verb(cmd *cobra.Command, run func(c *call) error, more ...string) *cobra.Command {
	format := formatText
	choiceVar(cmd, &format, "output", "o", "`FORMAT`", append([]string{formatText, formatJSON}, more...))
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		err := run(&call{
			ctx: cmd.Context(), args: args, flags: cmd.Flags(), in: cmd.InOrStdin(), out: cmd.OutOrStdout(), messages: cmd.ErrOrStderr(), format: format,
		})
		if err != nil {
			return &exit{exitCode(err), err} // unlike cobra's own
		}
		return nil
	}
	return cmd
}

// daemonVerb is a verb that asks the daemon. Where its usage names a JOB, jobs are offered by completion.
func daemonVerb(cmd *cobra.Command, run func(c *call) error, more ...string) *cobra.Command {
	at := whereVar(cmd.Flags())
	if strings.Contains(cmd.Use, "JOB") {
		cmd.ValidArgsFunction = completeJobs
	}
	return verb(cmd, func(c *call) error {
		var err error
		var opened *api.Remote
		if c.client, c.remote, opened, err = at.client(); err != nil {
			return err
		}
		whom := "the daemon at " + socketPath(at.socket)
		if c.remote != nil {
			whom = "context " + c.remote.name
		}
		c.client.OnSlow(func() {
			fmt.Fprintf(c.messages, "%s has not answered yet; still waiting\n", whom) //nolint:errcheck // for show
		})
		c.sayAge()
		if opened != nil {
			c.renew(opened)
		}
		defer c.client.Close()
		return run(c)
	}, more...)
}

// socketPath is where the daemon is found, unless a flag says where.
func socketPath(flag string) string {
	return cmp.Or(flag, os.Getenv("AVGPIPE_SOCKET"), api.DefaultSocket)
}

// exclusive refuses a flag beside others that say the same thing in another way.
func (c *call) exclusive(flag string, others ...string) error {
	for _, other := range others {
		if c.flags.Changed(flag) && c.flags.Changed(other) {
			return usagef("--%s stands beside --%s; remove one of them", other, flag)
		}
	}
	return nil
}

// choice is the value of a flag that takes one of some words.
type choice struct {
	to      *string
	allowed []string
}

// choiceVar adds a flag that takes one of some words.
func choiceVar(cmd *cobra.Command, to *string, name, short, usage string, allowed []string) {
	cmd.Flags().VarP(&choice{to, allowed}, name, short, usage+": "+strings.Join(allowed, ", "))
	_ = cmd.RegisterFlagCompletionFunc(name, cobra.FixedCompletions(allowed, cobra.ShellCompDirectiveNoFileComp)) // the flag is there
}

// String implements pflag.Value.
func (c *choice) String() string { return *c.to }

// Type implements pflag.Value.
func (c *choice) Type() string { return "word" }

// Set implements pflag.Value.
func (c *choice) Set(text string) error {
	err := oneOf(text, c.allowed)
	if err == nil {
		*c.to = text
	}
	return err
}

// oneOf refuses a word that is not allowed, with the nearest that is.
func oneOf(word string, allowed []string) error {
	if slices.Contains(allowed, word) {
		return nil
	}
	hint := ""
	if near := cmp.Or(nearest.Word(word, allowed), nearest.Beginning(word, allowed)); near != "" {
		hint = "did you mean " + near + "? "
	}
	return fmt.Errorf("%sallowed are %s", hint, strings.Join(allowed, ", "))
}

// setVar adds the flag --set of verbs that read a job file.
func setVar(cmd *cobra.Command, to *[]string, example string) {
	cmd.Flags().StringArrayVar(to, "set", nil, "override `KEY=VALUE` of the file, such as "+example+"; may be repeated")
	_ = cmd.RegisterFlagCompletionFunc("set", completeSet) // the flag is there
}

// completeSet offers the keys of a job file and, behind one that holds few words, these.
func completeSet(_ *cobra.Command, _ []string, start string) ([]string, cobra.ShellCompDirective) {
	name, _, chosen := strings.Cut(start, "=")
	var offered []string
	for _, k := range job.Keys() {
		switch {
		case k.Section():
		case !chosen && strings.HasPrefix(k.Key, start):
			offered = append(offered, k.Key+"=\t"+k.Wants())
		case chosen && k.Key == name:
			words := k.OneOf
			if name == "schedule" {
				words = schedule.Names()
			}
			for _, word := range words {
				offered = append(offered, name+"="+word)
			}
			return offered, cobra.ShellCompDirectiveNoFileComp
		}
	}
	return offered, cobra.ShellCompDirectiveNoSpace | cobra.ShellCompDirectiveNoFileComp
}

// completeFor bounds what a shell waits for the daemon.
const completeFor = time.Second

// completeJobs offers ids and names of jobs, and paths where a directory is a model as well. Without a daemon it offers no jobs.
func completeJobs(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	directive := cobra.ShellCompDirectiveNoFileComp
	if strings.Contains(cmd.Use, "JOB|DIR") {
		directive = cobra.ShellCompDirectiveDefault
	}
	if len(args) > 0 && !strings.Contains(cmd.Use, "JOB...") {
		return nil, cobra.ShellCompDirectiveDefault
	}
	client, _, _, err := (&where{cmd.Flag("socket").Value.String(), cmd.Flag("context").Value.String()}).client()
	if err != nil {
		return nil, directive
	}
	defer client.Close()
	ctx, stop := context.WithTimeout(context.WithoutCancel(cmd.Context()), completeFor)
	defer stop()
	jobs, err := client.Jobs(ctx)
	if err != nil {
		return nil, directive
	}
	named := map[string]int{}
	for i := range jobs {
		named[jobs[i].Name]++
	}
	var offered []string
	for i := range jobs {
		if s := &jobs[i]; !s.Restricted && (cmd.Name() != "cancel" || !s.State.Ended()) {
			offered = append(offered, fmt.Sprintf("%s\t%s, %s", s.ID, s.Name, s.State))
			if named[s.Name] == 1 {
				offered = append(offered, fmt.Sprintf("%s\tjob %s, %s", s.Name, s.ID, s.State))
			}
		}
	}
	return offered, directive
}
