package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/avgpipe/avgpipe/job"
	"github.com/avgpipe/avgpipe/schedule"
)

// completeFor bounds what a shell waits for the daemon.
const completeFor = time.Second

// flagWords are the values of flags that have few, by the verb and the flag.
var flagWords = map[string][]string{
	"status state": stateNames, "logs level": logLevels, "history output": historyOutputs, "tokenize format": tokenFormats,
	"show schedule": schedule.Names(), "show output": planOutputs, "compare output": compareOutputs,
}

// complete offers jobs as the arguments of verbs that take them, and the values of flags that have few.
func complete(root *cobra.Command) {
	for _, cmd := range root.Commands() {
		complete(cmd) // the verbs below it
		switch cmd.Name() {
		case "status", "watch", "logs", "explain", "cancel", "export", "history", "rm", "resume":
			cmd.ValidArgsFunction = completeJobs
		case "generate", "predict", "translate", "evaluate": // a directory is a model as well
			cmd.ValidArgsFunction = func(cmd *cobra.Command, args []string, start string) ([]string, cobra.ShellCompDirective) {
				jobs, _ := completeJobs(cmd, args, start)
				return jobs, cobra.ShellCompDirectiveDefault
			}
		}
		cmd.Flags().VisitAll(func(f *pflag.Flag) {
			words := flagWords[cmd.Name()+" "+f.Name]
			if f.Name == "output" && f.Value.Type() == (&output{}).Type() {
				words = []string{formatText, formatJSON}
			}
			switch {
			case f.Name == "set":
				_ = cmd.RegisterFlagCompletionFunc(f.Name, completeSet) // the flag is there
			case words != nil:
				_ = cmd.RegisterFlagCompletionFunc(f.Name, cobra.FixedCompletions(words, cobra.ShellCompDirectiveNoFileComp))
			}
		})
	}
}

// completeSet offers the keys of a job file and, behind one that holds few words, these.
func completeSet(_ *cobra.Command, _ []string, start string) ([]string, cobra.ShellCompDirective) {
	name, _, chosen := strings.Cut(start, "=")
	var offered []string
	for _, k := range job.Keys() {
		switch {
		case !chosen && strings.HasPrefix(k.Name, start):
			offered = append(offered, k.Name+"=\t"+k.Holds)
		case chosen && k.Name == name:
			words := k.Words
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

// completeJobs offers ids and names of jobs. Without a daemon it offers nothing.
func completeJobs(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	several := slices.Contains([]string{"cancel", "rm", "resume", "history"}, cmd.Name())
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
		if s := &jobs[i]; !s.Restricted && (cmd.Name() != "cancel" || !s.State.Ended()) {
			offered = append(offered, fmt.Sprintf("%s\t%s, %s", s.ID, s.Name, s.State))
			if named[s.Name] == 1 {
				offered = append(offered, fmt.Sprintf("%s\tjob %s, %s", s.Name, s.ID, s.State))
			}
		}
	}
	return offered, cobra.ShellCompDirectiveNoFileComp
}
