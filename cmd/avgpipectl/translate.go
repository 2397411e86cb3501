package main

import (
	"context"
	"fmt"
	"io"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/avgpipe/avgpipe/internal/api"
)

// translateOptions are the flags of `translate`.
type translateOptions struct {
	daemonFlags
	beam int
}

func newTranslateCommand() *cobra.Command {
	var o translateOptions
	cmd := &cobra.Command{
		Use:   "translate JOB|DIR [TEXT...]",
		Short: "Translate texts",
		Long: `Translate texts with a translation model: the one of a job's last committed round, or an exported one in a directory.
Without texts, the lines of standard input are translated. A line is printed for each. It computes on this machine,
with the avgpiped beside this program or in PATH.`,
		Example: `  avgpipectl translate gettext-job 'File not found'
  avgpipectl translate ./model -o json < english.txt | jq -r .text`,
		Args: arguments(cobra.MinimumNArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			return runTranslate(cmd.Context(), o, args[0], args[1:], cmd.InOrStdin(), cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	o.addFlags(cmd)
	cmd.Flags().IntVar(&o.beam, "beam", 4, "`NUMBER` of translations that are pursued at once; 1 takes the likeliest token every time")
	return cmd
}

func runTranslate(ctx context.Context, o translateOptions, what string, texts []string, in io.Reader, out, messages io.Writer) error {
	if len(texts) > 0 {
		in = nil
	}
	people := forPeople(out)
	return o.use(ctx, what, func(dir string) error {
		return inferLines(ctx, "translate", dir, append([]string{"--beam", strconv.Itoa(o.beam), "--"}, texts...), in, messages, func(t api.Translation) error {
			if o.json() {
				return printLine(out, t)
			}
			_, err := fmt.Fprintln(people, t.Text)
			return err
		})
	})
}
