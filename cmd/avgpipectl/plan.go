package main

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/avgpipe/avgpipe/internal/words"
	"github.com/avgpipe/avgpipe/schedule"
)

// newPlanCommand is `avgpipectl plan`: schedules, without a daemon.
func newPlanCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "plan",
		Short: "Show the order of work of a schedule (offline)",
		Long:  "Show what each stage of a pipeline runs, in which order and when. Needs no daemon.",
		Args:  onlyVerbs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newPlanShowCommand(), newPlanCheckCommand(), newPlanCompareCommand())
	return cmd
}

// planShowOptions are the flags of `plan show`.
type planShowOptions struct {
	schedule, file          string // a file is read instead of making the plan of a schedule
	stages, microBatches    int
	chunks                  int
	forward, backward, link string // one time, or one a stage or link, separated by commas; empty is the default
	width                   int
	output                  string

	plan schedule.Plan // of the file
}

// readFile reads the plan that is to be shown. changed tells which flags were given.
func (o *planShowOptions) readFile(in io.Reader, changed func(string) bool) error {
	for _, flag := range []string{"schedule", "stages", "micro-batches", "chunks"} {
		if changed(flag) {
			return &usageError{fmt.Errorf("--%s stands beside --file, which holds the whole plan; remove one of them", flag)}
		}
	}
	plan, err := readPlanFile(o.file, in)
	if err != nil {
		return &usageError{err}
	}
	o.plan, o.schedule, o.stages, o.microBatches = plan, o.file, len(plan), plan.MicroBatches()
	if stages := plan.Stages(); stages%len(plan) == 0 {
		o.chunks = stages / len(plan)
	}
	return nil
}

// The times of an op where the user gives none, in units of a forward. A backward is about two forwards: it multiplies by
// each weight matrix twice.
const (
	defaultForward  = "1"
	defaultBackward = "2"
	defaultLink     = "0"
)

