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
)

func newExplainCommand() *cobra.Command {
	var o daemonFlags
	cmd := &cobra.Command{
		Use:   "explain JOB",
		Short: "Say how a job is laid over its devices, and why",
		Long: `Say how a job is laid over its devices, and why: the plan, drawn over time; where each choice comes from; and of a job
that was tuned the candidates that lost, with what was predicted and measured of each and the reason. While the job
trains, what its devices do in the last seconds stands beside the prediction, stage by stage: compute, optimizer and
average are of one pipeline's batch, wait is what the device spends on no pipeline at all. So do what one message takes
on each link, and what memory is for. A batch time that has left its prediction by more than the bound is told with the
stage or link and the term that moved most.

The json output has the plan, the tuning's report and what is observed (docs/tuning.md).`,
		Example: `  avgpipectl explain my-job
  avgpipectl explain my-job -o json | jq '.report.runners_up[] | .reason'`,
		Args: arguments(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			return runExplain(cmd.Context(), o, args[0], cmd.OutOrStdout())
		},
	}
	o.addFlags(cmd)
	return cmd
}

func runExplain(ctx context.Context, o daemonFlags, ref string, out io.Writer) error {
	client := o.client()
	defer client.Close()
	e, err := client.Explain(ctx, ref)
	if err != nil {
		return err
	}
	return o.show(out, e, func(p *page) { printExplanation(p, &e) })
}

func printExplanation(p *page, e *api.Explanation) {
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
	p.table(&t)
	if e.Tuning != nil {
		p.printf("\nIt is being tuned, %s.\n", tuningText(e.Tuning))
		return
	}
	p.printf("\n")
	switch {
	case e.Report != nil:
		printTuned(p, e)
	case !open(e):
		printGiven(p, e)
	case e.State.Ended():
		p.printf("nothing was chosen for it: it ended before its tuning did, for the reason above\n")
	default:
		p.printf("nothing is chosen for it yet: it is tuned first\n")
	}
}

// printTuned prints the plan of a tuned job, what is observed of it, and what lost against it.
func printTuned(p *page, e *api.Explanation) {
	r := e.Report
	p.drawing(drawCandidate(&r.Chosen, p.drawingWidth()))
	printTerms(p, &r.Chosen, e.Observed)
	p.printf("\na batch whose observed time differs by more than %.0f%% is reported as drift\n", 100*r.Bound)
	printCandidates(p, r)
	printNotes(p, r)
}

// printGiven prints the plan of a job whose counts were given or ruled, and what is observed of it. Its times are not known, so
// the drawing has a backward of two forwards, for two products instead of one.
func printGiven(p *page, e *api.Explanation) {
	plan, err := schedule.Parse(strings.Join(e.Plan, "\n"))
	if err == nil && plan.Ops() <= mostDrawnOps {
		p.drawing(drawPlan(plan, schedule.Uniform(plan.Stages(), 1, 2, 0), p.drawingWidth(), "forwards, a backward being two", 1))
	}
	printTerms(p, nil, e.Observed)
	p.printf("\nnothing was measured for it: its counts were given, or ruled (tuning: rules); avgpipectl tune measures\n")
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
