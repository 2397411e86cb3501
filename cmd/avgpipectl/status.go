package main

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/avgpipe/avgpipe/internal/api"
	"github.com/avgpipe/avgpipe/internal/words"
)

// statusOptions are the flags of `status`.
type statusOptions struct {
	connection
	output
}

func newStatusCommand() *cobra.Command {
	var o statusOptions
	cmd := &cobra.Command{
		Use:   "status [JOB]",
		Short: "Show all jobs, or one in full",
		Long: `Show all jobs, or one in full: where it stands and why, its losses, and what each stage's device did in the last
seconds. The json output is an API status (docs/design.md), or a list of them.

Exit codes:
` + exitHelp,
		Example: `  avgpipectl status
  avgpipectl status my-job -o json | jq .eval_loss`,
		Args: arguments(cobra.MaximumNArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return runStatusAll(cmd.Context(), o, cmd.OutOrStdout())
			}
			return runStatus(cmd.Context(), o, args[0], cmd.OutOrStdout())
		},
	}
	o.connection.addFlags(cmd)
	o.output.addFlags(cmd)
	return cmd
}

func runStatusAll(ctx context.Context, o statusOptions, out io.Writer) error {
	client := o.client()
	defer client.Close()
	jobs, err := client.Jobs(ctx)
	if err != nil {
		return err
	}
	if o.json() {
		return printJSON(out, jobs)
	}
	if len(jobs) == 0 {
		_, err := fmt.Fprintln(out, "no jobs")
		return err
	}
	t := table{states: true}
	t.add("ID", "NAME", "STATE", "STEP", "COMMITTED", "LOSS", "EVAL LOSS", "TOKENS/S", "LEFT", "REASON")
	for _, s := range jobs {
		t.add(s.ID, s.Name, string(s.State), fmt.Sprintf("%d/%s", s.Step, known(s.Steps)), fmt.Sprintf("round %d", s.CommittedRound),
			number(s.Loss, "%.4f"), number(s.EvalLoss, "%.4f"), thousands(s.TokensPerS), seconds(s.ETAS), clip(s.Reason, 60))
	}
	return t.print(out)
}

func runStatus(ctx context.Context, o statusOptions, ref string, out io.Writer) error {
	client := o.client()
	defer client.Close()
	s, err := client.Job(ctx, ref)
	if err != nil {
		return err
	}
	if o.json() {
		return printJSON(out, s)
	}
	return printStatus(out, s)
}

// printStatus prints a job in full.
func printStatus(out io.Writer, s api.JobStatus) error {
	t := table{states: true}
	t.add("job", s.ID+" ("+s.Name+")")
	t.add("state", string(s.State))
	t.add("reason", s.Reason)
	if s.Tuning != nil {
		t.add("tuning", fmt.Sprintf("%s, for %s so far", tuningText(s.Tuning), seconds(&s.Tuning.ElapsedS)))
	}
	t.add("submitted", s.Submitted.Local().Format(time.DateTime))
	t.add("samples", samplesSeen(s))
	t.add("step", fmt.Sprintf("%d of %s, of each pipeline", s.Step, known(s.Steps)))
	t.add("round", fmt.Sprintf("%d, %d committed", s.Round, s.CommittedRound))
	t.add("loss", number(s.Loss, "%.4f nats per "+targets(s)))
	eval := "-"
	if s.EvalLoss != nil {
		eval = fmt.Sprintf("%.4f at round %d, %s untrained", *s.EvalLoss, s.EvalRound, number(s.InitialLoss, "%.4f"))
	}
	t.add("eval loss", eval)
	if words := metrics(s.Metrics); words != "" {
		t.add("evaluation", words)
	}
	t.add("speed", fmt.Sprintf("%s %s", thousands(s.TokensPerS), speedUnit(s)))
	elapsed := s.ElapsedS
	t.add("time", fmt.Sprintf("%s trained, %s left", seconds(&elapsed), seconds(s.ETAS)))
	t.add("shape", jobShape(s.Stages, s.Pipelines, s.MicroBatches, s.Schedule))
	if words := batches(s); words != "" {
		t.add("batch", words)
	}
	if s.Drift != nil {
		t.add("drift", s.Drift.Text+"; see avgpipectl explain "+s.ID)
	}
	t.add("averaging", s.Averaging)
	t.add("model", fmt.Sprintf("%s (%s), %s parameters", s.Family, s.Task, thousands(float64(s.Parameters))))
	t.add("computes", computes(s))
	if s.Device != "" {
		t.add("device", s.Device)
	}
	for _, w := range s.Warnings {
		t.add("warning", w)
	}
	if err := t.print(out); err != nil || len(s.StageStatus) == 0 {
		return err
	}
	if _, err := io.WriteString(out, "\n"); err != nil {
		return err
	}
	if err := printStages(out, s.StageStatus); err != nil {
		return err
	}
	return printLinkStatus(out, s.LinkStatus)
}

