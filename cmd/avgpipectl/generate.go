package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"strconv"

	"github.com/spf13/cobra"
)

// generateOptions are the flags of `generate`.
type generateOptions struct {
	daemonFlags
	prompt      string
	tokens      int
	temperature float64
	topK        int
	seed        uint64
}

func newGenerateCommand() *cobra.Command {
	var o generateOptions
	cmd := &cobra.Command{
		Use:   "generate JOB|DIR --prompt TEXT",
		Short: "Let a language model continue a text",
		Long: `Let a language model continue a text: the one of a job's last committed round, or an exported one in a directory. It
computes on this machine, with the avgpiped beside this program or in PATH. The continuation is printed as it is
drawn, without the prompt, up to the end of the document or --tokens.`,
		Example: `  avgpipectl generate my-job --prompt 'func '
  avgpipectl generate ./model --prompt 'func ' --tokens 200 --temperature 0.7 --top-k 40`,
		Args: arguments(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			return runGenerate(cmd.Context(), o, args[0], cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	o.addFlags(cmd)
	f := cmd.Flags()
	f.StringVar(&o.prompt, "prompt", "", "`TEXT` to continue")
	f.IntVar(&o.tokens, "tokens", 300, "`NUMBER` of tokens to generate at most")
	f.Float64Var(&o.temperature, "temperature", 0.8, "`VALUE` of 0 takes the most likely token every time, 1 draws as the model says")
	f.IntVar(&o.topK, "top-k", 0, "draw from the `K` most likely tokens; 0 is all")
	f.Uint64Var(&o.seed, "seed", 1, "`NUMBER` that determines the draws")
	return cmd
}

func runGenerate(ctx context.Context, o generateOptions, what string, out, messages io.Writer) error {
	return o.use(ctx, what, func(dir string) error {
		var text bytes.Buffer
		into := forPeople(out)
		if o.json() {
			into = &text
		}
		cmd, err := infer(ctx, "generate", dir, []string{
			"--prompt", o.prompt, "--tokens", strconv.Itoa(o.tokens), "--temperature", strconv.FormatFloat(o.temperature, 'g', -1, 64),
			"--top-k", strconv.Itoa(o.topK), "--seed", strconv.FormatUint(o.seed, 10),
		}, nil, into, messages)
		if err != nil {
			return err
		}
		if err := outcome(ctx, cmd.Path, cmd.Run()); err != nil {
			return err
		}
		if o.json() {
			return printJSON(out, map[string]string{"prompt": o.prompt, "text": text.String()})
		}
		_, err = fmt.Fprintln(out)
		return err
	})
}
