package main

import (
	"cmp"
	"context"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/avgpipe/avgpipe/internal/api"
	"github.com/avgpipe/avgpipe/internal/words"
)

// statusOptions are the flags of `status`.
type statusOptions struct {
	states      []string
	owner, name string
	watch       bool
}

// matches reports whether a job is one that the flags ask for.
func (o *statusOptions) matches(s api.JobStatus) bool {
	named, err := path.Match(o.name, s.Name)
	return (len(o.states) == 0 || slices.Contains(o.states, string(s.State))) && (o.owner == "" || o.owner == s.Owner) && (o.name == "" || named && err == nil)
}

// check refuses what no job can match.
func (o *statusOptions) check(args []string) error {
	for _, state := range o.states {
		if err := oneOf(state, stateNames); err != nil {
			return usagef("status: no state %q; %w", state, err)
		}
	}
	if _, err := path.Match(o.name, ""); err != nil {
		return usagef("status: --name %q is not a pattern: %w", o.name, err)
	}
	if o.watch && len(args) > 0 {
		return usagef("status --watch shows the list; follow one job with: avgpipectl watch %s", args[0])
	}
	return nil
}

var stateNames = []string{
	string(api.Queued), string(api.Tuning), string(api.Starting), string(api.Running), string(api.Waiting), string(api.Done), string(api.Failed), string(api.Cancelled),
}

func newStatusCommand() *cobra.Command {
	var o statusOptions
	cmd := daemonVerb(&cobra.Command{
		Use:   "status [JOB]",
		Short: "Show all jobs, or one in full",
		Long: `Show all jobs, or one in full: where it stands and why, its losses, and what each stage's device did in the last
seconds. Of jobs of other users only the name, state, owner and times are shown. A terminal that is too narrow for the
list gets fewer columns. The json output is an API status (docs/design.md), or a list of them.`,
		Example: `  avgpipectl status
  avgpipectl status --state running --state queued --owner ada --name 'gpt2-*'
  avgpipectl status my-job -o json | jq .eval_loss`,
	}, func(c *call) error {
		if err := o.check(c.args); err != nil {
			return err
		}
		if len(c.args) == 0 {
			return c.statusAll(o)
		}
		s, err := c.client.Job(c.ctx, c.args[0])
		if err != nil {
			return err
		}
		return c.show(s, func(p *page) { printStatus(p, s) })
	})
	f := cmd.Flags()
	f.StringSliceVar(&o.states, "state", nil, "only jobs in this `STATE`; may be repeated")
	_ = cmd.RegisterFlagCompletionFunc("state", cobra.FixedCompletions(stateNames, cobra.ShellCompDirectiveNoFileComp)) // the flag is there
	f.BoolVarP(&o.watch, "watch", "w", false, "show the list again every 2 seconds, until Ctrl-C")
	f.StringVar(&o.owner, "owner", "", "only jobs of this `USER`")
	f.StringVar(&o.name, "name", "", "only jobs whose name matches this `PATTERN`, such as 'gpt2-*'")
	return cmd
}

// statusEvery is how often --watch shows the list again.
const statusEvery = 2 * time.Second

// statusAll shows the list, with --watch again and again, on a terminal in the same place.
func (c *call) statusAll(o statusOptions) error {
	for {
		jobs, err := c.client.Jobs(c.ctx)
		if err != nil {
			return err
		}
		all := len(jobs)
		jobs = slices.DeleteFunc(jobs, func(s api.JobStatus) bool { return !o.matches(s) })
		if err := c.show(jobs, func(p *page) { printJobs(p, jobs, all, o.watch) }); err != nil || !o.watch {
			return err
		}
		select {
		case <-c.ctx.Done():
			return context.Cause(c.ctx)
		case <-time.After(statusEvery):
		}
	}
}

