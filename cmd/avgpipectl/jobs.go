package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/avgpipe/avgpipe/internal/api"
)

func newCancelCommand() *cobra.Command {
	var all, yes bool
	cmd := daemonVerb(&cobra.Command{
		Use:   "cancel JOB... | --all",
		Short: "End jobs",
		Long: `End jobs. Each commits the round that it is in first, so what it has learned can be exported; if that takes too long
it ends without. The command returns once the daemon knows, before the jobs have ended. With --all it ends every job of yours
that has not ended, after you have agreed; where nobody can be asked, --yes says so. With -o json the answer is an API status, or
a list of them for --all or several jobs.`,
		Example: `  avgpipectl cancel my-job
  avgpipectl cancel 30 31
  avgpipectl cancel --all --yes`,
	}, func(c *call) error {
		if all != (len(c.args) == 0) {
			return usagef("name the jobs, or end all of yours with --all; usage: avgpipectl cancel JOB... | --all")
		}
		if all {
			if err := c.nameAll(yes); err != nil || len(c.args) == 0 && c.format == formatText {
				return err
			}
		}
		return c.each(func(ref string) (api.JobStatus, string, error) {
			s, err := c.client.Cancel(c.ctx, ref)
			if refused, ok := errors.AsType[*api.Error](err); ok && all && refused.Status == http.StatusConflict {
				s, err = c.client.Job(c.ctx, ref)
				return s, "has ended since", err
			}
			return s, "is being cancelled", err
		})
	})
	cmd.Flags().BoolVar(&all, "all", false, "all jobs of yours that have not ended")
	cmd.Flags().BoolVar(&yes, "yes", false, "with --all: do not ask")
	return cmd
}

func newResumeCommand() *cobra.Command {
	var r api.ResumeRequest
	cmd := daemonVerb(&cobra.Command{
		Use:   "resume JOB...",
		Short: "Restart failed, cancelled or waiting jobs from their last committed round",
		Long: `Restart jobs that failed or were cancelled, from their last committed round. A job that waits, for a full disk or
missing files, tries again at once; it does so by itself as well when what it waits for has passed.

With --stages, --pipelines and --groups a job that has ended goes on with other counts, from the same round: what it has learned is cut
anew, and its data go on where they were. Counts that do not fit are refused, with the nearest that do. With --dry-run the
command only says what they would take, and whether the round can be read.

With --from-round the job starts from an older round that is still kept, and newer ones are given up; with
--from-start all of them are. Shards of rounds that are given up stay in the quarantine of the job for a while, on each node
that has them. With -o json the
answer is an API status, or a list of them for several jobs.`,
		Example: `  avgpipectl resume my-job
  avgpipectl resume my-job --from-round 300
  avgpipectl resume my-job --stages 2 --pipelines 1 --dry-run`,
	}, func(c *call) error {
		switch err := c.exclusive("from-round", "from-start"); {
		case err != nil:
			return err
		case c.flags.Changed("from-round") && r.FromRound == 0:
			return usagef("resume: rounds count from 1; to start over use --from-start")
		case len(c.args) > 1 && r.FromRound > 0:
			return usagef("resume: --from-round is of one job")
		case c.flags.Changed("stages") && r.Stages < 1 || c.flags.Changed("pipelines") && r.Pipelines < 1 || c.flags.Changed("groups") && r.Groups < 1:
			return usagef("resume: --stages, --pipelines and --groups are at least 1")
		}
		return c.each(func(ref string) (api.JobStatus, string, error) {
			s, err := c.client.Resume(c.ctx, ref, r)
			if r.DryRun {
				return s, s.Reason, err
			}
			if s.State == api.Waiting { // its reason is still what it waited for
				return s, "tries again", err
			}
			return s, fmt.Sprintf("is %s: %s", s.State, s.Reason), err
		})
	})
	cmd.Flags().Uint64Var(&r.FromRound, "from-round", 0, "start from this kept round and give newer ones up")
	cmd.Flags().BoolVar(&r.FromStart, "from-start", false, "start over and give every round up")
	cmd.Flags().IntVar(&r.Stages, "stages", 0, "go on with so many stages")
	cmd.Flags().IntVar(&r.Pipelines, "pipelines", 0, "go on with so many pipelines")
	cmd.Flags().IntVar(&r.Groups, "groups", 0, "go on with the pipelines in so many groups, each on nodes of its own")
	cmd.Flags().BoolVar(&r.DryRun, "dry-run", false, "check the counts and the round, and change nothing")
	return cmd
}

