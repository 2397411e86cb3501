package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/avgpipe/avgpipe/internal/words"
	"github.com/avgpipe/avgpipe/schedule"
	"github.com/avgpipe/avgpipe/stage/device"
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

// planVerb is a verb of plan. All its errors are bad input.
func planVerb(cmd *cobra.Command, run func(c *call) error, more ...string) *cobra.Command {
	return verb(cmd, func(c *call) error {
		err := run(c)
		switch {
		case errors.Is(err, context.Canceled):
			return &exit{code: exitInterrupted} // whoever did it knows
		case err != nil:
			return usagef("plan %s: %w", cmd.Name(), err)
		}
		return nil
	}, more...)
}

// planShowOptions are the flags of `plan show`.
type planShowOptions struct {
	schedule, file          string // a file is read instead of making the plan of a schedule
	stages, microBatches    int
	chunks                  int
	roundBatches            int
	forward, backward, link string // one time, or one a stage or link, separated by commas; empty is the default
	width                   int
}

// The times of an op where the user gives none, in units of a forward. A backward is about two forwards: it multiplies by
// each weight matrix twice.
const (
	defaultForward  = "1"
	defaultBackward = "2"
	defaultLink     = "0"
)

func newPlanShowCommand() *cobra.Command {
	o := planShowOptions{schedule: "afp"}
	cmd := planVerb(&cobra.Command{
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
fractions of the time. A plan that runs on across batches has the micro-batches of all of them; batch_time is the mean.

Exit codes: 0 ok, 2 bad input.`,
		Example: `  avgpipectl plan show --stages 4 --micro-batches 8
  avgpipectl plan show --schedule 1f1b --stages 4 --micro-batches 8 --forward 1 --backward 2 --link 0.5
  avgpipectl plan show --stages 3 --micro-batches 12 --forward 3,3,4 --backward 6,6,8 --link 0.5,8 -o svg > plan.svg
  avgpipectl plan show --stages 4 --micro-batches 8 -o json | jq -r .grid[]
  avgpipectl plan show --file plan.csv --link 0.5`,
	}, func(c *call) error { return c.planShow(o) }, "svg")
	f := cmd.Flags()
	choiceVar(cmd, &o.schedule, "schedule", "", "`NAME`", schedule.Names())
	f.IntVar(&o.stages, "stages", 0, "number `K` of stages")
	f.IntVar(&o.microBatches, "micro-batches", 0, "number `M` of micro-batches in a batch")
	f.IntVar(&o.chunks, "chunks", 0, "stages `V` a device, for schedules that have several; 0 for their default")
	f.IntVar(&o.roundBatches, "round-batches", 1, "batches in a round, `N`, across which a schedule with optimizer steps inside of batches runs on (averaging.tau of a job)")
	f.StringVar(&o.file, "file", "", "`FILE` with a plan that you wrote, in place of a schedule and its counts; - for the standard input")
	f.StringVar(&o.forward, "forward", "", "`TIME` of a forward, or one a stage: 1,1,2 (default "+defaultForward+")")
	f.StringVar(&o.backward, "backward", "", "`TIME` of a backward, or one a stage (default "+defaultBackward+")")
	f.StringVar(&o.link, "link", "", "one-way `TIME` of a message, or one a link (default "+defaultLink+")")
	f.IntVar(&o.width, "width", 0, "`COLUMNS` that the time may take in text; 0 for as many as show every label")
	return cmd
}

func describeSchedules() string {
	var b strings.Builder
	for _, name := range schedule.Names() {
		fmt.Fprintf(&b, "  %-13s  %s\n", name, schedule.About(name))
	}
	return b.String()
}

// What a drawing shows at most: of an SVG image a browser shows no more ops, of text nobody reads more rows.
const (
	mostDrawn = 200_000 // ops; each takes some 400 bytes
	mostRows  = 4096
)

func (c *call) planShow(o planShowOptions) error {
	if err := c.exclusive("file", "schedule", "stages", "micro-batches", "chunks", "round-batches"); err != nil { // the file has the whole plan
		return err
	}
	plan, costs, reason, err := o.make(c)
	if err != nil {
		return err
	}
	switch {
	case c.format != formatJSON && plan.Ops() > mostDrawn:
		return fmt.Errorf("--output %s: the plan has %d ops, more than the %d that a drawing can show; use --output json", c.format, plan.Ops(), mostDrawn)
	case c.format == formatText && len(plan) > mostRows:
		return fmt.Errorf("--output text: the plan has %d devices, more than the %d rows that text shows; use --output json", len(plan), mostRows)
	}
	p := newProgress(c.messages)
	result, err := schedule.SimulateMany(plan, costs.SpreadOver(plan), schedule.Load{
		MicroBatches: o.microBatches, Record: c.format != formatJSON, Proceed: p.working(c, o.schedule, 0, 1),
	})
	p.erase()
	if err != nil {
		return err
	}
	switch c.format {
	case formatJSON:
		return printJSON(c.out, map[string]any{
			"schedule": o.schedule, "stages": o.stages, "chunks": o.chunks, "micro_batches": o.microBatches, "reason": reason,
			"grid": plan, "pinned": result.InFlight, "warmup": schedule.Warmup(plan),
			"simulated": map[string]any{"batch_time": result.Period, "bubble": result.Bubble, "busy": planBusy(result)},
		})
	case "svg":
		return c.printf("%s", schedule.DrawSVG(schedule.Drawing{Result: result}))
	}
	return c.printf("%s: %s\n\n%s", o.schedule, reason, schedule.DrawText(result, o.width))
}

// make makes the plan of the schedule, for the costs if any was given, or reads that of the file, and completes what the flags say of it.
func (o *planShowOptions) make(c *call) (plan schedule.Plan, costs schedule.Costs, reason string, err error) {
	if c.flags.Changed("file") {
		if plan, err = c.readPlan(o.file); err != nil {
			return nil, costs, "", err
		}
		o.schedule, o.stages, o.microBatches, reason = o.file, len(plan), plan.MicroBatches(), "a plan of your own"
		if stages := plan.Stages(); stages%len(plan) == 0 {
			o.chunks = stages / len(plan)
		}
	}
	request := schedule.Request{Devices: o.stages, MicroBatches: o.microBatches, RoundBatches: o.roundBatches, Chunks: o.chunks}
	switch {
	case o.stages < 1:
		err = fmt.Errorf("--stages is %d; want at least 1, such as --stages 4", o.stages)
	case o.microBatches < 1:
		err = fmt.Errorf("--micro-batches is %d; want at least 1, such as --micro-batches 8", o.microBatches)
	case o.roundBatches < 1:
		err = fmt.Errorf("--round-batches is %d; want at least 1", o.roundBatches)
	case o.width < 0:
		err = fmt.Errorf("--width is %d; want at least 1, or 0 for as many columns as show every label", o.width)
	case plan == nil: // before memory is taken for so many stages
		err = request.Validate()
	}
	if err == nil {
		costs, err = o.costs()
	}
	if err != nil || plan != nil {
		return plan, costs, reason, err
	}
	if o.chunks, err = schedule.Chunks(o.schedule, o.chunks); err != nil {
		return nil, costs, "", err
	}
	if request.Chunks = o.chunks; o.chunks == 1 && (o.forward != "" || o.backward != "" || o.link != "") {
		request.Costs = &costs
	}
	// Twice: the grid is printed as well.
	if err := checkMemory([]string{o.schedule}, 2, request, schedule.Load{}, device.HostAvailable()); err != nil {
		return nil, costs, "", err
	}
	plan, reason, err = schedule.Generate(o.schedule, request)
	return plan, costs, reason, err
}

// costs reads the times of the flags, or their defaults.
func (o *planShowOptions) costs() (schedule.Costs, error) {
	var c schedule.Costs
	for _, list := range []struct {
		flag, text, unit string
		n                int
		values           *[]float64
	}{
		{"--forward", cmp.Or(o.forward, defaultForward), "stage", o.stages, &c.Forward},
		{"--backward", cmp.Or(o.backward, defaultBackward), "stage", o.stages, &c.Backward},
		{"--link", cmp.Or(o.link, defaultLink), "link", o.stages - 1, &c.Link},
	} {
		var err error
		if *list.values, err = parsePlanTimes(list.text, list.n, list.unit); err != nil {
			return c, fmt.Errorf("%s %q: %w", list.flag, list.text, err)
		}
	}
	return c, c.Validate(o.stages)
}

// parsePlanTimes reads one time for all, or n of them separated by commas.
func parsePlanTimes(text string, n int, unit string) ([]float64, error) {
	items := strings.Split(text, ",")
	values := make([]float64, len(items))
	for i, item := range items {
		v, err := strconv.ParseFloat(strings.TrimSpace(item), 64)
		switch values[i] = v; {
		case errors.Is(err, strconv.ErrRange):
			return nil, fmt.Errorf("time %d, %q, is too large", i+1, item)
		case err != nil:
			return nil, fmt.Errorf("time %d, %q, is not a number; want a time such as 0.5, in any one unit", i+1, item)
		}
	}
	return spread(values, "time", n, unit)
}

// spread gives each of n stages, links or devices its value: one value is for all of them.
func spread[T any](values []T, noun string, n int, unit string) ([]T, error) {
	switch len(values) {
	case n:
		return values, nil
	case 1:
		return slices.Repeat(values, n), nil
	}
	return nil, fmt.Errorf("%s for %s; want one for all, or one a %s", words.Count(len(values), noun), words.Count(n, unit), unit)
}

// planBusy turns each device's time of compute into a fraction of the time of all.
func planBusy(r schedule.Result) []float64 {
	shares := make([]float64, len(r.Busy))
	for k, busy := range r.Busy {
		if r.Makespan > 0 {
			shares[k] = busy / r.Makespan
		}
	}
	return shares
}
