// Avgpipectl submits, watches and exports training jobs of a daemon.
package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/avgpipe/avgpipe/internal/api"
	"github.com/avgpipe/avgpipe/internal/nearest"
	"github.com/avgpipe/avgpipe/internal/strictyaml"
)

// version is stamped by the Makefile.
var version = "unknown"

// Exit codes, the same for every verb.
const (
	exitDone        = 0
	exitFailed      = 1
	exitRefused     = 2
	exitNoDaemon    = 3
	exitInterrupted = 130 // 128 + SIGINT, as shells have it
)

// run is the program without its process.
func run(ctx context.Context, arguments []string, in io.Reader, out, messages io.Writer) int {
	root := newRootCommand()
	root.SetArgs(arguments)
	root.SetIn(in)
	root.SetOut(out)
	root.SetErr(messages)
	cmd, err := execute(ctx, root)
	if err == nil {
		return exitDone
	}
	if flag := cmd.Flags().Lookup("output"); flag != nil && flag.Value.String() == formatJSON {
		printJSONError(messages, err)
	} else if text := err.Error(); text != "" {
		fmt.Fprintln(messages, text) //nolint:errcheck // nowhere left to say it
	}
	return exitCode(err)
}

// execute runs a verb. Every error has its exit code.
func execute(ctx context.Context, root *cobra.Command) (*cobra.Command, error) {
	cmd, err := root.ExecuteContextC(ctx)
	if _, ran := errors.AsType[*exit](err); err != nil && !ran {
		err = usagef("%w; usage: %s", err, cmd.UseLine()) // cobra's own, about arguments
	}
	return cmd, err
}

// flagError says what is wrong with the flags of a verb, and which flag is near to one that it does not have.
func flagError(cmd *cobra.Command, err error) error {
	if cmd.HasSubCommands() {
		if wrong := onlyVerbs(cmd, cmd.Flags().Args()); wrong != nil { // the flag is one of the verb that was meant
			return wrong
		}
	}
	if near := nearest.Flag(err, cmd.Flags()); near != err { //nolint:errorlint // whether it added anything
		return usagef("%w", near)
	}
	return usagef("%w; see %s --help", err, cmd.CommandPath())
}

func newRootCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "avgpipectl",
		Short: "Submit, watch and export training jobs",
		Long: `Avgpipectl submits training jobs to a daemon (avgpiped), watches them, and fetches what they trained.

The daemon is found at --socket, else at $AVGPIPE_SOCKET, else at ` + api.DefaultSocket + `.
A cluster that is reached over the network is a context: --context, else $AVGPIPE_CONTEXT, else the one in use (avgpipectl context).
A JOB is named by its id, or by its name if only one job has it.`,
		Example: `  avgpipectl submit job.yaml --watch
  avgpipectl status
  avgpipectl export my-job ./model`,
		Args:          onlyVerbs,
		Version:       version,
		SilenceErrors: true,
		SilenceUsage:  true,
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.SetFlagErrorFunc(flagError)
	cmd.AddCommand(
		newSubmitCommand(), newCheckCommand(), newTuneCommand(), newExplainCommand(), newAuditCommand(), newStatusCommand(), newWatchCommand(), newLogsCommand(), newHistoryCommand(), newCancelCommand(), newRmCommand(), newResumeCommand(), newExportCommand(),
		newGenerateCommand(), newPredictCommand(), newTranslateCommand(), newEvaluateCommand(), newTokenizeCommand(),
		newNodesCommand(), newBackupCommand(), newRestoreCommand(), newChaosCommand(), newPlanCommand(), newContextCommand(), newLoginCommand(), newVersionCommand(),
	)
	cmd.InitDefaultCompletionCmd()
	explainExits(cmd)
	takeArguments(cmd)
	helpOnlyOfVerbs(cmd)
	return cmd
}

// helpOnlyOfVerbs has help refuse what is no verb: its own way is to print the help of the nearest command above it, and be done.
func helpOnlyOfVerbs(root *cobra.Command) {
	root.InitDefaultHelpCmd()
	for _, help := range root.Commands() {
		if help.Name() == "help" {
			help.Args = func(_ *cobra.Command, args []string) error {
				verb, rest, err := root.Find(args)
				if err != nil {
					return err
				}
				return onlyVerbs(verb, rest)
			}
		}
	}
}

