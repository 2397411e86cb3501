// Package profile measures for package tuner, on the devices that the job will run on: it profiles layers, has the best candidates
// run for a few batches, and keeps what was found in a cache.
//
//	report, err := profile.Tune(ctx, profile.Config{Request: request, Progress: func(p api.TuneProgress) { ... }})
//
// Everything that is measured runs through package worker, as training does: the same executor, events, links and devices.
package profile

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/avgpipe/avgpipe/internal/api"
	"github.com/avgpipe/avgpipe/internal/obstacle"
	"github.com/avgpipe/avgpipe/internal/spec"
	"github.com/avgpipe/avgpipe/internal/words"
	"github.com/avgpipe/avgpipe/internal/worker"
	"github.com/avgpipe/avgpipe/internal/worker/control"
	"github.com/avgpipe/avgpipe/stage/device/cuda"
	"github.com/avgpipe/avgpipe/tuner"
)

// Config says what to tune and how.
type Config struct {
	Request control.TuneRequest
	// Progress, unless nil, hears of each step as it begins.
	Progress func(api.TuneProgress)
	// Runs is how many of the best candidates are run. Default 3. Below 0: none; the predicted best is taken.
	Runs int
	// Batches that each of them is watched for, at least, in two runs together. Default 16.
	Batches int
	// Watch is how long each of their runs is to last at least, as predicted, and half of it is that of a run of the profile. Shorter
	// runs would show what the host does for some milliseconds. Default 250 ms; below 0: batches alone count.
	Watch time.Duration
	// Repeats is how often each of them runs at most, where runs scatter; at least 2. Default 3.
	Repeats int
	// Graphics says where the libraries of GPUs are.
	Graphics cuda.Config
	// Outpaced is by how much, of 1, a candidate has to be slower than the fastest to run no more. Default 0.1, twice as much as runs of
	// one candidate may differ; 1: all run as often. A candidate that took far longer than predicted runs in any case.
	Outpaced float64
	// Limit bounds the whole tuning. Default 30 minutes.
	Limit time.Duration
}

func (c Config) withDefaults() Config {
	if c.Progress == nil {
		c.Progress = func(api.TuneProgress) {}
	}
	c.Runs, c.Batches, c.Repeats = cmp.Or(c.Runs, 3), cmp.Or(c.Batches, 16), cmp.Or(c.Repeats, 3)
	c.Watch, c.Limit = cmp.Or(c.Watch, 250*time.Millisecond), cmp.Or(c.Limit, 30*time.Minute)
	c.Outpaced = cmp.Or(c.Outpaced, 0.1)
	return c
}

// Validate reports the first setting that no tuning can start with.
func (c Config) Validate() error {
	r := c.Request
	switch {
	case r.NodeCores < 1 && len(r.Cores) == 0:
		return errors.New("tune: the request names neither cores nor their number")
	case r.Spec.Job.Train.Batch < 1 || r.Spec.Job.Averaging.Tau < 1:
		return fmt.Errorf("tune: batch %d, tau %d: the job was not validated", r.Spec.Job.Train.Batch, r.Spec.Job.Averaging.Tau)
	case !(c.Outpaced >= 0 && c.Outpaced <= 1):
		return fmt.Errorf("tune: Outpaced is %v: above 0 and at most 1, or 0 for the default", c.Outpaced)
	case c.Batches < 0 || c.Repeats < repeats || c.Limit < 0:
		return fmt.Errorf("tune: %d batches in %d repeats within %v: at least 1 batch and %d repeats, in a time above 0", c.Batches, c.Repeats, c.Limit, repeats)
	}
	return nil
}

// bench is where candidates run: worker.Trials, or what a test puts in its place.
type bench interface {
	Run(ctx context.Context, c worker.TrialConfig) (worker.TrialResult, error)
}

