package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/avgpipe/avgpipe/internal/api"
	"github.com/avgpipe/avgpipe/internal/words"
	"github.com/avgpipe/avgpipe/job"
	"github.com/avgpipe/avgpipe/schedule"
	"github.com/avgpipe/avgpipe/tuner"
)

func newExplainCommand() *cobra.Command {
	return daemonVerb(&cobra.Command{
		Use:   "explain JOB",
		Short: "Say how a job is laid over its devices, and why",
		Long: `Say how a job is laid over its devices, and why: the plan, drawn over time; where each choice comes from; and of a job
that was tuned the candidates that lost, with what was predicted and measured of each and the reason. While the job
trains, what its devices do in the last seconds stands beside the prediction, stage by stage: compute, optimizer and
average are of one pipeline's batch, wait is what the device spends on no pipeline at all. So do what one message takes
on each link, and what memory is for. A batch time that has left its prediction by more than the bound is told with the
stage or link and the term that moved most. At the end stand the bounds of all that the daemon waits for about the job.

The json output has the plan, the tuning's report and what is observed (docs/tuning.md).`,
		Example: `  avgpipectl explain my-job
  avgpipectl explain my-job -o json | jq '.report.runners_up[] | .reason'`,
	}, func(c *call) error {
		e, err := c.client.Explain(c.ctx, c.args[0])
		if err != nil {
			return err
		}
		return c.show(e, func(p *page) {
			printExplanation(p, &e)
			printTimeouts(p, e.Timeouts)
		})
	})
}

func printExplanation(p *page, e *api.Explanation) {
	t := table{states: true}
	t.add("job", e.ID+" ("+e.Name+")")
	t.add("state", string(e.State))
	t.add("reason", e.Reason)
	t.add("shape", shape(e.Stages, e.Pipelines, e.MicroBatches, e.Schedule, e.Recompute))
	t.list("why", e.Why...)
	t.list("warning", e.Warnings...)
	if e.Drift != nil {
		t.add("drift", e.Drift.Text)
	}
	if b := e.CriticalBatch; b != nil {
		t.list("batch", "critical batch "+b.Text, b.Note)
	}
	p.table(&t)
	if e.Tuning != nil {
		p.printf("\nIt is being tuned, %s.\n", tuningText(e.Tuning))
		return
	}
	p.printf("\n")
	plan, _ := schedule.Parse(strings.Join(e.Plan, "\n")) // too long a plan is not there
	switch {
	case e.Report != nil:
		p.drawing(plan, &e.Report.Chosen)
		printTerms(p, &e.Report.Chosen, e.Observed)
		printHeld(p, e)
		p.printf("\na batch whose observed time differs by more than %.0f%% is reported as drift\n", 100*e.Report.Bound)
		printCandidates(p, e.Report)
	case e.Stages > 0 && e.Pipelines > 0 && e.MicroBatches > 0 && e.Schedule != job.AutoSchedule && !slices.Contains(e.Recompute, job.AutoRecompute):
		p.drawing(plan, nil)
		printTerms(p, nil, e.Observed)
		printHeld(p, e)
		p.printf("\nnothing was measured for it: its counts were given, or ruled (tuning: rules); avgpipectl tune measures\n")
	case e.State.Ended():
		p.printf("nothing was chosen for it: it ended before its tuning did, for the reason above\n")
	default:
		p.printf("nothing is chosen for it yet: it is tuned first\n")
	}
}

// printTimeouts prints the bounds of what is waited for, the shortest first.
func printTimeouts(p *page, all []api.Timeout) {
	if len(all) == 0 {
		return
	}
	t := table{}
	t.add("TIMEOUT", "AFTER", "BASIS", "FROM", "THEN")
	for _, bound := range all {
		basis := "set"
		if bound.Measured {
			basis = "measured"
		}
		t.add(bound.Name, words.Seconds(bound.ValueS), basis, bound.From, bound.Then)
	}
	p.printf("\n")
	p.table(&t)
}

// printHeld prints what memory is for, and what the worker processes have held of the host's.
func printHeld(p *page, e *api.Explanation) {
	printMemoryParts(p, e.Memory, e.Observed)
	if e.PredictedHostBytes > 0 {
		p.printf("\nmemory of the host: %s predicted, at most %s taken\n", size(e.PredictedHostBytes), size(e.HostBytes))
	}
}

// shape says the counts of a job, those that are still to be chosen as auto, and what it computes again.
func shape(stages, pipelines, micro int, name string, recompute []string) string {
	var parts []string
	for _, c := range []struct {
		n    int
		noun string
	}{{stages, "stage"}, {pipelines, "pipeline"}, {micro, "micro-batch"}} {
		text := words.Count(c.n, c.noun)
		if many, open := strings.CutPrefix(text, "0 "); open {
			text = many + " auto"
		}
		parts = append(parts, text)
	}
	parts = append(parts, "schedule "+name)
	if again := recomputes(recompute); again != "" {
		parts = append(parts, again)
	}
	return strings.Join(parts, ", ")
}

// recomputes says what is computed again; "" for nothing.
func recomputes(all []string) string {
	kinds := slices.Compact(slices.Sorted(slices.Values(all)))
	switch {
	case len(kinds) == 0 || len(kinds) == 1 && kinds[0] == "none":
		return ""
	case all[0] == job.AutoRecompute:
		return "recomputation auto"
	case len(kinds) == 1:
		return "recomputes " + all[0]
	}
	return "recomputes by stage " + strings.Join(all, " ")
}

// printDryRun prints what a job would be.
func printDryRun(p *page, d *api.DryRun) {
	var t table
	t.add("job", d.Name+" would be admitted; nothing was started or stored")
	t.add("shape", shape(d.Stages, d.Pipelines, d.MicroBatches, d.Schedule, d.Recompute))
	t.add("averaging", d.Averaging)
	budget := d.Budget + ": how many samples that is, is known once the data are open"
	if d.BudgetSamples > 0 {
		budget = fmt.Sprintf("%s: %d samples, %s of each pipeline", d.Budget, d.BudgetSamples, words.Count(int(d.Steps), "step"))
	}
	t.add("budget", budget)
	t.add("tuning", d.Tuning)
	var chosen *tuner.Candidate
	if d.Report != nil {
		chosen = &d.Report.Chosen
		if e := d.Report.Estimate; e != nil {
			t.add("time", fmt.Sprintf("about %s of training, by %s", words.Seconds(e.JobSeconds), e.Basis))
		}
	}
	t.list("why", d.Why...)
	t.list("warning", d.Warnings...)
	p.table(&t)
	p.printf("\n")
	plan, _ := schedule.Parse(strings.Join(d.Plan, "\n")) // too long a plan is not there
	p.drawing(plan, chosen)
	printTerms(p, chosen, nil)
	if chosen != nil {
		printMemoryParts(p, memoryOf(chosen), nil)
	}
}
