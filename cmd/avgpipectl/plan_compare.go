package main

import (
	"cmp"
	"errors"
	"fmt"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/avgpipe/avgpipe/internal/words"
	"github.com/avgpipe/avgpipe/schedule"
	"github.com/avgpipe/avgpipe/stage/device"
)

// planCompareOptions are the flags of `plan compare`.
type planCompareOptions struct {
	file      string
	schedules []string
	pipelines int
	width     int
}

// steadyBatches is how many batches pipelines that share devices run where the file does not say: the first ones find out who runs
// when.
const steadyBatches = 8

func newPlanCompareCommand() *cobra.Command {
	var o planCompareOptions
	cmd := planVerb(&cobra.Command{
		Use:   "compare -f costs.yaml",
		Short: "Simulate all schedules with given costs, tabulate and draw them",
		Long: `Simulate schedules with the times and bytes of a file, side by side: batch time, bubble, the memory of the device
that needs most of what it has, the load of the busiest link; and draw them.

The file has one value for all stages (links, devices), or a list with one for each. All keys but the first four may be
left out.

  stages, micro_batches
      how many; a stage is what one device holds
  forward, backward
      times of one micro-batch, in any one unit
  backward_input, backward_weight
      times of the two halves of a split backward; half of backward each by default
  update, average
      times of an optimizer step, and of averaging a pipeline with the center
  latency, bandwidth, message_bytes
      of links, both ways: a message takes its bytes / bandwidth to be put on the link, after those before it, and its
      latency more. Bandwidth is bytes a unit of time, 0 is no limit
  activation_bytes, half_bytes
      what a micro-batch holds from its forward to its backward, and between the halves of it
  weight_bytes, gradient_bytes, state_bytes, center_bytes
      what a stage holds of each pipeline, and of the center
  capacity_bytes
      of a device; 0 is no limit
  utilisation
      the share of a device that one op can use, up to 1: how much pipelines gain side by side
  pipelines, batches, average_every
      how many share the devices, run how many batches, and are averaged after how many; by default 1 pipeline, as many
      batches as show the pace, and no averaging
  pull
      new: pipelines wait for each other where they average; old, the default, and elastic: they do not
  clip_norm
      true: stages wait for the norm of the whole gradient before they step; false by default
  chunks
      stages a device, for schedules with a choice; each takes an equal part of the times
  schedules
      names, in the order of the table; all by default
  unit
      s, ms or us: the time's unit, for perfetto; ms by default

The best is the fastest that fits, of equals the one that takes least memory; the others are so much slower. "memory" is
what the device must have in store: the peaks of all pipelines at once. "link" is the share of time in which a message
is being put on the busiest link.

Schedules:
` + describeSchedules() + `
The perfetto output opens in ui.perfetto.dev and in chrome://tracing. Exit codes: 0 ok, 2 bad input.`,
		Example: `  avgpipectl plan compare -f examples/plan/costs.yaml
  avgpipectl plan compare -f costs.yaml --schedules 1f1b,afp --pipelines 2
  avgpipectl plan compare -f costs.yaml -o svg > plans.svg
  avgpipectl plan compare -f costs.yaml -o perfetto > trace.json`,
	}, func(c *call) error { return c.planCompare(o) }, "svg", "perfetto")
	f := cmd.Flags()
	f.StringVarP(&o.file, "file", "f", "", "`FILE` of costs")
	f.StringSliceVar(&o.schedules, "schedules", nil, "`NAMES` of schedules, separated by commas; those of the file by default, else all")
	f.IntVar(&o.pipelines, "pipelines", 0, "number `N` of pipelines that share the devices; that of the file by default, else 1")
	f.IntVar(&o.width, "width", 120, "`COLUMNS` that the time may take in text; 0 for no drawings")
	return cmd
}

func (c *call) planCompare(o planCompareOptions) error {
	file, load, err := o.read(c)
	if err != nil {
		return err
	}
	if o.schedules == nil {
		o.schedules = file.Schedules
	}
	if o.schedules == nil {
		o.schedules = schedule.Names()
	}
	for _, name := range o.schedules {
		if err := oneOf(name, schedule.Names()); err != nil {
			return fmt.Errorf("--schedules %q: %w", name, err)
		}
	}
	candidates, err := c.tryAll(o.schedules, file, load)
	if err != nil {
		return fmt.Errorf("%s: %w", o.file, err)
	}
	switch c.format {
	case "svg":
		return c.printf("%s", schedule.DrawSVG(drawingsOf(candidates)...))
	case "perfetto":
		return c.printf("%s", schedule.DrawTrace(traceUnits[file.Unit], drawingsOf(candidates)...))
	}
	return c.show(viewsOf(candidates), func(p *page) { o.print(p, candidates) })
}

// tryAll simulates the schedules one after the other.
func (c *call) tryAll(names []string, file *costsFile, load schedule.Load) (candidates []schedule.Candidate, err error) {
	request := schedule.Request{Devices: file.Stages, MicroBatches: file.MicroBatches, RoundBatches: load.RoundBatches(), Chunks: file.Chunks}
	if err := cmp.Or(request.Validate(), checkMemory(names, 1, request, load, device.HostAvailable())); err != nil {
		return nil, err
	}
	p := newProgress(c.messages)
	defer p.erase()
	for i, name := range names {
		load.Proceed = p.working(c, name, i, len(names))
		candidate, err := schedule.Try(name, file.MicroBatches, file.Chunks, file.Costs, load)
		if err != nil {
			return nil, err
		}
		candidates = append(candidates, candidate)
	}
	return candidates, nil
}

