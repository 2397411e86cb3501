package main

import (
	"context"
	"fmt"
	"io"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/avgpipe/avgpipe/internal/api"
)

// evaluateOptions are the flags of `evaluate`.
type evaluateOptions struct {
	daemonFlags
	data    []string
	heldOut bool
	samples int
	beam    int
}

func newEvaluateCommand() *cobra.Command {
	var o evaluateOptions
	cmd := &cobra.Command{
		Use:   "evaluate JOB|DIR --data FILE",
		Short: "Measure a model on data",
		Long: `Measure a model on data of the format that it was trained on: the model of a job's last committed round, or an
exported one in a directory. All of the data is measured, cut as a job cuts its data.validation. Printed are the loss and what the task has a use for: perplexity of models that predict
tokens, accuracy and F1 of classifiers, BLEU of translations. With --held-out, only the part is used that a job with
these files holds out. It computes on this machine, with the avgpiped beside this program or in PATH.`,
		Example: `  avgpipectl evaluate spam-job --data spam/*.csv --held-out
  avgpipectl evaluate ./model --data test.jsonl -o json | jq .accuracy`,
		Args: arguments(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			return runEvaluate(cmd.Context(), o, args[0], cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	o.addFlags(cmd)
	f := cmd.Flags()
	f.StringArrayVar(&o.data, "data", nil, "`FILE`, directory or pattern to measure on; may be repeated")
	f.BoolVar(&o.heldOut, "held-out", false, "only the part that a job with these files holds out")
	f.IntVar(&o.beam, "beam", 1, "`NUMBER` of translations that are pursued at once, for BLEU")
	f.IntVar(&o.samples, "samples", 0, "`NUMBER` of samples at most; 0 is all")
	return cmd
}

func runEvaluate(ctx context.Context, o evaluateOptions, what string, out, messages io.Writer) error {
	if len(o.data) == 0 {
		return &usageError{fmt.Errorf("evaluate %s: name the data, as with --data test.txt", what)}
	}
	arguments := []string{"--samples", strconv.Itoa(o.samples), "--held-out=" + strconv.FormatBool(o.heldOut), "--beam", strconv.Itoa(o.beam)}
	for _, path := range o.data {
		arguments = append(arguments, "--data", path)
	}
	return o.use(ctx, what, func(dir string) error {
		return inferLines(ctx, "evaluate", dir, arguments, nil, messages, func(s api.Scores) error {
			return o.show(forPeople(out), s, func(p *page) { printScores(p, s) })
		})
	})
}

// printScores prints an evaluation for people.
func printScores(p *page, s api.Scores) {
	var t table
	t.add("task", s.Task)
	t.add("samples", fmt.Sprintf("%d, %d targets", s.Samples, s.Targets))
	t.add("loss", fmt.Sprintf("%.4f nats per %s", s.Loss, targets(api.JobStatus{Task: s.Task})))
	for _, f := range []struct {
		name   string
		value  *float64
		scale  float64
		format string
	}{
		{"perplexity", s.Perplexity, 1, "%.4g"},
		{"accuracy", s.Accuracy, 100, "%.2f%%"},
		{"F1", s.F1, 1, "%.4f"},
		{"BLEU", s.BLEU, 1, "%.2f"},
	} {
		if f.value != nil {
			t.add(f.name, fmt.Sprintf(f.format, f.scale**f.value))
		}
	}
	p.table(&t)
	var classes table
	classes.add("CLASS", "SAMPLES", "PREDICTED", "CORRECT", "F1")
	for _, c := range s.Classes {
		classes.add(c.Label, strconv.Itoa(c.Targets), strconv.Itoa(c.Predicted), strconv.Itoa(c.Correct), fmt.Sprintf("%.4f", c.F1))
	}
	p.below(&classes)
}
