package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strconv"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/avgpipe/avgpipe/internal/api"
)

// lookEvery is how often a drill looks at its job, and so how fine its pauses are.
const lookEvery = 20 * time.Millisecond

// commandBound is how long a command of a plan may take. It breaks something, or mends it, and does not wait for what comes of that.
const commandBound = 30 * time.Second

func newChaosCommand() *cobra.Command {
	var o struct {
		submitOptions
		plan     string
		baseline bool
	}
	cmd := daemonVerb(&cobra.Command{
		Use:   "chaos FILE --plan PLAN",
		Short: "Train a job while commands break the cluster, and measure how it recovers",
		Long: `Submit a job file and, while the job trains, run the commands of a plan that break the cluster it runs on: kill a worker, freeze a
daemon, cut a link. Report how long training paused after each, how much was computed again, and what it did to the loss.
Use it on a cluster that you may break. The commands run here, by sh -c, with your rights; the plan is YAML:

  version: 1
  steps:
  - after round 40 run ssh b pkill -KILL -f worker
  - after round 80 run ssh b ip link set eth0 down for 5s then ssh b ip link set eth0 up

Rounds are those that the job has reached. What follows "then" is run after so long, and also when the drill is interrupted.
No command may take longer than 30 s.
With --baseline the job is trained undisturbed first, to compare the loss. The job's eval loss is that of its end.

The exit code is 1 when the job does not end done, or a command fails.`,
		Example: `  avgpipectl chaos job.yaml --plan drill.yaml
  avgpipectl chaos job.yaml --plan drill.yaml --baseline -o json | jq '.events[].pause_s'`,
	}, func(c *call) error {
		text, err := c.read(o.plan, "a plan of a drill", int64(drillSchema.MaxBytes))
		if err != nil {
			return usagef("read the plan: %w", err)
		}
		plan, err := parseDrill(o.plan, text)
		if err != nil {
			return err
		}
		return c.drill(plan, o.submitOptions, o.baseline)
	})
	setVar(cmd, &o.set, "train.steps=500")
	cmd.Flags().StringVar(&o.plan, "plan", "", "`FILE` with what is done to the cluster, and when")
	cmd.Flags().BoolVar(&o.baseline, "baseline", false, "train the job undisturbed first, to compare the loss")
	_ = cmd.MarkFlagRequired("plan") // the flag is there
	return cmd
}

// drill runs the job, perhaps twice, and shows the report.
func (c *call) drill(plan *drillFile, o submitOptions, baseline bool) error {
	request, _, err := c.prepare(o)
	if err != nil {
		return err
	}
	r := drillReport{}
	if baseline {
		undisturbed, err := c.disturb(request, &drillFile{})
		if err != nil {
			return fmt.Errorf("the undisturbed run: %w", err)
		}
		r.Baseline = undisturbed.Loss
	}
	disturbed, err := c.disturb(request, plan)
	if err != nil {
		return err
	}
	disturbed.Baseline = r.Baseline
	if err := c.show(disturbed, func(p *page) { printDrill(p, disturbed) }); err != nil {
		return err
	}
	for _, e := range disturbed.Events {
		if e.Failed != "" {
			err = errors.Join(err, fmt.Errorf("%s: %s", e.Step, e.Failed))
		}
	}
	if disturbed.State != api.Done || len(disturbed.Events) < len(plan.Steps) {
		err = errors.Join(err, fmt.Errorf("job %s is %s after %d of %d steps of the plan", disturbed.Job, disturbed.State, len(disturbed.Events), len(plan.Steps)))
	}
	return err
}

// observer looks at a job all the time.
type observer struct {
	mu   sync.Mutex
	seen []sight
	last api.JobStatus
}

// look asks once. A daemon that does not answer is seen as a job that makes no progress.
func (s *observer) look(ctx context.Context, client *api.Client, id string, began time.Time) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	status, err := client.Job(ctx, id)
	if err != nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.last = status
	s.seen = append(s.seen, sight{time.Since(began), status.State, status.Step, status.Round, status.CommittedRound, status.Generation})
}

