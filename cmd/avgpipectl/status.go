package main

import (
	"context"
	"fmt"
	"io"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/avgpipe/avgpipe/internal/api"
	"github.com/avgpipe/avgpipe/internal/nearest"
	"github.com/avgpipe/avgpipe/internal/words"
)

// statusOptions are the flags of `status`.
type statusOptions struct {
	daemonFlags
	states []string
	owner  string
	name   string
	watch  bool
}

// matches reports whether a job is one that the flags ask for.
func (o *statusOptions) matches(s api.JobStatus) bool {
	named, err := path.Match(o.name, s.Name)
	return (len(o.states) == 0 || slices.Contains(o.states, string(s.State))) && (o.owner == "" || o.owner == s.Owner) && (o.name == "" || named && err == nil)
}

// check refuses a state or a pattern that no job can have.
func (o *statusOptions) check() error {
	for _, state := range o.states {
		if !slices.Contains(stateNames, state) {
			err := fmt.Errorf("status: no state %q; one of %s", state, strings.Join(stateNames, ", "))
			if near := nearest.Word(state, stateNames); near != "" {
				err = fmt.Errorf("%w; did you mean %s?", err, near)
			}
			return &usageError{err}
		}
	}
	if _, err := path.Match(o.name, ""); err != nil {
		return &usageError{fmt.Errorf("status: --name %q is not a pattern: %w", o.name, err)}
	}
	return nil
}

var stateNames = []string{
	string(api.Queued), string(api.Tuning), string(api.Starting), string(api.Running), string(api.Waiting), string(api.Done), string(api.Failed), string(api.Cancelled),
}

func newStatusCommand() *cobra.Command {
	var o statusOptions
	cmd := &cobra.Command{
		Use:   "status [JOB]",
		Short: "Show all jobs, or one in full",
		Long: `Show all jobs, or one in full: where it stands and why, its losses, and what each stage's device did in the last
seconds. Of jobs of other users only the name, state, owner and times are shown. A terminal that is too narrow for the
list gets fewer columns. The json output is an API status (docs/design.md), or a list of them.`,
		Example: `  avgpipectl status
  avgpipectl status --state running --state queued --owner ada --name 'gpt2-*'
  avgpipectl status my-job -o json | jq .eval_loss`,
		Args: arguments(cobra.MaximumNArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			if o.watch && len(args) > 0 {
				return &usageError{fmt.Errorf("status --watch shows the list; follow one job with: avgpipectl watch %s", args[0])}
			}
			if o.watch {
				return watchStatus(cmd.Context(), o, cmd.OutOrStdout())
			}
			if len(args) == 0 {
				return runStatusAll(cmd.Context(), o, cmd.OutOrStdout())
			}
			return runStatus(cmd.Context(), o, args[0], cmd.OutOrStdout())
		},
	}
	o.addFlags(cmd)
	f := cmd.Flags()
	f.StringSliceVar(&o.states, "state", nil, "only jobs in this `STATE`; may be repeated")
	f.BoolVarP(&o.watch, "watch", "w", false, "show the list again every 2 seconds, until Ctrl-C")
	f.StringVar(&o.owner, "owner", "", "only jobs of this `USER`")
	f.StringVar(&o.name, "name", "", "only jobs whose name matches this `PATTERN`, such as 'gpt2-*'")
	return cmd
}

// statusEvery is how often --watch shows the list again.
const statusEvery = 2 * time.Second

// watchStatus shows the list again and again, on a terminal in the same place.
func watchStatus(ctx context.Context, o statusOptions, out io.Writer) error {
	for {
		if _, ok := terminal(out); ok {
			if _, err := io.WriteString(out, "\x1b[H\x1b[2J"); err != nil {
				return err
			}
		}
		if err := runStatusAll(ctx, o, out); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(statusEvery):
		}
	}
}