// read reads the file and decides the load.
func (o *planCompareOptions) read(c *call) (*costsFile, schedule.Load, error) {
	switch {
	case o.file == "":
		return nil, schedule.Load{}, errors.New("no costs; name their file, such as -f examples/plan/costs.yaml")
	case o.width < 0:
		return nil, schedule.Load{}, fmt.Errorf("--width is %d; want at least 1, or 0 for no drawings", o.width)
	case o.pipelines < 1 && c.flags.Changed("pipelines"):
		return nil, schedule.Load{}, fmt.Errorf("--pipelines is %d; want at least 1", o.pipelines)
	}
	source, err := c.read(o.file, costsSchema.Name, int64(costsSchema.MaxBytes))
	if err != nil {
		return nil, schedule.Load{}, err
	}
	file, err := parseCosts(o.file, source)
	if err != nil {
		return nil, schedule.Load{}, err
	}
	load := schedule.Load{
		Pipelines: file.Pipelines, Batches: file.Batches, AverageEvery: file.AverageEvery, AwaitRound: file.Pull == "new", ExchangeNorm: file.ClipNorm,
	}
	if o.pipelines > 0 {
		load.Pipelines = o.pipelines
	}
	if load.Batches == 0 {
		load.Batches = 1
		if load.Pipelines > 1 {
			load.Batches = steadyBatches
		}
	}
	ops := 3 * max(1, file.Chunks) * file.Stages * file.MicroBatches * load.Pipelines * load.Batches
	load.Record = c.format == "svg" || c.format == "perfetto" || c.format == formatText && o.width > 0
	if load.Record && ops > mostDrawn {
		if c.format != formatText {
			return nil, load, fmt.Errorf("--output %s: about %d ops a schedule, more than the %d a drawing can show; use --output json", c.format, ops, mostDrawn)
		}
		load.Record, o.width = false, 0
	}
	return file, load, nil
}

// print prints the table, the reasons and the drawings.
func (o *planCompareOptions) print(p *page, candidates []schedule.Candidate) {
	best, err := schedule.Best(candidates)
	t := table{narrow: []string{"on device", "link", "bubble", "memory"}}
	t.add("schedule", "batch time", "bubble", "memory", "on device", "link", "against the best")
	for i, c := range candidates {
		if c.Err != nil {
			t.add(c.Schedule, "-", "-", "-", "-", "-", c.Err.Error())
			continue
		}
		device, memory := c.Result.Worst()
		note := ""
		switch {
		case memory.Short() > 0:
			note = "does not fit: short of " + words.Bytes(memory.Short())
		case err == nil && i == best:
			note = "best"
		case err == nil:
			note = against(c.Result.Period, candidates[best].Result.Period)
		}
		t.add(c.Schedule, fmt.Sprintf("%.6g", c.Result.Period), fmt.Sprintf("%.1f%%", 100*c.Result.Bubble),
			words.Bytes(memory.Reserved), strconv.Itoa(device), fmt.Sprintf("%.0f%%", 100*c.Result.Busiest().Busy), note)
	}
	p.table(&t)
	if err != nil {
		p.printf("%v; fewer pipelines, smaller micro-batches or more devices need less\n", err)
	}
	for _, c := range candidates {
		if c.Err == nil && o.width > 0 {
			p.printf("\n%s: %s\n%s", c.Schedule, c.Reason, schedule.DrawText(c.Result, o.width))
		}
	}
}

// against says how much longer than another time a time is.
func against(period, other float64) string {
	text := fmt.Sprintf("%+.1f%%", 100*(period/other-1))
	if period == other || text[1:] == "0.0%" { // both may be 0
		return "the same time"
	}
	return text
}

func drawingsOf(candidates []schedule.Candidate) []schedule.Drawing {
	var drawings []schedule.Drawing
	for _, c := range candidates {
		if c.Err == nil {
			drawings = append(drawings, schedule.Drawing{Title: c.Schedule, Result: c.Result})
		}
	}
	return drawings
}

// viewsOf are the schedules of the json output. A time is in the file's unit, from batch to batch of a pipeline; a share 0 to 1 of the time.
func viewsOf(candidates []schedule.Candidate) []map[string]any {
	var views []map[string]any
	for _, c := range candidates {
		if c.Err != nil {
			views = append(views, map[string]any{"schedule": c.Schedule, "error": c.Err.Error()})
			continue
		}
		var memory []map[string]int64 // of each device
		for _, m := range c.Result.Memory {
			memory = append(memory, map[string]int64{"static_bytes": m.Static, "peak_bytes": m.Peak, "reserved_bytes": m.Reserved, "short_bytes": m.Short()})
		}
		views = append(views, map[string]any{
			"schedule": c.Schedule, "reason": c.Reason, "batch_time": c.Result.Period, "bubble": c.Result.Bubble, "busy": planBusy(c.Result),
			"pinned": c.Result.InFlight, "memory": memory, "links": c.Result.Links,
		})
	}
	return views
}
