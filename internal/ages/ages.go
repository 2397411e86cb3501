// Package ages says what is too old to be kept, for those who delete it. When something began was written by a clock of the host, or of another one, and the
// host's clock may be wrong now: it jumps when it is set, and a host may boot with any time. What counts therefore is that something was too old at every look
// for a while, by the time that the process has run, which does not jump:
//
//	for path := range ledger.Past(time.Now(), age, began) {
//		remove(path)
//	}
//
// A clock that is set right within that while has cost nothing. One that goes back keeps things for longer.
package ages

import (
	"sync"
	"time"
)

// Hold is for how long, at most, something must have been too old. With a lower bound of age it is that.
const Hold = time.Hour

// Ledger remembers since when things are too old. The zero one knows of none. It may be used concurrently.
type Ledger struct {
	mu    sync.Mutex
	since map[string]time.Time // by name, of those that are too old
}

// Past returns those of all things, by name with when they began, that are older than age, and were at every look for as long as they must be. now is
// time.Now, with the reading of the clock that does not jump. Things that are not among those of the last look begin anew.
func (l *Ledger) Past(now time.Time, age time.Duration, began map[string]time.Time) map[string]bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	since, past := map[string]time.Time{}, map[string]bool{}
	for name, at := range began {
		if now.Round(0).Sub(at.Round(0)) <= age {
			continue
		}
		first, known := l.since[name]
		if !known {
			first = now
		}
		since[name] = first
		if now.Sub(first) >= min(age, Hold) {
			past[name] = true
		}
	}
	l.since = since
	return past
}

// Since is when something began to wait whose beginning was written by a clock: never after now, and from now on measured by the clock that does not jump.
func Since(now, began time.Time) time.Time {
	return now.Add(-max(0, now.Round(0).Sub(began.Round(0))))
}
