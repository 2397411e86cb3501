package main

import (
	"slices"
	"time"

	"github.com/avgpipe/avgpipe/internal/api"
)

// sight is what was seen of a job at a moment.
type sight struct {
	at         time.Duration // since the drill began
	state      api.State
	step       uint64
	round      uint64 // of the center
	committed  uint64
	generation uint64
}

// drillEvent is a step of a drill that was carried out.
type drillEvent struct {
	Step    string   `json:"step"`
	AtS     float64  `json:"at_s"` // since the drill began
	Round   uint64   `json:"round"`
	PauseS  *float64 `json:"pause_s"`          // the longest time without progress from then on, up to the next step; null: it never went on
	UsualS  *float64 `json:"usual_s"`          // the same in the time before the first step
	Redone  uint64   `json:"redone"`           // steps of each pipeline that were computed again
	Workers uint64   `json:"workers"`          // new generations of workers
	Failed  string   `json:"failed,omitempty"` // why the command failed
}

// drillReport says what a drill did to a job.
type drillReport struct {
	Job      string       `json:"job"`
	State    api.State    `json:"state"`
	Events   []drillEvent `json:"events"`
	Samples  uint64       `json:"samples"`
	Wanted   uint64       `json:"wanted_samples"`
	Loss     *float64     `json:"eval_loss"`
	Baseline *float64     `json:"baseline_eval_loss"` // of the same job undisturbed; null: none was run
}

// judge fills in what sights say of the events, which are in order.
func judge(events []drillEvent, seen []sight) {
	for i := range events {
		from, to := duration(events[i].AtS), time.Duration(1<<62)
		if i+1 < len(events) {
			to = duration(events[i+1].AtS)
		}
		events[i].UsualS = longestPause(fromFirstStep(seen), 0, duration(events[0].AtS))
		events[i].PauseS = longestPause(seen, from, to)
		events[i].Redone, events[i].Workers = setBack(seen, from, to)
	}
}

func duration(seconds float64) time.Duration { return time.Duration(seconds * float64(time.Second)) }

// fromFirstStep are the sights from the first step on: a job that is being placed makes no progress either.
func fromFirstStep(seen []sight) []sight {
	i := slices.IndexFunc(seen, func(s sight) bool { return s.step > 0 })
	return seen[max(i, 0):]
}

// longestPause is the longest time, in seconds, between two moments at which the job was farther than ever before; nil where there is none. The time before
// the first moment counts from the beginning of the span, and the end of a job ends it.
func longestPause(seen []sight, from, to time.Duration) *float64 {
	var most uint64
	last, longest, advanced := from, time.Duration(0), false
	if len(seen) > 0 {
		last = max(last, seen[0].at)
	}
	for _, s := range seen {
		if s.at >= to || s.at < from && s.state.Ended() {
			break
		}
		if s.at < from {
			most = max(most, s.step)
			continue
		}
		if s.step > most || s.state.Ended() {
			longest, last, advanced = max(longest, s.at-last), s.at, true
			most = max(most, s.step)
		}
		if s.state.Ended() {
			break
		}
	}
	if !advanced {
		return nil
	}
	pause := longest.Seconds()
	return &pause
}

// setBack is how many rounds were trained again, and how many generations of workers began.
func setBack(seen []sight, from, to time.Duration) (rounds, generations uint64) {
	reached := uint64(0)
	for i, s := range seen {
		if i > 0 && s.generation > seen[i-1].generation && s.at >= from && s.at < to {
			generations += s.generation - seen[i-1].generation
			rounds += reached - min(reached, s.committed)
		}
		reached = max(reached, s.round)
	}
	return rounds, generations
}