func newRmCommand() *cobra.Command {
	var force bool
	cmd := daemonVerb(&cobra.Command{
		Use:   "rm JOB...",
		Short: "Remove ended jobs and what the daemon keeps of them",
		Long: `Remove ended jobs: their entries, logs and committed rounds. What was not exported is gone then. A job that has not
ended is refused; with --force it is cancelled first. The command returns once the jobs are gone. With -o json the answer is an
API status, or a list of them for several jobs.`,
		Example: `  avgpipectl rm my-job
  avgpipectl rm 3 4 5
  avgpipectl rm --force my-job`,
	}, func(c *call) error {
		return c.each(func(ref string) (s api.JobStatus, say string, err error) {
			if force {
				err = c.endFirst(ref)
			}
			if err == nil {
				s, err = c.client.Remove(c.ctx, ref)
			}
			return s, fmt.Sprintf("is removed; it was %s", s.State), err
		})
	})
	cmd.Flags().BoolVar(&force, "force", false, "cancel a job first that has not ended")
	return cmd
}

// each does something to every job that is named, one after the other, and says what became of each. One that fails does not keep it
// from the others.
func (c *call) each(do func(ref string) (s api.JobStatus, say string, err error)) error {
	statuses := []api.JobStatus{}
	var failed error
	for i, ref := range c.args {
		if slices.Contains(c.args[:i], ref) {
			continue
		}
		s, say, err := do(ref)
		if err != nil {
			failed = errors.Join(failed, err)
			continue
		}
		statuses = append(statuses, s)
		if c.format == formatText {
			failed = errors.Join(failed, c.printf("job %s (%s) %s\n", s.ID, s.Name, say))
		}
	}
	switch {
	case c.format == formatText:
		return failed
	case len(c.args) == 1 && failed == nil && !c.flags.Changed("all"):
		return printJSON(c.out, statuses[0])
	}
	return errors.Join(printJSON(c.out, statuses), failed)
}

// nameAll names the jobs of this user that have not ended, once the user has agreed that they are to end.
func (c *call) nameAll(agreed bool) error {
	jobs, err := c.client.Jobs(c.ctx)
	if err != nil {
		return err
	}
	uid, err := c.uid()
	if err != nil {
		return err
	}
	for _, s := range jobs {
		if s.OwnerUID == uid && !s.State.Ended() {
			c.args = append(c.args, s.ID)
		}
	}
	switch {
	case len(c.args) == 0 && c.format == formatText:
		return c.printf("no job of yours is there that has not ended\n")
	case len(c.args) == 0 || agreed:
		return nil
	}
	return c.agree()
}

// uid is the id of this user, as the daemon sees it.
func (c *call) uid() (uint32, error) {
	if c.remote != nil {
		return c.remote.uid()
	}
	return uint32(os.Getuid()), nil //nolint:gosec // an id of 32 bits
}

// agree asks whether the jobs are to end. Where there is nobody to ask, only --yes agrees.
func (c *call) agree() error {
	ids := strings.Join(c.args, ", ")
	f, ok := c.in.(*os.File)
	if _, shown := terminal(c.out); !ok || !shown || !term.IsTerminal(int(f.Fd())) {
		return usagef("cancel --all would end jobs %s; agree with --yes", ids)
	}
	if err := c.printf("end jobs %s? [y/N] ", ids); err != nil {
		return err
	}
	answer, err := unlessInterrupted(c.ctx, func() (string, error) { return bufio.NewReader(f).ReadString('\n') })
	if err != nil && !errors.Is(err, io.EOF) {
		return fmt.Errorf("read the answer: %w", err)
	}
	if answer = strings.ToLower(strings.TrimSpace(answer)); answer != "y" && answer != "yes" {
		return usagef("nothing was cancelled")
	}
	return nil
}

// endFirst cancels a job that has not ended, and waits for its end.
func (c *call) endFirst(ref string) error {
	s, err := c.client.Job(c.ctx, ref)
	if err != nil || s.State.Ended() {
		return err
	}
	if _, err := fmt.Fprintf(c.messages, "job %s (%s) is %s: cancelling it first\n", s.ID, s.Name, s.State); err != nil {
		return err
	}
	if _, err := c.client.Cancel(c.ctx, s.ID); err != nil {
		if now, again := c.client.Job(c.ctx, s.ID); again != nil || !now.State.Ended() { // it may have ended by itself
			return errors.Join(err, again)
		}
	}
	said, printed := s.Reason, error(nil)
	_, err = c.client.Watch(c.ctx, s.ID, func(s api.JobStatus) {
		if s.Reason != said && !s.State.Ended() { // what it waits for
			said = s.Reason
			_, printed = fmt.Fprintf(c.messages, "job %s: %s\n", s.ID, s.Reason)
		}
	})
	return errors.Join(err, printed)
}