func newPlanShowCommand() *cobra.Command {
	var o planShowOptions
	cmd := &cobra.Command{
		Use:   "show --stages K --micro-batches M | --file FILE",
		Short: "Draw the plan of a schedule over time",
		Long: `Draw the plan of a schedule over time: what each stage runs, in which order and when, simulated from the time of
a forward, a backward and a message. Schedules:

` + describeSchedules() + `
Times are in any one unit: a single value for all, or a list with one value a stage (--forward, --backward) or a
link (--link). Where any of the three is given, afp sizes its warm-up by them; else it is the published grid.
With several stages a device, times are those of all its stages together, each of which takes an equal part.

The json output has: schedule, stages, chunks, micro_batches, grid (one string a device, such as "F0 F1 B0 B1"), pinned and
warmup (micro-batches a device), reason, and simulated: batch_time, bubble and busy (a device), the last two as
fractions of the batch time.

Exit codes: 0 ok, 2 bad input.`,
		Example: `  avgpipectl plan show --stages 4 --micro-batches 8
  avgpipectl plan show --schedule 1f1b --stages 4 --micro-batches 8 --forward 1 --backward 2 --link 0.5
  avgpipectl plan show --stages 3 --micro-batches 12 --forward 3,3,4 --backward 6,6,8 --link 0.5,8 -o svg > plan.svg
  avgpipectl plan show --stages 4 --micro-batches 8 -o json | jq -r .grid[]
  avgpipectl plan show --file plan.csv --link 0.5`,
		Args: arguments(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			var err error
			if cmd.Flags().Changed("file") {
				err = o.readFile(cmd.InOrStdin(), cmd.Flags().Changed)
			}
			if err == nil {
				err = o.run(cmd.OutOrStdout())
			}
			if err != nil {
				return fmt.Errorf("plan show: %w", err)
			}
			return nil
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.schedule, "schedule", "afp", "`NAME`: one of "+strings.Join(schedule.Names(), ", "))
	f.IntVar(&o.stages, "stages", 0, "number `K` of stages")
	f.IntVar(&o.microBatches, "micro-batches", 0, "number `M` of micro-batches in a batch")
	f.IntVar(&o.chunks, "chunks", 0, "stages `V` a device, for schedules that have several; 0 for their default")
	f.StringVar(&o.file, "file", "", "`FILE` with a plan that you wrote, in place of a schedule and its counts; - for the standard input")
	f.StringVar(&o.forward, "forward", "", "`TIME` of a forward, or one a stage: 1,1,2 (default "+defaultForward+")")
	f.StringVar(&o.backward, "backward", "", "`TIME` of a backward, or one a stage (default "+defaultBackward+")")
	f.StringVar(&o.link, "link", "", "one-way `TIME` of a message, or one a link (default "+defaultLink+")")
	f.IntVar(&o.width, "width", 0, "`COLUMNS` that the time may take in text; 0 for as many as show every label")
	f.StringVarP(&o.output, "output", "o", "text", "`FORMAT`: one of "+strings.Join(planOutputs, ", "))
	return cmd
}

func describeSchedules() string {
	var b strings.Builder
	for _, name := range schedule.Names() {
		fmt.Fprintf(&b, "  %-13s  %s\n", name, schedule.About(name))
	}
	return b.String()
}

// planView is the json output.
type planView struct {
	Schedule     string        `json:"schedule"`
	Stages       int           `json:"stages"`
	Chunks       int           `json:"chunks"` // stages a device
	MicroBatches int           `json:"micro_batches"`
	Grid         schedule.Plan `json:"grid"`
	InFlight     []int         `json:"pinned"` // micro-batches, per stage
	Warmup       []int         `json:"warmup"` // forwards before the first backward, per stage
	Reason       string        `json:"reason"`
	Simulated    planTimes     `json:"simulated"`
}

// planTimes are the simulated times.
type planTimes struct {
	BatchTime float64   `json:"batch_time"` // in the unit of the flags
	Bubble    float64   `json:"bubble"`     // 0..1 of all stages' time
	Busy      []float64 `json:"busy"`       // per stage, 0..1 of the batch time
}

// planOutputs are the values of --output.
var planOutputs = []string{"text", "json", "svg"}

// What a drawing shows at most: of an SVG image a browser shows no more ops, of text nobody reads more rows.
const (
	mostDrawn = 200_000 // ops
	mostRows  = 4096
)

func (o *planShowOptions) run(out io.Writer) error {
	view, result, err := o.simulate()
	if err != nil {
		return &usageError{err}
	}
	switch o.output {
	case "json":
		return printJSON(out, view)
	case "svg":
		_, err = io.WriteString(out, schedule.DrawSVG(schedule.Drawing{Result: result}))
	default:
		_, err = fmt.Fprintf(out, "%s: %s\n\n%s", o.schedule, view.Reason, schedule.DrawText(result, o.width))
	}
	return err
}

// simulate does the work: flags in, what to print out. All its errors are bad input.
func (o *planShowOptions) simulate() (planView, schedule.Result, error) {
	fail := func(err error) (planView, schedule.Result, error) {
		return planView{}, schedule.Result{}, err
	}
	if err := o.validate(); err != nil {
		return fail(err)
	}
	plan, reason := o.plan, "a plan of your own"
	if plan == nil { // before memory is taken for so many stages
		if err := (schedule.Request{Devices: o.stages, MicroBatches: o.microBatches, Chunks: o.chunks}).Validate(); err != nil {
			return fail(err)
		}
	}
	costs, err := o.costs()
	if err != nil {
		return fail(err)
	}
	if plan == nil {
		if plan, reason, err = o.generate(costs); err != nil {
			return fail(err)
		}
	}
	if o.output == "svg" && plan.Ops() > mostDrawn {
		return fail(fmt.Errorf("--output svg: the plan has %d ops, more than the %d an image can show; use --output json", plan.Ops(), mostDrawn))
	}
	if o.output == "text" && len(plan) > mostRows {
		return fail(fmt.Errorf("--output text: the plan has %d devices, more than the %d rows that text shows; use --output json", len(plan), mostRows))
	}
	result, err := schedule.Simulate(plan, costs.SpreadOver(plan))
	if err != nil {
		return fail(err)
	}
	view := planView{
		Schedule: o.schedule, Stages: o.stages, Chunks: o.chunks, MicroBatches: o.microBatches,
		Grid: plan, InFlight: result.InFlight, Warmup: schedule.Warmup(plan), Reason: reason,
		Simulated: planTimes{BatchTime: result.Makespan, Bubble: result.Bubble, Busy: planBusy(result)},
	}
	return view, result, nil
}

// generate makes the plan of the schedule, for the costs if any was given.
func (o *planShowOptions) generate(costs schedule.Costs) (schedule.Plan, string, error) {
	var err error
	if o.chunks, err = schedule.Chunks(o.schedule, o.chunks); err != nil {
		return nil, "", err
	}
	request := schedule.Request{Devices: o.stages, MicroBatches: o.microBatches, Chunks: o.chunks}
	if o.chunks == 1 && (o.forward != "" || o.backward != "" || o.link != "") {
		request.Costs = &costs
	}
	return schedule.Generate(o.schedule, request)
}

func (o *planShowOptions) validate() error {
	switch {
	case !slices.Contains(planOutputs, o.output):
		return notOneOf("--output", o.output, planOutputs)
	case o.stages < 1:
		return fmt.Errorf("--stages is %d; want at least 1, such as --stages 4", o.stages)
	case o.microBatches < 1:
		return fmt.Errorf("--micro-batches is %d; want at least 1, such as --micro-batches 8", o.microBatches)
	case o.width < 0:
		return fmt.Errorf("--width is %d; want at least 1, or 0 for as many columns as show every label", o.width)
	}
	return nil
}

// costs reads the times of the flags, or their defaults.
func (o *planShowOptions) costs() (schedule.Costs, error) {
	var c schedule.Costs
	for _, list := range []struct {
		flag, text, absent, unit string
		n                        int
		values                   *[]float64
	}{
		{"--forward", o.forward, defaultForward, "stage", o.stages, &c.Forward},
		{"--backward", o.backward, defaultBackward, "stage", o.stages, &c.Backward},
		{"--link", o.link, defaultLink, "link", o.stages - 1, &c.Link},
	} {
		text := list.text
		if text == "" {
			text = list.absent
		}
		values, err := parsePlanTimes(text, list.n, list.unit)
		if err != nil {
			return c, fmt.Errorf("%s %q: %w", list.flag, text, err)
		}
		*list.values = values
	}
	return c, c.Validate(o.stages)
}

// parsePlanTimes reads one time for all, or n of them separated by commas.
func parsePlanTimes(text string, n int, unit string) ([]float64, error) {
	items := strings.Split(text, ",")
	if len(items) != 1 && len(items) != n {
		return nil, fmt.Errorf("%s for %s; want one for all, or one a %s", words.Count(len(items), "time"), words.Count(n, unit), unit)
	}
	values := make([]float64, n)
	for i, item := range items {
		v, err := strconv.ParseFloat(strings.TrimSpace(item), 64)
		switch {
		case errors.Is(err, strconv.ErrRange):
			return nil, fmt.Errorf("time %d, %q, is too large", i+1, item)
		case err != nil:
			return nil, fmt.Errorf("time %d, %q, is not a number; want a time such as 0.5, in any one unit", i+1, item)
		}
		for j := range values {
			if len(items) == 1 || i == j {
				values[j] = v
			}
		}
	}
	return values, nil
}

// planBusy turns each stage's time of compute into a fraction of the batch time.
func planBusy(r schedule.Result) []float64 {
	shares := make([]float64, len(r.Busy))
	for k, busy := range r.Busy {
		if r.Makespan > 0 {
			shares[k] = busy / r.Makespan
		}
	}
	return shares
}
