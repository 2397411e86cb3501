package main

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/avgpipe/avgpipe/internal/api"
)

// tuneOptions are the flags of `tune`.
type tuneOptions struct {
	daemonFlags
	set    []string
	retune bool
}

func newTuneCommand() *cobra.Command {
	var o tuneOptions
	cmd := &cobra.Command{
		Use:   "tune FILE",
		Short: "Choose a job's counts by measuring, without training",
		Long: `Choose what a job file leaves open (stages, pipelines, micro_batches, or what says auto: schedule, recompute) by
measuring on the daemon's devices, and show the profile, the chosen plan, and the candidates that lost with the reason
of each. Nothing is submitted. The choice is kept in the daemon's cache, so that a submit of the same job takes it at
once; what is cached is shown without measuring, unless --retune is given. It waits until the cores that the job may
have are free.

To let it choose what the file gives, override that: --set pipelines=auto. Progress goes to standard error. The json output is
the report of the tuning (docs/tuning.md).`,
		Example: `  avgpipectl tune job.yaml
  avgpipectl tune job.yaml --retune --set stages=auto --set schedule=auto
  avgpipectl tune job.yaml -o json | jq .chosen.pipelines`,
		Args: arguments(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			return runTune(cmd.Context(), o, args[0], cmd.InOrStdin(), cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	o.addFlags(cmd)
	f := cmd.Flags()
	f.StringArrayVar(&o.set, "set", nil, "override `KEY=VALUE` of the file, such as stages=auto; may be repeated")
	f.BoolVar(&o.retune, "retune", false, "measure again, whatever is cached")
	return cmd
}

func runTune(ctx context.Context, o tuneOptions, file string, in io.Reader, out, messages io.Writer) error {
	request, _, err := prepare(submitOptions{set: o.set, retune: o.retune}, file, in)
	if err != nil {
		return err
	}
	client := o.client()
	defer client.Close()
	show := newTuneDisplay(messages)
	report, err := client.Tune(ctx, request, show.show)
	if err := errors.Join(err, show.finish()); err != nil {
		return err
	}
	return o.show(out, report, func(p *page) { printReport(p, report) })
}

// tuneDisplay shows how far a tuning is: a bar on a terminal, else a line for each step.
type tuneDisplay struct {
	out  io.Writer
	bar  *barDisplay // nil: no terminal
	last string
}

func newTuneDisplay(out io.Writer) *tuneDisplay {
	d := &tuneDisplay{out: out}
	if width, ok := terminal(out); ok {
		d.bar = newBarDisplay(out, width)
	}
	return d
}

func (d *tuneDisplay) show(u api.TuneUpdate) error {
	for _, w := range u.Warnings {
		if _, err := fmt.Fprintln(d.out, "warning:", w); err != nil {
			return err
		}
	}
	p := u.Progress
	if p == nil {
		return nil
	}
	text := tuningText(p)
	if d.bar != nil {
		return d.bar.set(text, tuned(p))
	}
	if text == d.last {
		return nil
	}
	d.last = text
	_, err := fmt.Fprintln(d.out, text)
	return err
}

func (d *tuneDisplay) finish() error {
	if d.bar == nil {
		return nil
	}
	return d.bar.finish()
}

// tuned is how much of a tuning is done.
func tuned(p *api.TuneProgress) float64 {
	if p.Total == 0 {
		return 0
	}
	return min(float64(p.Done)/float64(p.Total), 1)
}
