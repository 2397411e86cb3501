package main

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/avgpipe/avgpipe/internal/api"
)

// resumeOptions are the flags of `resume`.
type resumeOptions struct {
	daemonFlags
	api.ResumeRequest
}

func newResumeCommand() *cobra.Command {
	var o resumeOptions
	cmd := &cobra.Command{
		Use:   "resume JOB...",
		Short: "Restart failed, cancelled or waiting jobs from their last committed round",
		Long: `Restart jobs that failed or were cancelled, from their last committed round. A job that waits, for a full disk or
missing files, tries again at once; it does so by itself as well when what it waits for has passed.

With --from-round the job starts from an older round that is still kept, and newer ones are given up; with
--from-start all of them are. Shards of rounds that are given up stay in the job's quarantine for a while.`,
		Example: `  avgpipectl resume my-job
  avgpipectl resume my-job --from-round 300`,
		Args: arguments(cobra.MinimumNArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			if cmd.Flags().Changed("from-round") && o.FromRound == 0 {
				return &usageError{errors.New("resume: rounds count from 1; to start over use --from-start")}
			}
			return runResume(cmd.Context(), o, args, cmd.OutOrStdout())
		},
	}
	o.addFlags(cmd)
	cmd.Flags().Uint64Var(&o.FromRound, "from-round", 0, "start from this kept round and give newer ones up")
	cmd.Flags().BoolVar(&o.FromStart, "from-start", false, "start over and give every round up")
	cmd.MarkFlagsMutuallyExclusive("from-round", "from-start")
	return cmd
}

func runResume(ctx context.Context, o resumeOptions, refs []string, out io.Writer) error {
	client := o.client()
	defer client.Close()
	if len(refs) > 1 && o.FromRound > 0 {
		return &usageError{errors.New("resume: --from-round is of one job")}
	}
	var resumed []api.JobStatus
	var errs []error
	for _, ref := range refs {
		s, err := client.Resume(ctx, ref, o.ResumeRequest)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		resumed = append(resumed, s)
		if !o.json() {
			if _, err := fmt.Fprintf(out, "job %s (%s) is %s: %s\n", s.ID, s.Name, s.State, s.Reason); err != nil {
				return err
			}
		}
	}
	if o.json() {
		errs = append(errs, printJSON(out, resumed))
	}
	return errors.Join(errs...)
}
