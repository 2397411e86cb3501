package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/avgpipe/avgpipe/internal/api"
)

// cancelOptions are the flags of `cancel`.
type cancelOptions struct {
	daemonFlags
	all, yes bool
}

func newCancelCommand() *cobra.Command {
	var o cancelOptions
	cmd := &cobra.Command{
		Use:   "cancel JOB... | --all",
		Short: "End jobs",
		Long: `End jobs. Each commits the round that it is in first, so what it has learned can be exported; if that takes too long
it ends without. The command returns once the daemon knows, before the jobs have ended. With --all it ends every job of yours
that has not ended, after you have agreed; where nobody can be asked, --yes says so. With -o json the answer is an API status, or
a list of them for --all or several jobs.`,
		Example: `  avgpipectl cancel my-job
  avgpipectl cancel 30 31
  avgpipectl cancel --all --yes`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if o.all != (len(args) == 0) {
				return &usageError{fmt.Errorf("name the jobs, or end all of yours with --all; usage: %s", cmd.UseLine())}
			}
			return runCancel(cmd.Context(), o, args, cmd.InOrStdin(), cmd.OutOrStdout())
		},
	}
	o.addFlags(cmd)
	cmd.Flags().BoolVar(&o.all, "all", false, "all jobs of yours that have not ended")
	cmd.Flags().BoolVar(&o.yes, "yes", false, "with --all: do not ask")
	return cmd
}

func runCancel(ctx context.Context, o cancelOptions, refs []string, in io.Reader, out io.Writer) error {
	client := o.client()
	defer client.Close()
	if o.all {
		var err error
		if refs, err = myLiveJobs(ctx, client); err != nil {
			return err
		}
		if err := o.agree(refs, in, out); err != nil {
			return err
		}
	}
	statuses := []api.JobStatus{}
	var failed error
	for _, ref := range refs {
		s, err := client.Cancel(ctx, ref)
		if refused, ok := errors.AsType[*api.Error](err); ok && o.all && refused.Status == http.StatusConflict {
			continue // it has ended since
		}
		if err != nil {
			failed = errors.Join(failed, err)
			continue
		}
		statuses = append(statuses, s)
		if !o.json() {
			fmt.Fprintf(out, "job %s (%s) is being cancelled\n", s.ID, s.Name) //nolint:errcheck // the jobs are cancelled whoever reads it
		}
	}
	switch {
	case o.json() && len(refs) == 1 && !o.all && failed == nil:
		return printJSON(out, statuses[0])
	case o.json():
		return errors.Join(printJSON(out, statuses), failed)
	}
	return failed
}

// myLiveJobs lists the jobs of this user that have not ended.
func myLiveJobs(ctx context.Context, client *api.Client) ([]string, error) {
	jobs, err := client.Jobs(ctx)
	if err != nil {
		return nil, err
	}
	var ids []string
	for _, s := range jobs {
		if int(s.OwnerUID) == os.Getuid() && !s.State.Ended() {
			ids = append(ids, s.ID)
		}
	}
	return ids, nil
}

// agree asks whether the jobs are to end. Where there is nobody to ask, only --yes agrees.
func (o *cancelOptions) agree(ids []string, in io.Reader, out io.Writer) error {
	if len(ids) == 0 || o.yes {
		return nil
	}
	f, ok := in.(*os.File)
	if _, shown := terminal(out); !ok || !shown || !term.IsTerminal(int(f.Fd())) {
		return &usageError{fmt.Errorf("cancel --all would end jobs %s; agree with --yes", strings.Join(ids, ", "))}
	}
	if _, err := fmt.Fprintf(out, "end jobs %s? [y/N] ", strings.Join(ids, ", ")); err != nil {
		return err
	}
	answer, err := bufio.NewReader(f).ReadString('\n')
	if err != nil && !errors.Is(err, io.EOF) {
		return fmt.Errorf("read the answer: %w", err)
	}
	if answer = strings.ToLower(strings.TrimSpace(answer)); answer != "y" && answer != "yes" {
		return &usageError{errors.New("nothing was cancelled")}
	}
	return nil
}