// Session is a job that is being tuned: its model, data and devices are open. Its methods run one after the other.
//
//	s, err := profile.Open(ctx, config)
//	defer s.Close()
//	space, err := s.Space()                   // what the job leaves open
//	notes, err := s.Profile(ctx, &space)      // measured
//	out, err := tuner.Search(space)           // predicted
//	ran, err := s.Confirm(ctx, out.Best(3))   // measured again
type Session struct {
	config  Config
	bench   bench
	trials  *worker.Trials
	subject *subject
	epoch   uint64  // samples of the training data
	guessed float64 // samples that the best candidate would train on in a second, by assumption
	judged  bool    // whether measuring is worth its time
	skipped string  // what was left out, since it is not
	progress
}

// Open opens what the request is about.
func Open(ctx context.Context, c Config) (*Session, error) {
	c = c.withDefaults()
	if err := c.Validate(); err != nil {
		return nil, err
	}
	graphics := c.Graphics
	for _, g := range c.Request.GPUs {
		graphics.Visible = append(graphics.Visible, g.UUID)
	}
	trials, err := worker.OpenTrials(ctx, &c.Request.Spec, graphics, c.Request.Data)
	if err != nil {
		return nil, fmt.Errorf("tune: %w", err)
	}
	s, err := newSubject(c.Request, trials)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("tune: %w", err), trials.Close())
	}
	return &Session{config: c, bench: trials, trials: trials, subject: s, epoch: trials.Epoch(), progress: progress{say: c.Progress}}, nil
}

// Close closes it.
func (s *Session) Close() error { return errors.Join(s.subject.close(), s.trials.Close()) }

// Tune chooses what the job leaves open, and says why. Nothing of it survives but the plan cache. See Permanent for its errors.
func Tune(ctx context.Context, c Config) (report *tuner.Report, err error) {
	c = c.withDefaults()
	began := time.Now()
	ctx, cancel := context.WithTimeoutCause(ctx, c.Limit, fmt.Errorf("tuning took longer than its limit of %v", c.Limit))
	defer cancel()
	c.Progress(api.TuneProgress{Text: "open model and data"}) // how many steps there will be is not known yet
	s, err := Open(ctx, c)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	if report, err = s.run(ctx); err != nil {
		return nil, fmt.Errorf("tune: %w", err)
	}
	report.Took = time.Since(began).Seconds()
	if !report.Cached && !c.Request.Estimate && report.Ruled == "" && s.skipped == "" { // else there is more to measure another time
		if err := WriteCache(c.Request.Cache, report); err != nil {
			report.Notes = append(report.Notes, fmt.Sprintf("the plan is not cached: %v", err))
		}
	}
	if s.subject.weighs != "" { // not in the cache, whose plans are of all who measured the same
		report.Notes = append(report.Notes, s.subject.weighs)
	}
	return report, nil
}

// run reads the cache, or profiles, searches and confirms.
func (s *Session) run(ctx context.Context) (*tuner.Report, error) {
	if r := &s.config.Request; r.Estimate && !r.Spec.Job.Open() && r.Spec.Layout != nil {
		return s.estimateDecided()
	}
	digest, err := s.subject.digest()
	if err != nil {
		return nil, err
	}
	var notes []string
	if !s.config.Request.Spec.Retune {
		switch report, err := ReadCache(s.config.Request.Cache, digest); {
		case err != nil:
			notes = append(notes, err.Error())
		case report != nil:
			report.Cached = true
			s.estimateCached(report)
			return report, nil
		}
	}
	space, err := s.Space()
	if err != nil {
		return nil, err
	}
	if s.config.Request.Estimate {
		return s.estimateOnly(&space)
	}
	more, err := s.Profile(ctx, &space)
	if dear, ok := errors.AsType[*tooCostlyError](err); ok {
		return &tuner.Report{Version: tuner.ReportVersion, Digest: digest, Ruled: dear.text}, nil
	}
	if err != nil {
		return nil, err
	}
	s.step(0, "search")
	out, err := s.search(space)
	if err != nil {
		return nil, err
	}
	ran, err := s.Confirm(ctx, out.Best(max(s.config.Runs, 0)))
	if err != nil {
		return nil, err
	}
	report := out.Decide(ran)
	if report.Chosen.Verdict == tuner.Fails {
		return nil, fmt.Errorf("no candidate could be run: %s with %s and %d micro-batches: %s",
			report.Chosen.Schedule, words.Count(report.Chosen.Pipelines, "pipeline"), report.Chosen.MicroBatches, report.Chosen.Reason)
	}
	if s.skipped != "" {
		more = append(more, s.skipped)
	}
	report.Digest, report.Notes = digest, slices.Concat(notes, more, report.Notes)
	report.Profile = profileOf(space, report.Chosen).Summary()
	report.Bound = bound
	if m := report.Chosen.Measured; m != nil {
		report.Bound = max(bound, 2*m.Spread)
	}
	return &report, nil
}