// printJobs prints a list of jobs out of all that there are.
func printJobs(p *page, jobs []api.JobStatus, all int, again bool) {
	if again && p.colors {
		p.printf("\x1b[H\x1b[2J")
	}
	switch {
	case all == 0:
		p.printf("no jobs\n")
		return
	case len(jobs) == 0:
		p.printf("no such jobs among %d\n", all)
		return
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
				words.Number(s.TokensPerS), fmt.Sprintf("round %d", s.CommittedRound),
			})
			row[12] = words.Clip(s.Reason, 60)
		}
		t.add(row...)
	}
	p.table(&t)
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
	t.add("loss", number(s.Loss, "%.4f "+lossUnit(s.Task)))
	eval := "-"
	if s.EvalLoss != nil {
		eval = fmt.Sprintf("%.4f at round %d, %s untrained", *s.EvalLoss, s.EvalRound, number(s.InitialLoss, "%.4f"))
	}
	t.add("eval loss", eval)
	t.list("evaluation", metrics(s.Metrics))
	t.add("speed", fmt.Sprintf("%s %s", words.Number(s.TokensPerS), speedUnit(s)))
	t.add("time", fmt.Sprintf("%s trained, %s left", seconds(&s.ElapsedS), seconds(s.ETAS)))
	t.add("shape", shape(s.Stages, s.Pipelines, s.MicroBatches, s.Schedule, nil))
	if where := stagesOn(s.Placement); where != "" {
		label := "nodes"
		if s.State.Ended() {
			label = "ran on"
		}
		t.add(label, where)
	}
	if s.Groups > 1 {
		t.add("groups", fmt.Sprintf("%d, of %s each, on nodes of their own", s.Groups, words.Count(s.Pipelines/s.Groups, "pipeline")))
	}
	t.list("batch", batches(s))
	if b := s.CriticalBatch; b != nil {
		t.add("batch", "critical batch "+b.Text)
	}
	if s.Drift != nil {
		t.add("drift", s.Drift.Text+"; see avgpipectl explain "+s.ID)
	}
	t.list("averaging", averaged(s)...)
	t.add("model", fmt.Sprintf("%s (%s), %s parameters%s", s.Family, s.Task, words.Number(float64(s.Parameters)), trained(s)))
	t.add("computes", computes(s))
	t.list("device", s.Device, s.DeviceWhy)
	if len(s.StageStatus) == 0 && s.PredictedHostBytes > 0 {
		t.add("memory", words.Bytes(s.PredictedHostBytes)+" of the host, as predicted")
	}
	if st := s.Store; st != nil {
		text := fmt.Sprintf("%s has round %d", st.URL, st.Round)
		if st.Problem != "" {
			text += "; newer ones are not there: " + st.Problem
		}
		t.add("store", text)
	}
	t.list("output", exportPlan(s.ID, s.State, s.Export))
	t.list("warning", s.Warnings...)
	p.table(&t)
	if len(s.StageStatus) > 0 {
		printStages(p, s.StageStatus)
		printMemory(p, &s)
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

// figure is a figure of an evaluation beside its loss.
type figure struct{ name, text string }

// figures are those that the task has.
func figures(m api.Metrics) []figure {
	var list []figure
	add := func(name string, value *float64, scale float64, format string) {
		if value != nil {
			list = append(list, figure{name, fmt.Sprintf(format, scale**value)})
		}
	}
	add("perplexity", m.Perplexity, 1, "%.4g")
	add("accuracy", m.Accuracy, 100, "%.2f%%")
	add("F1", m.F1, 1, "%.4f")
	return list
}

// metrics says what an evaluation found beside its loss; "" for nothing.
func metrics(m api.Metrics) string {
	var parts []string
	for _, f := range figures(m) {
		parts = append(parts, f.name+" "+f.text)
	}
	return strings.Join(parts, ", ")
}

// averaged says how a job is averaged, how old what its pipelines apply is, and how far they are from the center.
func averaged(s api.JobStatus) []string {
	lines := []string{s.Averaging}
	if s.Ages != "" {
		lines = append(lines, s.Ages)
	}
	if late := s.StaleLayers; late != nil {
		lines = append(lines, late.Why)
	}
	if tau := s.Tau; tau != nil {
		lines = append(lines, tau.Why)
	}
	if waiting := synchronous(s.StageStatus); waiting != "" {
		lines = append(lines, "rounds of "+waiting+" are synchronous: pipelines are beyond max_drift")
	}
	st := s.Staleness
	if st == nil {
		return lines
	}
	text := fmt.Sprintf("round %d: all pipelines have the weights of the center", st.Round)
	if most := slices.Max(st.Distances); most > 0 {
		text = fmt.Sprintf("round %d: pipelines are at most %s of the weights from the center", st.Round, words.Percent(most))
	}
	if ahead := slices.Max(st.Predicted); ahead > 0 {
		text += fmt.Sprintf(", and what they compute with %s from their own", words.Percent(ahead))
	}
	return append(lines, text)
}

// synchronous names the stages whose rounds are, because pipelines are too far from the center; "" where there are none.
func synchronous(stages []api.StageStatus) string {
	var names []string
	for _, s := range stages {
		if name := strconv.Itoa(s.Stage); s.Synchronous && !slices.Contains(names, name) { // all groups decide alike
			names = append(names, name)
		}
	}
	switch len(names) {
	case 0:
		return ""
	case 1:
		return "stage " + names[0]
	}
	return "stages " + strings.Join(names, ", ")
}

// batches says how long a batch of each pipeline takes, and is expected to; "" while neither is known.
func batches(s api.JobStatus) string {
	var parts []string
	if s.BatchS != nil {
		parts = append(parts, words.Seconds(*s.BatchS)+" for each pipeline")
	}
	if s.PredictedBatchS != nil {
		parts = append(parts, words.Seconds(*s.PredictedBatchS)+" expected by its tuning")
	}
	return strings.Join(parts, ", ")
}

// lossUnit is what a loss of a task is counted in.
func lossUnit(task string) string {
	switch task {
	case "images", "classification":
		return "nats per sample"
	case "samples":
		return "by the program's own loss"
	}
	return "nats per token"
}

// speedUnit is what a job's speed counts.
func speedUnit(s api.JobStatus) string {
	switch s.Task {
	case "images":
		return "images/s"
	case "samples":
		return "samples/s"
	}
	return "tokens/s"
}

// trained says how many parameters are, where not all.
func trained(s api.JobStatus) string {
	if s.Trained == s.Parameters || s.Trained == 0 { // as an older daemon says
		return ""
	}
	return fmt.Sprintf(", %s of them trained", words.Number(float64(s.Trained)))
}

// computes says in what precision, and what is computed twice.
func computes(s api.JobStatus) string {
	return strings.TrimSuffix(s.Precision+", "+recomputes(s.Recompute), ", ")
}

// printStages prints what the stages' devices did, in percent of their time.
func printStages(p *page, stages []api.StageStatus) {
	percent := func(v float64) string { return fmt.Sprintf("%.0f%%", 100*v) }
	t := table{narrow: []string{"DEVICE", "LAYERS", "COMMIT", "OPTIMIZER", "AVERAGE"}}
	grouped := slices.ContainsFunc(stages, func(s api.StageStatus) bool { return s.Group > 0 })
	several := slices.ContainsFunc(stages, func(s api.StageStatus) bool { return s.Node != stages[0].Node })
	emulated := slices.ContainsFunc(stages, func(s api.StageStatus) bool { return s.Lag != nil })
	row := func(node, lag, stage string, cells ...string) {
		if several { // else all are where the line above says
			cells = append([]string{cmp.Or(node, "-")}, cells...)
		}
		if emulated {
			cells = slices.Insert(cells, len(cells)-1, lag)
		}
		t.add(append([]string{stage}, cells...)...)
	}
	row("NODE", "LAG", "STAGE", strings.Split("LAYERS|BUSY|WAIT UP|WAIT DOWN|AVERAGE|OPTIMIZER|COMMIT|DEVICE", "|")...)
	for _, s := range stages {
		lag := "-"
		if s.Lag != nil {
			lag = fmt.Sprintf("%.1f%%", 100**s.Lag)
		}
		row(s.Node, lag, stageName(grouped, s.Group, s.Stage), s.Layers, percent(s.Busy), percent(s.WaitUpstream), percent(s.WaitDownstream),
			percent(s.Average), percent(s.Optimizer), percent(s.Commit), s.Device)
	}
	p.below(&t)
}

// stagesOn says which stages are on which node: "0-1 on a, 2 on b"; "" where nobody knows.
func stagesOn(all []api.StageNode) string {
	var runs []string
	grouped := slices.ContainsFunc(all, func(at api.StageNode) bool { return at.Group > 0 })
	for from := 0; from < len(all); {
		to := from
		for to+1 < len(all) && all[to+1].Node == all[from].Node && all[to+1].Group == all[from].Group {
			to++
		}
		run := strconv.Itoa(all[from].Stage)
		if to > from {
			run = fmt.Sprintf("%d-%d", all[from].Stage, all[to].Stage)
		}
		if grouped {
			run += fmt.Sprintf(" of group %d", all[from].Group)
		}
		runs = append(runs, run+" on "+all[from].Node)
		from = to + 1
	}
	switch {
	case len(runs) == 1 && !grouped:
		return "all stages on " + all[0].Node
	case len(runs) > 0:
		return "stages " + strings.Join(runs, ", ")
	}
	return ""
}

// stageName names a stage, with its group of pipelines where there are several.
func stageName(grouped bool, group, stage int) string {
	if !grouped {
		return strconv.Itoa(stage)
	}
	return fmt.Sprintf("%d of group %d", stage, group)
}

// printMemory prints what stages have taken of their devices and the process of the host, for all pipelines, beside what was predicted.
func printMemory(p *page, s *api.JobStatus) {
	var t table
	t.add("MEMORY", "TAKEN", "PREDICTED", "OF")
	grouped := slices.ContainsFunc(s.StageStatus, func(on api.StageStatus) bool { return on.Group > 0 })
	for i := range s.StageStatus {
		on := &s.StageStatus[i]
		t.add("stage "+stageName(grouped, on.Group, on.Stage), size(on.MemoryBytes), size(on.PredictedBytes), cmp.Or(on.GPU, "its device"))
	}
	t.add("host", size(s.HostBytes), size(s.PredictedHostBytes), "the process, at most")
	p.below(&t)
}

// printLinkStatus prints what messages between stages take, each way, where any were waited for.
func printLinkStatus(p *page, links []api.LinkStatus) {
	var t table
	t.add("LINK", "MESSAGE", "DOWN", "UP")
	grouped := slices.ContainsFunc(links, func(l api.LinkStatus) bool { return l.Group > 0 })
	for _, l := range links {
		if l.DownS != nil || l.UpS != nil {
			name := fmt.Sprintf("%d-%d", l.Link, l.Link+1)
			if grouped {
				name = fmt.Sprintf("%s of group %d", name, l.Group)
			}
			t.add(name, size(l.MessageBytes), briefly(l.DownS), briefly(l.UpS))
		}
	}
	p.below(&t)
	printTransports(p, links)
	printNetworks(p, links)
}

// printNetworks prints what carries messages between nodes, where there was a choice.
func printNetworks(p *page, links []api.LinkStatus) {
	var t table
	t.add("LINK", "OVER", "WHY")
	for _, l := range links {
		if l.Network != nil && l.Network.Choice != nil {
			t.add(fmt.Sprintf("%d-%d", l.Link, l.Link+1), l.Network.Over, l.Network.Choice.Reason)
		}
	}
	p.below(&t)
}

// printTransports prints what copies boundaries between GPUs.
func printTransports(p *page, links []api.LinkStatus) {
	var t table
	t.add("LINK", "DOWN BY", "SPEED", "UP BY", "SPEED")
	cells := func(by *api.TransportStatus) []string {
		if by == nil {
			return []string{"-", "-"}
		}
		return []string{by.Name, size(int64(by.BytesPerS)) + "/s"}
	}
	for _, l := range links {
		if l.DownBy != nil || l.UpBy != nil {
			t.add(slices.Concat([]string{fmt.Sprintf("%d-%d", l.Link, l.Link+1)}, cells(l.DownBy), cells(l.UpBy))...)
		}
	}
	p.below(&t)
}
