package main

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/avgpipe/avgpipe/internal/api"
	"github.com/avgpipe/avgpipe/internal/words"
)

func newAuditCommand() *cobra.Command {
	return daemonVerb(&cobra.Command{
		Use:   "audit JOB",
		Short: "Say which samples stand behind the last committed round of a job",
		Long: `Say which samples stand behind the last committed round of a job, and whether each of them was consumed exactly once. All
samples of a run are numbered in the order in which they are consumed, epoch after epoch. A line is a run of rounds with the same
pipelines: what was trained and lost again, with a worker or a host, or given up with resume --from-round, is in none of them.

The command fails where samples are missing, or stand behind two rounds. With -o json each pipeline's samples are told too.`,
		Example: `  avgpipectl audit my-job
  avgpipectl audit my-job -o json | jq .exact`,
	}, func(c *call) error {
		a, err := c.client.Audit(c.ctx, c.args[0])
		if err != nil {
			return err
		}
		if err := c.show(a, func(p *page) { printAccounting(p, &a) }); err != nil {
			return err
		}
		if !a.Exact {
			return errors.New("audit: the samples behind the last committed round are not each one once")
		}
		return nil
	})
}

func printAccounting(p *page, a *api.Accounting) {
	t := table{}
	t.add("job", a.ID+" ("+a.Name+")")
	t.add("round", fmt.Sprintf("%d, after %s", a.Round, words.Count(int(a.Samples), "sample"))) //nolint:gosec // for people
	switch {
	case a.Round == 0:
		t.add("samples", "none: no round is committed")
	case a.Exact && a.Epoch > 0:
		t.add("samples", fmt.Sprintf("each once: 0 to %d; an epoch has %d", a.Samples-1, a.Epoch))
	case a.Exact:
		t.add("samples", fmt.Sprintf("each once: 0 to %d", a.Samples-1))
	}
	t.add("batches", fmt.Sprintf("%d, of which %d were held against the order of samples one by one", a.Batches, a.Checked))
	t.list("fault", a.Faults...)
	p.table(&t)
	for i := range a.Stretches {
		s := &a.Stretches[i]
		p.printf("\nrounds %d to %d, from generation %d on: samples %d to %d%s\n", s.FromRound+1, s.ToRound, s.Generation, s.FromSample, s.ToSample-1, between(s))
		p.printf("  %s of each of %s, %s each\n", words.Count(int(s.Steps), "step"), words.Count(len(s.Pipelines), "pipeline"), //nolint:gosec // for people
			words.Count(int(s.Batch), "sample")) //nolint:gosec // likewise
	}
}

// between says where a stretch lies in its epochs.
func between(s *api.AccountedStretch) string {
	if s.Begin == nil || s.End == nil {
		return ""
	}
	return fmt.Sprintf(" (epoch %d sample %d to epoch %d sample %d)", s.Begin.Epoch, s.Begin.Index, s.End.Epoch, s.End.Index)
}
