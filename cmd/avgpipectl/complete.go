package main

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"
)

// completeFor bounds what a shell waits for the daemon.
const completeFor = time.Second

// complete offers jobs as the arguments of verbs that take them, and the values of flags that have few.
func complete(root *cobra.Command) {
	for _, cmd := range root.Commands() {
		switch cmd.Name() {
		case "status", "watch", "logs", "explain", "cancel", "export", "history":
			cmd.ValidArgsFunction = completeJobs
		case "generate", "predict", "translate", "evaluate": // a directory is a model as well
			cmd.ValidArgsFunction = func(cmd *cobra.Command, args []string, start string) ([]string, cobra.ShellCompDirective) {
				jobs, _ := completeJobs(cmd, args, start)
				return jobs, cobra.ShellCompDirectiveDefault
			}
		}
		for name, values := range map[string][]string{"output": {formatText, formatJSON}, "state": stateNames} {
			if f := cmd.Flags().Lookup(name); f != nil && (name != "output" || f.Value.Type() == (&output{}).Type()) {
				_ = cmd.RegisterFlagCompletionFunc(name, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp)) // the flag is there
			}
		}
	}
}

// completeJobs offers ids and names of jobs. Without a daemon it offers nothing.
func completeJobs(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	several := cmd.Name() == "cancel"
	if len(args) > 0 && !several {
		return nil, cobra.ShellCompDirectiveDefault
	}
	at := connection{}
	if f := cmd.Flags().Lookup("socket"); f != nil {
		at.socket = f.Value.String()
	}
	client := at.client()
	defer client.Close()
	ctx, stop := context.WithTimeout(context.WithoutCancel(cmd.Context()), completeFor)
	defer stop()
	jobs, err := client.Jobs(ctx)
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	named := map[string]int{}
	for i := range jobs {
		named[jobs[i].Name]++
	}
	var offered []string
	for i := range jobs {
		if s := &jobs[i]; !s.Restricted && (!several || !s.State.Ended()) {
			offered = append(offered, fmt.Sprintf("%s\t%s, %s", s.ID, s.Name, s.State))
			if named[s.Name] == 1 {
				offered = append(offered, fmt.Sprintf("%s\tjob %s, %s", s.Name, s.ID, s.State))
			}
		}
	}
	return offered, cobra.ShellCompDirectiveNoFileComp
}
