package main

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/avgpipe/avgpipe/internal/api"
)

func newTuneCommand() *cobra.Command {
	var o submitOptions
	cmd := daemonVerb(&cobra.Command{
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
	}, func(c *call) error { return c.tune(o) })
	setVar(cmd, &o.set, "stages=auto")
	cmd.Flags().BoolVar(&o.retune, "retune", false, "measure again, whatever is cached")
	return cmd
}

func (c *call) tune(o submitOptions) error {
	request, _, err := c.prepare(o)
	if err != nil {
		return err
	}
	p := newProgress(c.messages)
	p.last.State = api.Tuning // nothing but its progress is news
	report, err := c.client.Tune(c.ctx, request, func(u api.TuneUpdate) error {
		for _, w := range u.Warnings {
			p.say(fmt.Sprint("warning: ", w))
		}
		if u.Progress == nil {
			return nil
		}
		return p.status(api.JobStatus{State: api.Tuning, Tuning: u.Progress})
	})
	if err := errors.Join(err, p.finish()); err != nil {
		return err
	}
	return c.show(report, func(p *page) { printReport(p, report) })
}
