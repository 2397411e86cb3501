package main

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/avgpipe/avgpipe/internal/api"
)

// predictOptions are the flags of `predict`.
type predictOptions struct {
	daemonFlags
	top int
}

func newPredictCommand() *cobra.Command {
	var o predictOptions
	cmd := &cobra.Command{
		Use:   "predict JOB|DIR [INPUT...]",
		Short: "Classify texts or images, or fill in hidden words",
		Long: `Classify texts or images, or fill in hidden words, as the model was trained to: the one of a job's last committed
round, or an exported one in a directory. An input is a text, two texts with a tab between them for a model of
pairs, or the path of a PNG or JPEG file. Without any, the lines of standard input are the inputs. Hidden words of a
masked language model are written as the tokenizer's mask token, such as [MASK].

For each input a line is printed: the class, its probability and the input, with tabs between them; or the text with
its hidden words filled in. With --top K, the K likeliest with their probabilities. It computes on this machine, with the
avgpiped beside this program or in PATH.`,
		Example: `  avgpipectl predict spam-job 'You have won a prize'
  avgpipectl predict ./model digit.png --top 3 -o json | jq '.guesses[0]'
  avgpipectl predict ./masked 'The [MASK] barks.'`,
		Args: arguments(cobra.MinimumNArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			return runPredict(cmd.Context(), o, args[0], args[1:], cmd.InOrStdin(), cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	o.addFlags(cmd)
	cmd.Flags().IntVar(&o.top, "top", 1, "show the `K` likeliest classes or words")
	return cmd
}

func runPredict(ctx context.Context, o predictOptions, what string, inputs []string, in io.Reader, out, messages io.Writer) error {
	if o.top < 1 {
		return &usageError{fmt.Errorf("predict: --top is %d; at least 1 is shown", o.top)}
	}
	arguments := append([]string{"--top", strconv.Itoa(o.top), "--"}, inputs...)
	if len(inputs) > 0 {
		in = nil
	}
	people := forPeople(out)
	return o.use(ctx, what, func(dir string) error {
		return inferLines(ctx, "predict", dir, arguments, in, messages, func(p api.Prediction) error {
			if o.json() {
				return printLine(out, p)
			}
			_, err := fmt.Fprintln(people, predictionLine(p, o.top))
			return err
		})
	})
}

// predictionLine is a prediction for people.
func predictionLine(p api.Prediction, top int) string {
	var words []string
	for _, guesses := range p.Guesses {
		var likeliest []string
		for _, g := range guesses {
			likeliest = append(likeliest, fmt.Sprintf("%s %.4f", g.Label, g.Probability))
		}
		words = append(words, strings.Join(likeliest, ", "))
	}
	switch {
	case p.Text != "" && top == 1:
		return p.Text
	case p.Text != "":
		return p.Text + "\t" + strings.Join(words, "; ")
	case top == 1 && len(p.Guesses) == 1 && len(p.Guesses[0]) == 1:
		g := p.Guesses[0][0]
		return fmt.Sprintf("%s\t%.4f\t%s", g.Label, g.Probability, p.Input)
	}
	return strings.Join(words, "; ") + "\t" + p.Input
}
