package main

import (
	"time"
)

// sighting is a step of a replica when it was first seen to have done it.
type sighting struct {
	at   time.Duration
	step uint64
}

// sightings are those of a replica, in the order of time and of steps.
type sightings []sighting

// see adds what a replica says of itself. A step that is known already adds nothing.
func (all *sightings) see(at time.Duration, step uint64) {
	if n := len(*all); n > 0 && (*all)[n-1].step >= step {
		return
	}
	*all = append(*all, sighting{at, step})
}

// window is a run of steps that is measured: whole rounds of tau steps, after a warm-up.
type window struct {
	warmup, least, tau int           // steps
	lasts              time.Duration // at least
}

// first is the step that the window begins after: a round's last.
func (w window) first() uint64 { return rounded(uint64(w.warmup), uint64(w.tau)) } //nolint:gosec // a few steps

// rounded is n rounded up to whole rounds.
func rounded(n, tau uint64) uint64 { return (n + tau - 1) / tau * tau }

// began reports whether a replica has done its warm-up.
func (w window) began(all sightings) bool { return len(all) > 0 && all[len(all)-1].step >= w.first() }

// measure is how long a step took: from when the warm-up was over to the last round whose end was seen. False where that is less than the window asks for.
func (w window) measure(all sightings) (seconds float64, steps uint64, ok bool) {
	var from, to *sighting
	for i := range all {
		switch s := &all[i]; {
		case s.step < w.first():
		case from == nil:
			if s.step%uint64(w.tau) == 0 { //nolint:gosec // at least 1
				from = s
			}
		case (s.step-from.step)%uint64(w.tau) == 0: //nolint:gosec // as above
			to = s
		}
	}
	if to == nil || to.step-from.step < uint64(w.least) || to.at-from.at < w.lasts { //nolint:gosec // a few steps
		return 0, 0, false
	}
	steps = to.step - from.step
	return (to.at - from.at).Seconds() / float64(steps), steps, true
}
