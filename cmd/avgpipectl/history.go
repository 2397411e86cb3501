package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/avgpipe/avgpipe/internal/api"
)

// historyOptions are the flags of `history`.
type historyOptions struct {
	metric, out string
	force       bool
	from        uint64
	height      int
}

// imagePoints is how many points an image draws at most; csv and json have all that are kept.
const imagePoints = 600

func newHistoryCommand() *cobra.Command {
	o := historyOptions{metric: "loss"}
	cmd := daemonVerb(&cobra.Command{
		Use:   "history JOB...",
		Short: "Plot how training went: loss, learning rate, gradient norm, speed",
		Long: `Plot how the training of one or more jobs went, step by step: a drawing for the terminal, an image, or the numbers.

Metrics:
  loss    training loss, in nats per target or by the program's own loss, the mean of all pipelines; evaluations of the center are marked
  lr      learning rate, after its schedule
  norm    norm of the gradient before clipping, the mean of all pipelines; jobs without clip_norm have none
  tokens  tokens per second of all pipelines, over the last seconds

Restarts are named, and an image marks committed rounds too. Steps that were trained again after a failure are there once. Where a
point stands for many steps it is their mean; an image shows their range too. Old steps of a long job are kept merged.

The output is text, csv, json, svg or png; when --out names a file that ends in one of them, it is that. csv has a line for each
step, evaluation, committed round and start of a worker. The json output is an API history, or a list of them.`,
		Example: `  avgpipectl history my-job
  avgpipectl history first second --metric tokens
  avgpipectl history my-job --out loss.svg
  avgpipectl history my-job -o csv >history.csv`,
	}, func(c *call) error { return c.history(o) }, "csv", "svg", "png")
	choiceVar(cmd, &o.metric, "metric", "", "`METRIC`", metricNames())
	cmd.Flags().StringVar(&o.out, "out", "", "write to a `FILE`")
	cmd.Flags().BoolVar(&o.force, "force", false, "replace FILE")
	cmd.Flags().Uint64Var(&o.from, "from", 0, "begin at a `STEP`")
	cmd.Flags().IntVar(&o.height, "height", 20, "`LINES` of the text drawing")
	return cmd
}

// check refuses what cannot be done before anything is asked.
func (o *historyOptions) check(c *call) error {
	if o.height < 8 || o.height > 200 {
		return usagef("--height is %d; allowed is 8 to 200", o.height)
	}
	if _, ok := terminal(c.out); ok && c.format == "png" && o.out == "" {
		return usagef("a png is not for a terminal: name a file with --out")
	}
	return replaceable(o.out, o.force)
}

func (c *call) history(o historyOptions) error {
	if kind := strings.TrimPrefix(filepath.Ext(o.out), "."); !c.flags.Changed("output") && kind != "" && kind != "txt" {
		if err := c.flags.Lookup("output").Value.Set(kind); err != nil {
			return usagef("%s: its extension says no format: %v; name one with -o, or a file in .txt, .csv, .json, .svg or .png", o.out, err)
		}
		c.format = kind
	}
	if err := o.check(c); err != nil {
		return err
	}
	width, colors := terminal(c.out)
	if width == 0 || o.out != "" {
		width, colors = 80, false
	}
	request := api.HistoryRequest{From: o.from}
	switch c.format {
	case formatText:
		request.Points = 2 * width
	case "svg", "png":
		request.Points = imagePoints
	}
	var all []api.History
	for _, ref := range c.args {
		h, err := c.client.History(c.ctx, ref, request)
		if err != nil {
			return err
		}
		all = append(all, h)
	}
	var text bytes.Buffer
	var err error
	switch {
	case c.format == formatJSON && len(all) == 1:
		err = printJSON(&text, all[0])
	case c.format == formatJSON:
		err = printJSON(&text, all)
	case c.format == "csv":
		err = printHistoryCSV(&text, all)
	default:
		err = o.plot(&text, c.format, all, width, colors)
	}
	if err != nil {
		return err
	}
	if o.out == "" {
		_, err := c.out.Write(text.Bytes())
		return err
	}
	if err := os.WriteFile(o.out, text.Bytes(), 0o644); err != nil { //nolint:gosec // the user's file, as the shell would make it
		return fmt.Errorf("write the history: %w", err)
	}
	return nil
}
