package main

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/avgpipe/avgpipe/internal/api"
	"github.com/avgpipe/avgpipe/internal/data"
	"github.com/avgpipe/avgpipe/internal/jobfile"
	"github.com/avgpipe/avgpipe/internal/modeldir"
	"github.com/avgpipe/avgpipe/job"
)

// submitOptions are the flags of `submit`.
type submitOptions struct {
	set                          []string
	watch, force, retune, dryRun bool
	from                         string // in place of a file
	key                          string
}

func newSubmitCommand() *cobra.Command {
	var o submitOptions
	cmd := daemonVerb(&cobra.Command{
		Use:   "submit FILE | --from s3://BUCKET/PREFIX/JOB",
		Short: "Submit a job file",
		Long: `Submit a job file (docs/job-file.md). It is checked here and by the daemon before anything starts; what is wrong
with it is printed with its line, what is allowed, and the nearest valid key or value. Relative paths in it start at
its directory, and ${NAME} is taken from your environment. What it names is read with your rights, and must be readable for
the daemon's user as well. FILE - is the standard input; relative paths in it start at the current directory. A job file has
at most 64 KiB.

What the file leaves open (stages, pipelines, micro_batches, or schedule: auto) is chosen by measuring before the job
starts, or taken from an earlier choice for the same job on the same devices; avgpipectl explain says why. Measuring
takes no more than tuning_share of the job's time; where it would, the rules of "tuning: rules" decide.

With --from a job goes on from the newest round that it, here or in another cluster, has copied to a bucket (center.store), under
a number of its own. Status of that job says where this is.

With --dry-run the job is checked and laid out, and nothing is started or stored: the plan, the memory of each stage, the
samples and the time that training is expected to take with what that rests on, and what would be measured at what
cost. The exit code says whether it would be admitted.

A submission whose answer is lost, as where the node that leads is, is sent again for some seconds, and is one job. --key gives it a
key of your own, in place of one made up: submitting with a key that you have given before submits nothing and names the job
of that time, as long as that is listed.

With --watch the job is followed until it ends. The loss before and after is printed, and when the file has
output.dir the trained model is written there. Without --watch the daemon writes it there when the job is done, if you and
the daemon's user may both write to that directory; if not, the answer says why and what to run. With -o json, the answer
is one line and each status another.`,
		Example: `  avgpipectl submit job.yaml
  avgpipectl submit job.yaml --dry-run
  sed 's/steps: .*/steps: 50/' job.yaml | avgpipectl submit -
  avgpipectl submit --from s3://models/team/my-job-20261123T211812Z-7
  avgpipectl submit job.yaml --watch --set train.steps=50 --set optimizer.lr=1e-3`,
	}, func(c *call) error { return c.submit(o) })
	setVar(cmd, &o.set, "train.steps=50")
	f := cmd.Flags()
	f.StringVar(&o.from, "from", "", "go on from a job in a bucket, s3://BUCKET/PREFIX/JOB")
	f.StringVar(&o.key, "key", "", "what you call this submission: a second one with the same key submits nothing")
	f.BoolVar(&o.retune, "retune", false, "measure what the file leaves open again, whatever is cached")
	f.BoolVar(&o.dryRun, "dry-run", false, "say what the job would be, and start and store nothing")
	f.BoolVarP(&o.watch, "watch", "w", false, "follow the job until it ends")
	f.BoolVar(&o.force, "force", false, "replace an earlier export in output.dir")
	return cmd
}

func (c *call) submit(o submitOptions) error {
	if o.dryRun && o.watch {
		return usagef("--dry-run starts nothing that --watch could follow; give one of them")
	}
	if (o.from == "") == (len(c.args) == 0) {
		return usagef("name a job file, or a job in a bucket with --from; usage: avgpipectl submit FILE | --from s3://BUCKET/PREFIX/JOB")
	}
	if o.from != "" {
		if err := c.exclusive("from", "dry-run", "set", "retune", "force", "key"); err != nil {
			return err
		}
		answer, err := c.client.Submit(c.ctx, api.SubmitRequest{From: o.from})
		if err != nil {
			return err
		}
		if err := c.printSubmitted(answer); err != nil || !o.watch {
			return err
		}
		_, err = c.watch(answer.ID)
		return err
	}
	request, target, err := c.prepare(o)
	if err != nil {
		return err
	}
	if o.dryRun {
		d, err := c.client.DryRun(c.ctx, request)
		if err != nil {
			return err
		}
		return c.show(d, func(p *page) { printDryRun(p, &d) })
	}
	request.Key = cmp.Or(o.key, rand.Text())
	answer, err := c.submitOnce(request)
	if err != nil {
		return err
	}
	if err := c.printSubmitted(answer); err != nil || !o.watch {
		return err
	}
	last, err := c.watch(answer.ID)
	if err != nil {
		return err
	}
	if target != "" {
		if err := c.fetchModel(last, target, o.force); err != nil {
			return err
		}
	}
	if c.format == formatJSON {
		return nil
	}
	text := fmt.Sprintf("job %s done: eval loss %s before, %s after", answer.ID, number(last.InitialLoss, "%.4f"), number(last.EvalLoss, "%.4f"))
	if words := metrics(last.Metrics); words != "" {
		text += " (" + words + ")"
	}
	if target != "" {
		text += "; the model is in " + target
	}
	return c.printf("%s\n", text)
}