// takeArguments has every verb take the arguments that its usage line names: FILE is one, [DIR] may be left out, JOB... stands for several,
// and "JOB... | --all" for a flag in their place.
func takeArguments(cmd *cobra.Command) {
	for _, verb := range cmd.Commands() {
		takeArguments(verb)
	}
	if cmd.HasSubCommands() {
		return
	}
	words, least, most := strings.Fields(cmd.Use)[1:], 0, 0
	optional := false
	if end := slices.IndexFunc(words, func(word string) bool { return word == "|" || strings.HasPrefix(word, "-") }); end >= 0 {
		words, optional = words[:end], words[end] == "|"
	}
	for _, word := range words {
		if most++; !optional && !strings.HasPrefix(word, "[") {
			least++
		}
		if strings.HasSuffix(strings.TrimSuffix(word, "]"), "...") {
			most = math.MaxInt
		}
	}
	cmd.Args = func(_ *cobra.Command, args []string) error {
		if least <= len(args) && len(args) <= most {
			return nil
		}
		wanted, found := cmp.Or(strings.Join(words, " "), "no argument"), "nothing"
		if len(args) > 0 {
			found = fmt.Sprintf("%q", args)
		}
		return fmt.Errorf("%s: want %s, found %s", cmd.Name(), wanted, found)
	}
}

// explainExits adds the exit codes to the help of every verb but those of plan, which have fewer, and refuses arguments of verbs that
// take none with what they take.
func explainExits(cmd *cobra.Command) {
	cmd.Long += "\n\nExit codes:\n" + exitHelp
	for _, verb := range cmd.Commands() {
		if verb.Name() == "completion" {
			verb.Args, verb.RunE = onlyVerbs, func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
		} else if verb.Name() != "plan" {
			explainExits(verb)
		}
	}
}

// onlyVerbs refuses an argument of a command that has verbs below it and takes nothing else, with the nearest verb.
func onlyVerbs(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	cmd.SuggestionsMinimumDistance = 2
	hint := "see " + cmd.CommandPath() + " --help"
	if near := cmd.SuggestionsFor(args[0]); len(near) > 0 {
		hint = "did you mean " + strings.Join(near, ", ") + "?"
	}
	return usagef("no verb %q; %s", args[0], hint)
}

// exitHelp explains the exit codes in every verb's help.
const exitHelp = `  0    done
  1    the request failed, or the job that was watched did
  2    bad usage, or a job file that is refused
  3    no daemon answers
  130  interrupted`

// exit is an error that ends the program with a code. Without err everything was said.
type exit struct {
	code int
	err  error
}

func (e *exit) Error() string {
	if e.err == nil {
		return ""
	}
	return e.err.Error()
}

func (e *exit) Unwrap() error { return e.err }

// usagef is an error of whoever typed the command.
func usagef(format string, args ...any) error { return &exit{exitRefused, fmt.Errorf(format, args...)} }

func exitCode(err error) int {
	var coded *exit
	var unreachable *api.ConnectError
	var refused *api.Error
	var problems strictyaml.Problems
	switch {
	case errors.Is(err, context.Canceled):
		return exitInterrupted
	case errors.As(err, &coded):
		return coded.code
	case errors.As(err, &unreachable):
		return exitNoDaemon
	case errors.As(err, &problems), errors.As(err, &refused) && len(refused.Problems) > 0:
		return exitRefused
	}
	return exitFailed
}

// printJSONError prints an error for programs: as the API has it.
func printJSONError(w io.Writer, err error) {
	var body *api.Error
	var problems strictyaml.Problems
	switch {
	case err.Error() == "":
		return
	case errors.As(err, &body):
	case errors.As(err, &problems):
		body = api.Refused(problems)
	default: // no daemon answered with it
		codes := map[int]api.Code{exitRefused: api.BadRequest, exitNoDaemon: api.Unavailable}
		if body = (&api.Error{Code: codes[exitCode(err)], Message: err.Error()}); body.Code == "" {
			body.Code = api.Internal
		}
	}
	_ = json.NewEncoder(w).Encode(body) // nowhere left to say it
}
