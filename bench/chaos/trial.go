package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/avgpipe/avgpipe/bench/internal/hosts"
	"github.com/avgpipe/avgpipe/bench/internal/rig"
	"github.com/avgpipe/avgpipe/internal/api"
)

// plan is what a trial does. It follows from the seed and the table alone.
type plan struct {
	seed   uint64
	kinds  []*kind
	events []event // in the order in which they begin
}

// event is one fault of a trial.
type event struct {
	fault *fault
	round uint64        // the first job has committed it when the fault is applied
	delay time.Duration // after that
	lasts time.Duration
	next  bool // the next fault is applied while this one is in force
}

// setting is what trials draw from.
type setting struct {
	faults []fault
	kinds  []kind // the plain ones first
}

// draw draws a trial.
func draw(seed uint64, from setting, mounts bool) plan {
	table := from.faults
	random := rand.New(rand.NewPCG(seed, 0))
	p := plan{seed: seed}
	rounds := make([]int, 1+random.IntN(3))
	for i := range rounds {
		rounds[i] = random.IntN(from.kinds[0].rounds - 5)
	}
	slices.Sort(rounds)
	tuned, draw := false, int(seed*7%uint64(len(table))) // seeds in a row go through the families, and through all of the table
	for _, round := range rounds {
		f := &table[draw]
		draw = random.IntN(len(table))
		e := event{fault: f, round: uint64(round), delay: time.Duration(random.Int64N(int64(100 * time.Millisecond))), next: random.IntN(2) == 0}
		if f.lasts > 0 {
			e.lasts = f.lasts/10 + time.Duration(random.Int64N(int64(f.lasts)*9/10))
		}
		if f.tuned { // the job is tuned before it trains
			e.round, tuned = 0, true
		}
		if !f.root() || mounts {
			p.events = append(p.events, e)
		}
	}
	if tuned {
		p.kinds = []*kind{&from.kinds[slices.IndexFunc(from.kinds, func(k kind) bool { return k.tuned })]}
		slices.SortStableFunc(p.events, func(a, b event) int { return int(a.round) - int(b.round) })
		return p
	}
	if i := slices.IndexFunc(p.events, func(e event) bool { return e.fault.stays }); i >= 0 {
		p.lose(i, from.kinds, random)
		return p
	}
	plain := slices.DeleteFunc(slices.Clone(from.kinds), func(k kind) bool { return k.tuned })
	for range []int{1, 1, 1, 1, 2, 2, 3}[random.IntN(7)] {
		p.kinds = append(p.kinds, &plain[random.IntN(len(plain))])
	}
	return p
}

// lose makes the fault at i, which a host does not come back from before the jobs are done, the last one, while the job, which needs all hosts, has half of its rounds to do.
func (p *plan) lose(i int, kinds []kind, random *rand.Rand) {
	last := p.events[i]
	p.events = append(slices.DeleteFunc(p.events, func(e event) bool { return e.fault.stays }), last)
	for i := range p.events {
		p.events[i].round /= 2
	}
	wide := slices.DeleteFunc(slices.Clone(kinds), func(k kind) bool { return !k.wide })
	p.kinds = []*kind{&wide[random.IntN(len(wide))]}
}

func (p *plan) String() string {
	var jobs, events []string
	for _, k := range p.kinds {
		jobs = append(jobs, k.name)
	}
	for _, e := range p.events {
		events = append(events, e.fault.name)
	}
	return strings.Join(jobs, " ") + ": " + strings.Join(events, ", ")
}

// faults are the names of a trial's.
func (p *plan) faults() map[string]bool {
	names := map[string]bool{}
	for _, e := range p.events {
		names[e.fault.name] = true
	}
	return names
}

// trial runs a plan on a testbed of its own, and returns its jobs. references are those of runs that nothing disturbs; the first of a kind is added to them.
func trial(ctx context.Context, o options, p plan, references map[string]*outcome) (jobs []*trialJob, err error) {
	w, err := newTestbed(ctx, o, p.seed)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, w.remove(ctx)) }()
	w.say("%v", &p)
	if err = w.prepare(ctx, p.events); err == nil {
		err = w.start(ctx)
	}
	if err == nil {
		err = w.ready(ctx)
	}
	if err == nil {
		err = w.applyFaults(ctx, &p)
	}
	if slices.ContainsFunc(p.events, func(e event) bool { return e.fault.family == "missing" }) {
		w.leftovers = nil // they may have been away at the start that would have removed them
	}
	return w.jobs, w.finish(ctx, o.keep, references, err)
}

// prepare makes what faults need from the start.
func (w *testbed) prepare(ctx context.Context, events []event) (err error) {
	if slices.ContainsFunc(events, func(e event) bool { return e.fault.stays }) {
		w.scarce = true
		for _, h := range w.hosts {
			if err := h.configure("info"); err != nil {
				return err
			}
		}
	}
	if slices.ContainsFunc(events, func(e event) bool { return e.fault.proxied }) {
		if w.proxies, err = w.network.Proxy(ctx); err != nil {
			return err
		}
	}
	if !slices.ContainsFunc(events, func(e event) bool { return e.fault.slows }) {
		return nil
	}
	for _, h := range w.hosts {
		if h.disk, err = hosts.NewDisk(filepath.Join(h.dir, "disk")); err != nil {
			return err
		}
	}
	return nil
}