// submitFor is how long a submission is sent again, and submitAgain how long after an answer was lost: another node leads after some seconds.
const (
	submitFor   = 20 * time.Second
	submitAgain = 500 * time.Millisecond
)

// submitOnce submits, and again with the same key while nobody knows whether that was done.
func (c *call) submitOnce(r api.SubmitRequest) (api.SubmitResponse, error) {
	var lost time.Time // when an answer was first
	for {
		answer, err := c.client.Submit(c.ctx, r)
		refused, ok := errors.AsType[*api.Error](err)
		if err == nil || c.ctx.Err() != nil || ok && refused.Status != http.StatusServiceUnavailable {
			return answer, err
		}
		if lost.IsZero() {
			lost = time.Now()
			fmt.Fprintf(c.messages, "%v\nasking again with the same key, %s\n", err, r.Key) //nolint:errcheck // for show
		}
		if time.Since(lost) > submitFor {
			return answer, fmt.Errorf("%w\nnobody knows whether the job was submitted; once the daemon answers, `avgpipectl submit --key %s` with the same file, --set and directory finds it, or submits it", err, r.Key)
		}
		select {
		case <-c.ctx.Done():
			return answer, context.Cause(c.ctx)
		case <-time.After(submitAgain):
		}
	}
}

func (c *call) printSubmitted(answer api.SubmitResponse) error {
	if c.format == formatJSON {
		return printLine(c.out, answer)
	}
	for _, w := range answer.Warnings {
		fmt.Fprintln(c.messages, "warning:", w) //nolint:errcheck // the daemon keeps them
	}
	text := fmt.Sprintf("job %s submitted\n", answer.ID)
	if words := exportPlan(answer.ID, api.Queued, answer.Export); words != "" {
		text += words + "\n"
	}
	return c.printf("%s", text)
}

// prepare reads the job file and checks what can be checked without a daemon. The target is where the model is to go, if it is
// to go anywhere.
func (c *call) prepare(o submitOptions) (r api.SubmitRequest, target string, err error) {
	file := c.args[0]
	source, err := c.read(file, "a job file", job.CapBytes)
	if err != nil {
		return r, "", usagef("read the job file: %w", err)
	}
	if file == standardInput {
		file = "stdin" // in messages, and a name of the job
	}
	base, err := filepath.Abs(filepath.Dir(file))
	if err != nil {
		return r, "", fmt.Errorf("find the directory of %s: %w", file, err)
	}
	r = api.SubmitRequest{File: file, Source: string(source), Set: o.set, Base: base, Retune: o.retune, Force: o.force, Env: map[string]string{}}
	lookup := func(name string) (string, bool) { // what the file asks for goes with it
		value, ok := os.LookupEnv(name)
		if ok {
			r.Env[name] = value
		}
		return value, ok
	}
	j, _, at := jobfile.Parse(file, source, o.set, lookup)
	if j == nil {
		return r, "", at.Err()
	}
	j.Absolute(base)
	if _, err := c.client.Version(c.ctx); err != nil { // one that answers says all that is wrong
		if at.Err() != nil {
			err = nil
		}
		_, _, missing := data.List(c.ctx, data.Config{Files: slices.DeleteFunc(slices.Clone(j.Data.Files), job.IsURL)})
		if wrong, ok := errors.AsType[*data.Error](missing); ok {
			at.Refuse(wrong.Key, wrong.Nearest, "%s: %v", wrong.Key, wrong.Err)
		}
		return r, "", errors.Join(at.Err(), err)
	}
	if j.Output.Dir == "" || !o.watch { // the daemon says what is to become of it
		return r, j.Output.Dir, nil
	}
	r.ClientExports = true
	err = modeldir.Check(j.Output.Dir, o.force)
	if refusal, ok := errors.AsType[*modeldir.Refusal](err); ok {
		at.Refuse("output.dir", "", "output.dir: %v", refusal)
		return r, "", at.Err()
	}
	if err != nil {
		return r, "", fmt.Errorf("output.dir: %w", err)
	}
	return r, j.Output.Dir, nil
}