func runStatusAll(ctx context.Context, o statusOptions, out io.Writer) error {
	if err := o.check(); err != nil {
		return err
	}
	client := o.client()
	defer client.Close()
	jobs, err := client.Jobs(ctx)
	if err != nil {
		return err
	}
	all := len(jobs)
	jobs = slices.DeleteFunc(jobs, func(s api.JobStatus) bool { return !o.matches(s) })
	if o.json() {
		return printJSON(out, jobs)
	}
	if len(jobs) == 0 && all > 0 {
		_, err := fmt.Fprintf(out, "no such jobs among %d\n", all)
		return err
	}
	if len(jobs) == 0 {
		_, err := fmt.Fprintln(out, "no jobs")
		return err
	}
	t := table{states: true, narrow: []string{"COMMITTED", "TOKENS/S", "LOSS", "REASON", "ENDED", "EVAL LOSS", "AGE", "OWNER", "STEP"}}
	t.add("ID", "NAME", "STATE", "LEFT", "STEP", "EVAL LOSS", "LOSS", "TOKENS/S", "COMMITTED", "OWNER", "AGE", "ENDED", "REASON")
	now := time.Now()
	for _, s := range jobs {
		ended := "-"
		if s.Ended != nil {
			ended = s.Ended.Local().Format("Jan 2 15:04")
		}
		row := []string{s.ID, s.Name, string(s.State), "-", "-", "-", "-", "-", "-", s.Owner, age(now.Sub(s.Submitted)), ended, ""}
		if !s.Restricted {
			copy(row[3:], []string{
				seconds(s.ETAS), fmt.Sprintf("%d/%s", s.Step, known(s.Steps)), number(s.EvalLoss, "%.4f"), number(s.Loss, "%.4f"),
				thousands(s.TokensPerS), fmt.Sprintf("round %d", s.CommittedRound),
			})
			row[12] = clip(s.Reason, 60)
		}
		t.add(row...)
	}
	return t.print(out)
}

// age prints a time briefly: 42s, 7m, 3h, 12d.
func age(d time.Duration) string {
	switch {
	case d < time.Minute:
		return fmt.Sprintf("%ds", int(max(d, 0).Seconds()))
	case d < time.Hour:
		return fmt.Sprintf("%dm", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh", int(d.Hours()))
	}
	return fmt.Sprintf("%dd", int(d.Hours()/24))
}

func runStatus(ctx context.Context, o statusOptions, ref string, out io.Writer) error {
	client := o.client()
	defer client.Close()
	s, err := client.Job(ctx, ref)
	if err != nil {
		return err
	}
	return o.show(out, s, func(p *page) { printStatus(p, s) })
}

// printStatus prints a job in full.
func printStatus(p *page, s api.JobStatus) {
	t := table{states: true}
	t.add("job", s.ID+" ("+s.Name+")")
	t.add("state", string(s.State))
	t.add("reason", s.Reason)
	if s.Tuning != nil {
		t.add("tuning", fmt.Sprintf("%s, for %s so far", tuningText(s.Tuning), seconds(&s.Tuning.ElapsedS)))
	}
	t.add("submitted", s.Submitted.Local().Format(time.DateTime)+" by "+s.Owner)
	if s.Ended != nil {
		t.add("ended", s.Ended.Local().Format(time.DateTime))
	}
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
	if words := exportPlan(s.ID, s.Export); words != "" {
		t.add("output", words)
	}
	for _, w := range s.Warnings {
		t.add("warning", w)
	}
	p.table(&t)
	if len(s.StageStatus) > 0 {
		printStages(p, s.StageStatus)
		printLinkStatus(p, s.LinkStatus)
	}
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
func printStages(p *page, stages []api.StageStatus) {
	percent := func(v float64) string { return fmt.Sprintf("%.0f%%", 100*v) }
	var t table
	t.add(strings.Split("STAGE|LAYERS|BUSY|WAIT UP|WAIT DOWN|AVERAGE|OPTIMIZER|COMMIT|DEVICE", "|")...)
	for _, s := range stages {
		t.add(strconv.Itoa(s.Stage), s.Layers, percent(s.Busy), percent(s.WaitUpstream), percent(s.WaitDownstream),
			percent(s.Average), percent(s.Optimizer), percent(s.Commit), s.Device)
	}
	p.below(&t)
}
