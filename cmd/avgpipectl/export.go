package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/avgpipe/avgpipe/internal/api"
	"github.com/avgpipe/avgpipe/internal/modeldir"
)

func newExportCommand() *cobra.Command {
	var force, wait bool
	cmd := daemonVerb(&cobra.Command{
		Use:   "export JOB [DIR]",
		Short: "Write a job's model to a directory",
		Long: `Write the model of a job's last committed round to a directory, in Hugging Face form: config.json and
model.safetensors (several of them, with an index, when the model is large), with the job's tokenizer.json if it has
one and avgpipe.json, which says how the data were read. The job may still be running. Without DIR it is the output.dir
of the job file. With --wait the job is followed until it is done, and its model exported then; of a job that ends otherwise
nothing is exported, and the exit code is 1. When the last round is damaged, an older one that is kept is exported, and a notice says so.

DIR is new or empty. With --force it may hold an earlier export: avgpipe-export.json says which files that wrote, and
these are replaced. A directory that holds anything else, or a file that was changed since, is refused. An export that
is interrupted leaves the old model, the new one, or a directory without config.json that the next export --force finishes.`,
		Example: `  avgpipectl export my-job ./model
  avgpipectl export my-job --wait`,
	}, func(c *call) error { return c.export(force, wait) })
	cmd.Flags().BoolVar(&force, "force", false, "replace an earlier export in DIR")
	cmd.Flags().BoolVarP(&wait, "wait", "w", false, "wait until the job is done")
	return cmd
}

func (c *call) export(force, wait bool) error {
	ref := c.args[0]
	s, err := c.client.Job(c.ctx, ref)
	if err != nil {
		return err
	}
	dir := s.OutputDir
	if len(c.args) == 2 {
		dir = c.args[1]
	}
	if dir == "" {
		return usagef("export %s: the job file has no output.dir, so name a directory: avgpipectl export %s DIR", ref, ref)
	}
	if dir, err = filepath.Abs(dir); err != nil {
		return fmt.Errorf("export: %w", err)
	}
	if wait {
		if s, err = c.awaitEnd(s, dir, force); err != nil {
			return err
		}
	}
	if !wait || exportTo(s, dir) != api.ExportDone {
		if err := c.fetchModel(s, dir, force); err != nil {
			return err
		}
	}
	if notice := noticeOf(dir); notice != "" {
		if _, err := fmt.Fprintf(c.messages, "avgpipectl: export %s: %s\n", ref, notice); err != nil {
			return err
		}
	}
	if c.format == formatText {
		return c.printf("the model of job %s (%s) is in %s\n", s.ID, s.Name, dir)
	}
	encode := printJSON
	if wait { // behind the statuses, a line each
		encode = printLine
	}
	return encode(c.out, map[string]string{"job": s.ID, "name": s.Name, "dir": dir})
}

// awaitEnd waits until a job is done, and until the daemon has written its model if it is to write it to dir.
func (c *call) awaitEnd(s api.JobStatus, dir string, force bool) (api.JobStatus, error) {
	if exportTo(s, dir) == "" {
		if err := refused(modeldir.Check(dir, force)); err != nil {
			return s, err
		}
	}
	s, err := c.watch(s.ID)
	for err == nil && exportTo(s, dir) == api.ExportDue {
		select {
		case <-c.ctx.Done():
			return s, context.Cause(c.ctx)
		case <-time.After(exportPoll):
			s, err = c.client.Job(c.ctx, s.ID)
		}
	}
	return s, err
}

// exportPoll is how often awaitEnd looks whether the daemon has written a model.
const exportPoll = 200 * time.Millisecond

// exportTo is how far the daemon is with writing a job's model to dir; empty when it does not write it there.
func exportTo(s api.JobStatus, dir string) api.ExportState {
	if s.Export == nil || s.Export.Dir != dir || s.Export.State == api.ExportManual || s.Export.State == api.ExportFailed {
		return ""
	}
	return s.Export.State
}

// exportPlan says how the model of a job gets, or got, to output.dir; "" when there is nothing to tell.
func exportPlan(id string, state api.State, e *api.Export) string {
	if e == nil {
		return ""
	}
	switch {
	case e.State == api.ExportFailed:
		return fmt.Sprintf("the daemon could not write the model to %s: %s; write it with: avgpipectl export %s", e.Dir, e.Reason, id)
	case e.State == api.ExportDone:
		return "the daemon wrote the model to " + e.Dir
	case state == api.Failed || state == api.Cancelled:
		return fmt.Sprintf("nothing was written to %s, for the job is %s; its last committed round can be: avgpipectl export %s", e.Dir, state, id)
	case state == api.Done && e.State == api.ExportManual:
		return fmt.Sprintf("write the model to %s with: avgpipectl export %s (the daemon cannot: %s)", e.Dir, id, e.Reason)
	case state == api.Done:
		return "the daemon is writing the model to " + e.Dir
	case e.State == api.ExportManual:
		return fmt.Sprintf("when the job is done, write its model to %s with: avgpipectl export %s --wait (the daemon cannot: %s)", e.Dir, id, e.Reason)
	}
	return fmt.Sprintf("when the job is done, the daemon writes its model to %s", e.Dir)
}

// noticeOf is what the card of an exported model says to the person who exported it; "" for nothing.
func noticeOf(dir string) string {
	var card struct{ Notice string }
	text, err := os.ReadFile(filepath.Join(dir, "avgpipe.json"))
	if err != nil || json.Unmarshal(text, &card) != nil {
		return "" // a model without a card has none
	}
	return card.Notice
}

// fetchModel writes the model of a job to a directory, whose path is absolute. With force it replaces an earlier export there.
func (c *call) fetchModel(s api.JobStatus, dir string, force bool) error {
	err := modeldir.Write(dir, force, modeldir.Source{Job: s.ID, Name: s.Name}, func(staging string) error {
		packed, sent := io.Pipe()
		var sending sync.WaitGroup
		sending.Go(func() { _ = sent.CloseWithError(c.client.Model(c.ctx, s.ID, sent)) }) // the reader gets the error
		err := modeldir.Unpack(packed, staging)
		_ = packed.CloseWithError(err) // ends the sender
		sending.Wait()
		return err
	})
	if answer, ok := errors.AsType[*api.Error](err); ok { // it says all, and unpacking failed for that alone
		return answer
	}
	return refused(err)
}

// refused makes a refusal a usage error.
func refused(err error) error {
	if refusal, ok := errors.AsType[*modeldir.Refusal](err); ok {
		return usagef("export: %w", refusal)
	} else if err != nil {
		return fmt.Errorf("export: %w", err)
	}
	return nil
}