// samplesSeen says how much of the budget was trained on.
func samplesSeen(s api.JobStatus) string {
	if s.BudgetSamples == 0 {
		return fmt.Sprintf("%d seen; how many %s make is known once the data are open, or the pipelines chosen", s.SamplesSeen, s.Budget)
	}
	return fmt.Sprintf("%d of %d seen (%s)", s.SamplesSeen, s.BudgetSamples, s.Budget)
}

// metrics says what an evaluation found beside its loss; "" for nothing.
func metrics(m api.Metrics) string {
	var parts []string
	for _, f := range []struct {
		value  *float64
		scale  float64
		format string
	}{{m.Perplexity, 1, "perplexity %.4g"}, {m.Accuracy, 100, "accuracy %.2f%%"}, {m.F1, 1, "F1 %.4f"}} {
		if f.value != nil {
			parts = append(parts, fmt.Sprintf(f.format, f.scale**f.value))
		}
	}
	return strings.Join(parts, ", ")
}

// batches says how long a batch of each pipeline takes, and is expected to; "" while neither is known.
func batches(s api.JobStatus) string {
	switch {
	case s.BatchS != nil && s.PredictedBatchS != nil:
		return fmt.Sprintf("%s for each pipeline, %s expected by its tuning", words.Seconds(*s.BatchS), words.Seconds(*s.PredictedBatchS))
	case s.BatchS != nil:
		return words.Seconds(*s.BatchS) + " for each pipeline"
	case s.PredictedBatchS != nil:
		return words.Seconds(*s.PredictedBatchS) + " expected by its tuning"
	}
	return ""
}

// targets is what a loss is the mean over.
func targets(s api.JobStatus) string {
	if s.Task == "images" || s.Task == "classification" {
		return "sample"
	}
	return "token"
}

// speedUnit is what a job's speed counts.
func speedUnit(s api.JobStatus) string {
	if s.Task == "images" {
		return "images/s"
	}
	return "tokens/s"
}

// computes says in what precision, and what is computed twice.
func computes(s api.JobStatus) string {
	if words := recomputes(s.Recompute); words != "" {
		return s.Precision + ", " + words
	}
	return s.Precision
}

// printStages prints what the stages' devices did, in percent of their time.
func printStages(out io.Writer, stages []api.StageStatus) error {
	percent := func(v float64) string { return fmt.Sprintf("%.0f%%", 100*v) }
	var t table
	t.add(strings.Split("STAGE|LAYERS|BUSY|WAIT UP|WAIT DOWN|AVERAGE|OPTIMIZER|COMMIT|DEVICE", "|")...)
	for _, s := range stages {
		t.add(strconv.Itoa(s.Stage), s.Layers, percent(s.Busy), percent(s.WaitUpstream), percent(s.WaitDownstream),
			percent(s.Average), percent(s.Optimizer), percent(s.Commit), s.Device)
	}
	return t.print(out)
}
