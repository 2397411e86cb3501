package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/avgpipe/avgpipe/internal/api"
)

// historyOptions are the flags of `history`.
type historyOptions struct {
	connection
	output string
	metric string
	out    string
	force  bool
	from   uint64
	height int
}

// historyOutputs are the values of --output.
var historyOutputs = []string{formatText, "csv", formatJSON, "svg", "png"}

// How many points are drawn at most; csv and json have all that are kept.
const imagePoints = 600

func newHistoryCommand() *cobra.Command {
	var o historyOptions
	cmd := &cobra.Command{
		Use:   "history JOB...",
		Short: "Plot how training went: loss, learning rate, gradient norm, speed",
		Long: `Plot how the training of one or more jobs went, step by step: a drawing for the terminal, an image, or the numbers.

Metrics:
  loss    training loss, in nats per target, the mean of all pipelines; evaluations of the center are marked
  lr      learning rate, after its schedule
  norm    norm of the gradient before clipping, the mean of all pipelines; jobs without clip_norm have none
  tokens  tokens per second of all pipelines, over the last seconds

Committed rounds and restarts are marked. Steps that were trained again after a failure are there once. Where a point stands
for many steps it is their mean; an image shows their range too. Old steps of a long job are kept merged.

The output is text, csv, json, svg or png; when --out names a file that ends in one of them, it is that. csv has a line for each
step, evaluation, committed round and start of a worker. The json output is an API history, or a list of them.`,
		Example: `  avgpipectl history my-job
  avgpipectl history first second --metric tokens
  avgpipectl history my-job --out loss.svg
  avgpipectl history my-job -o csv >history.csv`,
		Args: arguments(cobra.MinimumNArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := o.check(cmd.OutOrStdout()); err != nil {
				return &usageError{err}
			}
			return runHistory(cmd.Context(), o, args, cmd.OutOrStdout())
		},
	}
	o.addFlags(cmd)
	cmd.Flags().StringVarP(&o.output, "output", "o", "", "`FORMAT`: "+strings.Join(historyOutputs, ", ")+" (default text)")
	cmd.Flags().StringVar(&o.metric, "metric", "loss", "`METRIC`: "+strings.Join(metricNames(), ", "))
	cmd.Flags().StringVar(&o.out, "out", "", "write to a `FILE`")
	cmd.Flags().BoolVar(&o.force, "force", false, "replace FILE")
	cmd.Flags().Uint64Var(&o.from, "from", 0, "begin at a `STEP`")
	cmd.Flags().IntVar(&o.height, "height", 20, "`LINES` of the text drawing")
	return cmd
}

// check completes the options and refuses what cannot be done before anything is asked.
func (o *historyOptions) check(out io.Writer) error {
	if o.output == "" {
		o.output = formatText
		if kind := strings.TrimPrefix(filepath.Ext(o.out), "."); slices.Contains(historyOutputs, kind) {
			o.output = kind
		}
	}
	if !slices.Contains(historyOutputs, o.output) {
		return notOneOf("--output", o.output, historyOutputs)
	}
	if metricOf(o.metric) == nil {
		return notOneOf("--metric", o.metric, metricNames())
	}
	if o.height < 8 || o.height > 200 {
		return fmt.Errorf("--height is %d; allowed is 8 to 200", o.height)
	}
	if _, ok := terminal(out); ok && o.output == "png" && o.out == "" {
		return errors.New("a png is not for a terminal: name a file with --out")
	}
	if o.out == "" || o.force {
		return nil
	}
	if _, err := os.Lstat(o.out); !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%s exists; name another file, or replace it with --force", o.out)
	}
	return nil
}

func runHistory(ctx context.Context, o historyOptions, refs []string, out io.Writer) error {
	client := o.client()
	defer client.Close()
	width, colors := terminal(out)
	if width == 0 || o.out != "" {
		width, colors = 80, false
	}
	request := api.HistoryRequest{From: o.from}
	switch o.output {
	case formatText:
		request.Points = 2 * width
	case "svg", "png":
		request.Points = imagePoints
	}
	var all []api.History
	for _, ref := range refs {
		h, err := client.History(ctx, ref, request)
		if err != nil {
			return err
		}
		all = append(all, h)
	}
	var text bytes.Buffer
	if err := o.print(&text, all, width, colors); err != nil {
		return err
	}
	if o.out == "" {
		_, err := out.Write(text.Bytes())
		return err
	}
	return writeOut(o.out, text.Bytes(), o.force)
}

// print prints histories as asked.
func (o *historyOptions) print(w io.Writer, all []api.History, width int, colors bool) error {
	switch o.output {
	case formatJSON:
		if len(all) == 1 {
			return printJSON(w, all[0])
		}
		return printJSON(w, all)
	case "csv":
		return printHistoryCSV(w, all)
	}
	return o.plot(w, all, width, colors)
}

// writeOut writes a file; one that exists only with force.
func writeOut(path string, text []byte, force bool) error {
	flags := os.O_WRONLY | os.O_CREATE | os.O_EXCL
	if force {
		flags = os.O_WRONLY | os.O_CREATE | os.O_TRUNC
	}
	f, err := os.OpenFile(path, flags, 0o644) //nolint:gosec // the user's file, as the shell would make it
	if err != nil {
		return fmt.Errorf("write the history: %w", err)
	}
	_, err = f.Write(text)
	if err := errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("write the history: %w", err)
	}
	return nil
}