// applyFaults submits the jobs and applies the faults.
func (w *testbed) applyFaults(ctx context.Context, p *plan) error {
	for _, k := range p.kinds {
		id, err := w.submit(ctx, k)
		if err != nil {
			return err
		}
		w.jobs = append(w.jobs, &trialJob{kind: k, id: id})
	}
	watching, end := context.WithCancel(ctx)
	var watchers sync.WaitGroup
	defer watchers.Wait()
	defer end()
	for _, j := range w.jobs {
		watchers.Go(func() { w.watch(watching, j) })
	}
	for _, e := range p.events {
		w.moment(ctx, e)
		if err := w.apply(ctx, e); err != nil {
			return errors.Join(err, w.endAll(ctx))
		}
	}
	if n := len(w.inForce); n == 0 || !w.inForce[n-1].stays {
		if err := w.endAll(ctx); err != nil {
			return err
		}
	}
	err := w.done(ctx)
	return errors.Join(err, w.endAll(ctx))
}

// apply applies a fault. It stays in force when the next one is to meet it.
func (w *testbed) apply(ctx context.Context, e event) error {
	if e.fault.alone || e.fault.asks && slices.ContainsFunc(w.inForce, func(f force) bool { return f.mute }) {
		if err := w.endAll(ctx); err != nil {
			return err
		}
	}
	h := pick(w, w.hosts)
	w.say("%s%s", e.fault.name, h.of())
	undo, err := e.fault.apply(ctx, h)
	if n := len(w.inForce); undo == nil && n > 0 && forbidden(err) {
		w.say("%s cannot be applied while %s is in force: %v", e.fault.name, w.inForce[n-1].name, err)
		err = nil
	}
	if undo != nil {
		w.inForce = append(w.inForce, force{e.fault, time.Now().Add(e.lasts), undo})
	}
	if err != nil {
		return fmt.Errorf("%s: %w", e.fault.name, err)
	}
	if e.next || e.fault.stays {
		return nil
	}
	return w.endAll(ctx)
}

// forbidden reports whether an error of applying a fault may come of others in force: a disk that is full or read-only, or something that
// is away or mounted over.
func forbidden(err error) bool {
	var of syscall.Errno
	return errors.As(err, &of) && slices.Contains([]syscall.Errno{syscall.EROFS, syscall.ENOSPC, syscall.ENOENT, syscall.EXDEV}, of)
}

// force is a fault in force.
type force struct {
	*fault
	till time.Time
	undo func() error
}

// endAll waits until every fault in force has lasted long enough, and undoes it, the last one first.
func (w *testbed) endAll(ctx context.Context) (err error) {
	for _, f := range slices.Backward(w.inForce) {
		rig.Pause(ctx, time.Until(f.till))
		w.say("end of %s", f.name)
		if undone := f.undo(); undone != nil {
			err = errors.Join(err, fmt.Errorf("undo %s: %w", f.name, undone))
		}
	}
	w.inForce = nil
	return err
}

// moment waits for the moment of an event, or until the job cannot reach it for now.
func (w *testbed) moment(ctx context.Context, e event) {
	_ = rig.Poll(ctx, 5*time.Second, "the moment", func() bool { // it is no failure: another fault may be in force
		s := w.jobs[0].status()
		return s.CommittedRound >= e.round || s.State.Ended() || e.fault.tuned && s.State != api.Queued
	})
	rig.Pause(ctx, e.delay)
}

// done waits for the end of all jobs. How long that takes says more of what else the machine does than of faults, so what is bounded first is how long none of
// them gets on: it commits a round, or ends.
func (w *testbed) done(ctx context.Context) error {
	var seen []uint64
	since := time.Now()
	over := func() bool {
		now, running := make([]uint64, len(w.jobs)), 0
		for i, j := range w.jobs {
			s := j.status()
			now[i] = s.CommittedRound
			if !s.State.Ended() {
				running++
			}
		}
		if now = append(now, uint64(running)); !slices.Equal(now, seen) { //nolint:gosec // a count
			seen, since = now, time.Now()
		}
		return running == 0
	}
	err := rig.Poll(ctx, jobsBound, "the end of the jobs", func() bool { return over() || time.Since(since) > jobBound })
	if err == nil && !over() {
		err = fmt.Errorf("no job commits a round or ends for %v", jobBound)
	}
	for _, j := range w.jobs {
		if s := j.status(); err != nil && !s.State.Ended() {
			err = fmt.Errorf("%w; job %s is %s at round %d: %s", err, j.id, s.State, s.CommittedRound, s.Reason)
		}
	}
	return err
}
