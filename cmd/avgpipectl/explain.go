package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/avgpipe/avgpipe/internal/api"
	"github.com/avgpipe/avgpipe/internal/words"
	"github.com/avgpipe/avgpipe/job"
	"github.com/avgpipe/avgpipe/schedule"
	"github.com/avgpipe/avgpipe/tuner"
)

// explainOptions are the flags of `explain`.
type explainOptions struct {
	connection
	output
}

func newExplainCommand() *cobra.Command {
	var o explainOptions
	cmd := &cobra.Command{
		Use:   "explain JOB",
		Short: "Say how a job is laid over its devices, and why",
		Long: `Say how a job is laid over its devices, and why: the plan, drawn over time; where each choice comes from; and of a job
that was tuned the candidates that lost, with what was predicted and measured of each and the reason. While the job
trains, what its devices do in the last seconds stands beside the prediction, stage by stage: compute, optimizer and
average are of one pipeline's batch, wait is what the device spends on no pipeline at all. So do what one message takes
on each link, and what memory is for. A batch time that has left its prediction by more than the bound is told with the
stage or link and the term that moved most.

The json output has the plan, the tuning's report and what is observed (docs/tuning.md).

Exit codes:
` + exitHelp,
		Example: `  avgpipectl explain my-job
  avgpipectl explain my-job -o json | jq '.report.runners_up[] | .reason'`,
		Args: arguments(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			return runExplain(cmd.Context(), o, args[0], cmd.OutOrStdout())
		},
	}
	o.connection.addFlags(cmd)
	o.output.addFlags(cmd)
	return cmd
}

func runExplain(ctx context.Context, o explainOptions, ref string, out io.Writer) error {
	client := o.client()
	defer client.Close()
	e, err := client.Explain(ctx, ref)
	if err != nil {
		return err
	}
	if o.json() {
		return printJSON(out, e)
	}
	return printExplanation(out, &e)
}

func printExplanation(out io.Writer, e *api.Explanation) error {
	t := table{states: true}
	t.add("job", e.ID+" ("+e.Name+")")
	t.add("state", string(e.State))
	t.add("reason", e.Reason)
	shape := jobShape(e.Stages, e.Pipelines, e.MicroBatches, e.Schedule)
	if words := recomputes(e.Recompute); words != "" {
		shape += ", " + words
	}
	t.add("shape", shape)
	for _, why := range e.Why {
		t.add("why", why)
	}
	for _, w := range e.Warnings {
		t.add("warning", w)
	}
	if e.Drift != nil {
		t.add("drift", e.Drift.Text)
	}
	if err := t.print(out); err != nil {
		return err
	}
	if e.Tuning != nil {
		_, err := fmt.Fprintf(out, "\nIt is being tuned, %s.\n", tuningText(e.Tuning))
		return err
	}
	if _, err := io.WriteString(out, "\n"); err != nil {
		return err
	}
	switch {
	case e.Report != nil:
		return printTuned(out, e)
	case open(e):
		return printOpen(out, e)
	}
	return printGiven(out, e)
}

// printTuned prints the plan of a tuned job, what is observed of it, and what lost against it.
func printTuned(out io.Writer, e *api.Explanation) error {
	r := e.Report
	if drawing := drawCandidate(&r.Chosen, terminalWidth(out)); drawing != "" {
		if _, err := io.WriteString(out, drawing+"\n"); err != nil {
			return err
		}
	}
	if err := printTerms(out, &r.Chosen, e.Observed); err != nil {
		return err
	}
	if _, err := fmt.Fprintf(out, "\nan observed batch that is %.0f%% off is told\n", 100*r.Bound); err != nil {
		return err
	}
	if err := printCandidates(out, r); err != nil {
		return err
	}
	return printNotes(out, r)
}

// printGiven prints the plan of a job whose counts were given or ruled, and what is observed of it. Its times are not known, so
// the drawing has a backward of two forwards, for two products instead of one.
func printGiven(out io.Writer, e *api.Explanation) error {
	plan, err := schedule.Parse(strings.Join(e.Plan, "\n"))
	if err == nil && plan.Ops() <= mostDrawnOps {
		costs := schedule.Uniform(plan.Stages(), 1, 2, 0)
		if drawing := drawPlan(plan, costs, terminalWidth(out), "forwards, a backward being two", 1); drawing != "" {
			if _, err := io.WriteString(out, drawing+"\n"); err != nil {
				return err
			}
		}
	}
	var none *tuner.Candidate
	if err := printTerms(out, none, e.Observed); err != nil {
		return err
	}
	_, err = fmt.Fprintln(out, "\nnothing was measured for it: its counts were given, or ruled (tuning: rules); avgpipectl tune measures")
	return err
}

// printOpen says why there is nothing to show of a job whose counts are still open.
func printOpen(out io.Writer, e *api.Explanation) error {
	text := "nothing is chosen for it yet: it is tuned first"
	if e.State.Ended() {
		text = "nothing was chosen for it: it ended before its tuning did, for the reason above"
	}
	_, err := fmt.Fprintln(out, text)
	return err
}

// open reports whether something of the job is still to be chosen.
func open(e *api.Explanation) bool {
	return e.Stages == 0 || e.Pipelines == 0 || e.MicroBatches == 0 || e.Schedule == job.AutoSchedule || slices.Contains(e.Recompute, job.AutoRecompute)
}

// jobShape says the counts of a job, those that are still to be chosen as auto.
func jobShape(stages, pipelines, micro int, name string) string {
	count := func(n int, noun string) string {
		if n == 0 {
			_, many, _ := strings.Cut(words.Count(n, noun), " ")
			return many + " auto"
		}
		return words.Count(n, noun)
	}
	return fmt.Sprintf("%s, %s, %s, schedule %s", count(stages, "stage"), count(pipelines, "pipeline"), count(micro, "micro-batch"), name)
}