// bound is the relative distance from the prediction that an observed batch time is expected to keep: the bar of the
// predictions is 10%, and a host that does other things now and then makes some percent.
const bound = 0.15

// Space is what the job leaves open; its targets have no profile yet. A job that no memory holds, or with more stages than
// layers, is refused here, before anything is allocated: by a search with times that nobody measured.
func (s *Session) Space() (tuner.Space, error) {
	space, err := s.subject.Space()
	if err != nil {
		return space, &permanentError{err}
	}
	guessed := space
	guessed.Targets = slices.Clone(space.Targets)
	s.Guess(&guessed)
	out, err := s.search(guessed)
	if err == nil {
		s.guessed = out.Ranked[0].Predicted.SamplesPerSecond
	}
	s.left(s.steps(space))
	return space, err
}

// Guess gives every target of a space a profile that nobody measured: times in proportion to floating-point operations, and memory
// as it will be.
func (s *Session) Guess(space *tuner.Space) {
	for i := range space.Targets {
		space.Targets[i].Profile = s.subject.guess(space.Targets[i])
	}
}

// Profile measures every target of a space. It returns what whoever reads the report should know.
func (s *Session) Profile(ctx context.Context, space *tuner.Space) (notes []string, err error) {
	for i := range space.Targets {
		if space.Targets[i].Profile, err = s.profile(ctx, space, space.Targets[i], &notes); err != nil {
			return notes, err
		}
	}
	return notes, nil
}

// profileOf is the profile that a candidate was predicted from.
func profileOf(space tuner.Space, c tuner.Candidate) *tuner.Profile {
	for _, target := range space.Targets {
		if target.Devices == c.Devices && target.Threads == c.Threads {
			return target.Profile
		}
	}
	return space.Targets[0].Profile
}

// permanentError marks what another tuning would say again: that nothing fits, or nothing can run.
type permanentError struct{ err error }

func (e *permanentError) Error() string { return e.err.Error() }
func (e *permanentError) Unwrap() error { return e.err }

// Permanent reports whether an error of this package is about the job, so that another tuning would end with it as well. Others are of
// the host: a full disk, a run that was too large for what memory was free, time that ran out.
func Permanent(err error) bool {
	_, permanent := errors.AsType[*permanentError](err)
	return obstacle.Of(err) == nil && (permanent || worker.Permanent(err))
}

// search searches a space. That nothing of it can be chosen does not depend on when it is asked. Where nothing fits the memory, the error
// says which change of the job's file would.
func (s *Session) search(space tuner.Space) (*tuner.Outcome, error) {
	out, err := tuner.Search(space)
	if short, is := errors.AsType[*tuner.NoFitError](err); is {
		j := spec.With(&s.config.Request.Spec.Job, &short.Nearest)
		advice, _ := s.subject.WouldFit(&j)
		err = fmt.Errorf("%w; %s", err, advice)
	}
	if err != nil {
		return nil, &permanentError{err}
	}
	return out, nil
}