// now is what was seen last.
func (s *observer) now() api.JobStatus {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.last
}

// disturb submits a job, carries a plan out and returns what that did to the job, which has ended.
func (c *call) disturb(request api.SubmitRequest, plan *drillFile) (*drillReport, error) {
	answer, err := c.client.Submit(c.ctx, request)
	if err != nil {
		return nil, err
	}
	began, seen := time.Now(), &observer{}
	looking, stop := context.WithCancel(c.ctx)
	defer stop()
	var eyes sync.WaitGroup
	defer eyes.Wait()
	defer stop()
	eyes.Go(func() {
		for looking.Err() == nil {
			seen.look(looking, c.client, answer.ID, began)
			wait(looking, lookEvery)
		}
	})
	var events []drillEvent
	for _, step := range plan.Steps {
		if !c.until(func() bool { s := seen.now(); return s.Round >= step.round || s.State.Ended() }) || seen.now().State.Ended() {
			break
		}
		e := drillEvent{Step: step.text, AtS: time.Since(began).Seconds(), Round: seen.now().Round}
		fmt.Fprintf(c.messages, "%6.1f s  round %d: %s\n", e.AtS, e.Round, step.run) //nolint:errcheck // for show
		if err := c.carryOut(step); err != nil {
			e.Failed = err.Error()
		}
		events = append(events, e)
	}
	if !c.until(func() bool { return seen.now().State.Ended() }) {
		return nil, context.Cause(c.ctx)
	}
	stop()
	eyes.Wait()
	judge(events, seen.seen)
	return &drillReport{
		Job: answer.ID, State: seen.last.State, Events: events, Samples: seen.last.SamplesSeen, Wanted: seen.last.BudgetSamples, Loss: seen.last.EvalLoss,
	}, nil
}

// carryOut runs the command of a step, and the one that takes the fault away.
func (c *call) carryOut(step drillStep) error {
	err := shell(c.ctx, step.run)
	if step.undo == "" {
		return err
	}
	wait(c.ctx, step.lasts)
	return errors.Join(err, shell(context.WithoutCancel(c.ctx), step.undo))
}

// until waits until something holds; false: the verb was interrupted.
func (c *call) until(holds func() bool) bool {
	for !holds() {
		if wait(c.ctx, lookEvery); c.ctx.Err() != nil {
			return false
		}
	}
	return true
}

func wait(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

func shell(ctx context.Context, command string) error {
	ctx, cancel := context.WithTimeoutCause(ctx, commandBound, fmt.Errorf("it did not end within %v", commandBound))
	defer cancel()
	process := exec.CommandContext(ctx, "sh", "-c", command) //nolint:gosec // of the user's own plan
	process.WaitDelay = time.Second                          // what it has started may hold its output
	if said, err := process.CombinedOutput(); err != nil {
		err = cmp.Or(context.Cause(ctx), err)
		return fmt.Errorf("%s: %w: %s", command, err, said)
	}
	return nil
}

// printDrill shows a report to people.
func printDrill(p *page, r *drillReport) {
	p.printf("job %s is %s; %d of %d samples; eval loss %s", r.Job, r.State, r.Samples, r.Wanted, number(r.Loss, "%.4f"))
	if r.Baseline != nil {
		p.printf(", undisturbed %s", number(r.Baseline, "%.4f"))
	}
	p.printf("\n")
	t := &table{}
	t.add("AT", "ROUND", "PAUSE", "USUALLY", "REDONE ROUNDS", "GENERATIONS", "STEP")
	for _, e := range r.Events {
		t.add(fmt.Sprintf("%.1f s", e.AtS), strconv.FormatUint(e.Round, 10), number(e.PauseS, "%.2f s"), number(e.UsualS, "%.2f s"),
			strconv.FormatUint(e.Redone, 10), strconv.FormatUint(e.Workers, 10), e.Step)
	}
	p.below(t)
}
