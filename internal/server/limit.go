package server

import (
	"cmp"
	"fmt"
	"math"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/avgpipe/avgpipe/internal/api"
)

// Limits bound what one user may ask of one daemon.
type Limits struct {
	// Rate is how many requests are answered in a second, over time, and Burst how many at once. Default 200 and 400.
	Rate, Burst float64
	// Streams is how many answers that go on, such as a log that is followed, there are at a time. Default 64.
	Streams int
}

func (l Limits) withDefaults() Limits {
	return Limits{cmp.Or(l.Rate, 200), cmp.Or(l.Burst, 400), cmp.Or(l.Streams, 64)}
}

// mostAccounts is how many users are remembered; beyond it those that ask seldom are forgotten.
const mostAccounts = 1024

// accounts are what users asked for. Its methods may be called concurrently.
type accounts struct {
	limits Limits
	mu     sync.Mutex
	of     map[string]*account
}

type account struct {
	requests float64 // that may be made at once
	at       time.Time
	told     time.Time // when a refusal was last written down
	streams  int
}

// key names a user. Requests that another node passes on were counted there.
func (p Peer) key() string { return fmt.Sprintf("%s %d %s", p.Role, p.UID, p.Name) }

// get returns the account of a user, as of now. The caller holds the lock.
func (a *accounts) get(key string, now time.Time) *account {
	mine := a.of[key]
	if mine == nil {
		if len(a.of) >= mostAccounts {
			for k, other := range a.of {
				if other.streams == 0 && a.refill(other, now) == a.limits.Burst {
					delete(a.of, k)
				}
			}
		}
		mine = &account{requests: a.limits.Burst, at: now}
		if a.of == nil {
			a.of = map[string]*account{}
		}
		a.of[key] = mine
	}
	mine.requests, mine.at = a.refill(mine, now), now
	return mine
}

// refill is how many requests an account has by now.
func (a *accounts) refill(of *account, now time.Time) float64 {
	return min(a.limits.Burst, of.requests+a.limits.Rate*now.Sub(of.at).Seconds())
}

// ask counts a request. It returns 0, or how long to wait before the next, and whether that is to be written down: once a second.
func (a *accounts) ask(p Peer) (wait time.Duration, tell bool) {
	if a == nil || p.Via != "" {
		return 0, false
	}
	now := time.Now()
	a.mu.Lock()
	defer a.mu.Unlock()
	mine := a.get(p.key(), now)
	if mine.requests >= 1 {
		mine.requests--
		return 0, false
	}
	if tell = now.Sub(mine.told) >= time.Second; tell {
		mine.told = now
	}
	return time.Duration((1 - mine.requests) / a.limits.Rate * float64(time.Second)), tell
}

// stream counts an answer that goes on. end is called when it has; nil: there are too many.
func (a *accounts) stream(p Peer) (end func()) {
	if a == nil || p.Via != "" {
		return func() {}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	mine := a.get(p.key(), time.Now())
	if mine.streams >= a.limits.Streams {
		return nil
	}
	mine.streams++
	return func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		mine.streams--
	}
}

// tooMany refuses a request that one may make again later.
func tooMany(r *http.Request, wait time.Duration, why string) error {
	e := api.Errorf(http.StatusTooManyRequests, "%s %s: %s; ask again in %v", r.Method, r.URL.Path, why, max(wait, time.Second).Round(time.Second))
	e.RetryAfter = max(wait, time.Second)
	return e
}

// retryAfter is a header's whole seconds.
func retryAfter(wait time.Duration) string {
	return strconv.Itoa(int(math.Ceil(max(wait, time.Second).Seconds())))
}
