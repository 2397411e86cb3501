package tune

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"time"

	"github.com/avgpipe/avgpipe/internal/worker"
	"github.com/avgpipe/avgpipe/internal/worker/control"
	"github.com/avgpipe/avgpipe/tuner"
)

// Config says what to tune and how.
type Config struct {
	Request control.TuneRequest
	// Progress, unless nil, hears of each step as it begins.
	Progress func(control.TuneProgress)
	// Runs is how many of the best candidates are run. Default 3. Below 0: none; the predicted best is taken.
	Runs int
	// Batches that each of them is watched for, in two turns. Default 6.
	Batches int
	// Limit bounds the whole tuning. Default 30 minutes.
	Limit time.Duration
}

func (c Config) withDefaults() Config {
	if c.Progress == nil {
		c.Progress = func(control.TuneProgress) {}
	}
	if c.Runs == 0 {
		c.Runs = 3
	}
	if c.Batches == 0 {
		c.Batches = 6
	}
	if c.Limit == 0 {
		c.Limit = 30 * time.Minute
	}
	return c
}

// Validate reports the first setting that no tuning can start with.
func (c Config) Validate() error {
	r := c.Request
	switch {
	case r.Version != control.TuneRequestVersion:
		return fmt.Errorf("tune: request of version %d, this program reads %d: the daemon is of another version", r.Version, control.TuneRequestVersion)
	case r.NodeCores < 1 && len(r.Cores) == 0:
		return errors.New("tune: the request names neither cores nor their number")
	case r.Job.Train.Batch < 1 || r.Job.Averaging.Tau < 1:
		return fmt.Errorf("tune: batch %d, tau %d: the job was not validated", r.Job.Train.Batch, r.Job.Averaging.Tau)
	case c.Batches < 0 || c.Limit < 0:
		return fmt.Errorf("tune: %d batches within %v: at least 1, in a time above 0", c.Batches, c.Limit)
	}
	return nil
}

// bench is where candidates run: worker.Trials, or what a test puts in its place.
type bench interface {
	Run(ctx context.Context, c worker.TrialConfig) (worker.TrialResult, error)
}

// tuning is one run of Tune.
type tuning struct {
	Config
	bench   bench
	subject *subject
	done    int // steps, for Progress
	total   int
}

// Tune chooses what the job leaves open, and says why. Nothing of it survives but the plan cache. An error of type
// *tuner.NoFitError or *tuner.StagesError is about the job; others are of the host.
func Tune(ctx context.Context, c Config) (report *tuner.Report, err error) {
	c = c.withDefaults()
	if err := c.Validate(); err != nil {
		return nil, err
	}
	began := time.Now()
	ctx, cancel := context.WithTimeoutCause(ctx, c.Limit, fmt.Errorf("tuning took longer than its limit of %v", c.Limit))
	defer cancel()
	c.Progress(control.TuneProgress{Total: 1, Text: "open model and data"})
	trials, err := worker.OpenTrials(ctx, &c.Request.Job)
	if err != nil {
		return nil, fmt.Errorf("tune: %w", err)
	}
	defer func() { err = errors.Join(err, trials.Close()) }()
	s, err := newSubject(c.Request, trials)
	if err != nil {
		return nil, fmt.Errorf("tune: %w", err)
	}
	defer func() { err = errors.Join(err, s.close()) }()
	t := &tuning{Config: c, bench: trials, subject: s}
	if report, err = t.run(ctx); err != nil {
		return nil, fmt.Errorf("tune: %w", err)
	}
	report.Took = time.Since(began).Seconds()
	if !report.Cached {
		if err := writeCache(c.Request.Cache, report); err != nil {
			report.Notes = append(report.Notes, fmt.Sprintf("the plan is not cached: %v", err))
		}
	}
	return report, nil
}

// run reads the cache, or profiles, searches and confirms.
func (t *tuning) run(ctx context.Context) (*tuner.Report, error) {
	digest, err := t.subject.digest()
	if err != nil {
		return nil, err
	}
	var notes []string
	if !t.Request.Retune {
		switch report, err := readCache(t.Request.Cache, digest); {
		case err != nil:
			notes = append(notes, err.Error())
		case report != nil:
			report.Cached = true
			return report, nil
		}
	}
	space, err := t.subject.space()
	if err != nil {
		return nil, err
	}
	if err := t.fitsAtAll(space); err != nil {
		return nil, err
	}
	t.total = 1 + len(space.Targets)*len(t.subject.sizes(space)) + 2*max(t.Runs, 0)
	for i := range space.Targets {
		if space.Targets[i].Profile, err = t.profile(ctx, &space, space.Targets[i], &notes); err != nil {
			return nil, err
		}
	}
	t.step("search")
	out, err := tuner.Search(space)
	if err != nil {
		return nil, err
	}
	ran, err := t.confirm(ctx, out.Best(max(t.Runs, 0)))
	if err != nil {
		return nil, err
	}
	report := out.Decide(ran)
	report.Digest, report.Notes = digest, append(notes, report.Notes...)
	report.Profile = t.profileOf(space, report.Chosen).Summary()
	report.Bound = bound
	if m := report.Chosen.Measured; m != nil {
		report.Bound = max(bound, 2*m.Spread)
	}
	return &report, nil
}

// bound is the relative distance from the prediction that an observed batch time is expected to keep: the bar of the
// predictions is 10%, and a host that does other things now and then makes some percent.
const bound = 0.15

// fitsAtAll searches with times that nobody measured, so that a job that no memory holds is refused before anything is allocated.
func (t *tuning) fitsAtAll(space tuner.Space) error {
	for i := range space.Targets {
		space.Targets[i].Profile = t.subject.guess(space.Targets[i])
	}
	_, err := tuner.Search(space)
	return err
}

// profileOf is the profile that a candidate was predicted from.
func (t *tuning) profileOf(space tuner.Space, c tuner.Candidate) *tuner.Profile {
	for _, target := range space.Targets {
		if target.Stages == c.Stages && target.Threads == c.Threads {
			return target.Profile
		}
	}
	return space.Targets[0].Profile
}

// step says what begins.
func (t *tuning) step(format string, args ...any) {
	t.Progress(control.TuneProgress{Done: t.done, Total: t.total, Text: fmt.Sprintf(format, args...)})
	t.done++
}

// processors is the kind of processor that this program runs on, for the digest.
func processors() string { return runtime.GOOS + "/" + runtime.GOARCH }
