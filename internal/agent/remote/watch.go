package remote

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/avgpipe/avgpipe/internal/agent"
	"github.com/avgpipe/avgpipe/internal/worker/control"
)

// keepEnded is how many processes that have ended are remembered whose exit nobody has taken. A node has a few.
const keepEnded = 128

// watch keeps what is seen of a process, so that whoever asks sees it all, also after a break: every event but the statuses, of which the
// last one is enough.
type watch struct {
	mu       sync.Mutex
	events   []agent.Event
	status   *agent.Event
	statusAt int           // how many events there were before it
	statuses int           // how many there were
	silent   time.Duration // of all polls that failed
	ended    bool
	err      error         // why, without an exit
	changed  chan struct{} // closed and replaced
}

// events calls each with what is seen of a process until it has ended.
func (h *Handler) events(ctx context.Context, p agent.Process, each func(agent.Event)) error {
	w, err := h.watch(p)
	if err != nil {
		return err
	}
	return w.follow(ctx, h.config.Between, each)
}

// watch returns the watch of a process. It begins one where there is none.
func (h *Handler) watch(p agent.Process) (*watch, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if w := h.watches[p]; w != nil {
		return w, nil
	}
	if h.ctx.Err() != nil {
		return nil, fmt.Errorf("the daemon is stopping: %w", agent.ErrUnreachable)
	}
	w := &watch{changed: make(chan struct{})}
	h.watches[p] = w
	h.tasks.Go(func() {
		err := h.agent.Events(h.ctx, p, w.add)
		h.mu.Lock()
		if err != nil {
			delete(h.watches, p) // nothing of it is worth keeping
		} else if h.ended = append(h.ended, p); len(h.ended) > keepEnded {
			delete(h.watches, h.ended[0])
			h.ended = h.ended[1:]
		}
		h.mu.Unlock()
		w.end(err)
	})
	return w, nil
}

// forget forgets a process whose exit has been taken.
func (h *Handler) forget(p agent.Process) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for i, e := range h.ended {
		if e == p {
			h.ended = append(h.ended[:i:i], h.ended[i+1:]...)
			delete(h.watches, p)
			return
		}
	}
}

// add keeps an event.
func (w *watch) add(e agent.Event) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case e.Status != nil:
		w.status, w.statusAt = &e, len(w.events)
		w.statuses++
	case e.Silent > 0:
		w.silent += e.Silent
	default:
		w.events = append(w.events, e)
	}
	w.wake()
}

func (w *watch) end(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ended, w.err = true, err
	w.wake()
}

// wake wakes all that follow. The caller holds mu.
func (w *watch) wake() {
	close(w.changed)
	w.changed = make(chan struct{})
}

// follow calls each with all events, and with the last status of those that came faster than each returned, or than so much time lies between two.
func (w *watch) follow(ctx context.Context, between func() time.Duration, each func(agent.Event)) error {
	w.mu.Lock()
	f := follower{silent: w.silent, between: between}
	w.mu.Unlock()
	for {
		n, ended, changed, err := w.since(&f)
		n.tell(each)
		if ended {
			return err
		}
		var due <-chan time.Time
		if n.held > 0 {
			due = time.After(n.held)
		}
		select {
		case <-changed:
		case <-due:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// follower is what one who follows was told.
type follower struct {
	events, statuses int
	silent           time.Duration
	between          func() time.Duration
	last             *control.Status // that was told; nil: none
	at               time.Time       // when
}

// news are what a follower is to be told.
type news struct {
	events []agent.Event
	status *agent.Event // nil: none
	before int          // how many of events come before it
	silent time.Duration
	held   time.Duration // for how long a status is kept back; 0: none is
}

// since is what there is that a follower was not told.
func (w *watch) since(f *follower) (n news, ended bool, changed <-chan struct{}, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	n = news{events: w.events[f.events:len(w.events):len(w.events)], before: max(0, w.statusAt-f.events), silent: w.silent - f.silent}
	if w.statuses != f.statuses {
		if n.held = time.Until(f.at.Add(f.between())); n.held <= 0 || len(n.events) > 0 || n.silent > 0 || w.ended || turns(f.last, w.status.Status) {
			n.status, n.held = w.status, 0
			f.statuses, f.last, f.at = w.statuses, w.status.Status, time.Now()
		}
	}
	f.events, f.silent = len(w.events), w.silent
	return n, w.ended, w.changed, w.err
}

// turns reports whether a status says something that is decided by. A worker that loads is watched closely.
func turns(before, now *control.Status) bool {
	ends := func(s *control.Status) bool { return s.Final > 0 && s.Progress.Round >= s.Final }
	return before == nil || now.Loading != nil || now.Progress.State != before.Progress.State || now.Held != before.Held || now.Final != before.Final || ends(now) != ends(before)
}

// tell calls each with all of it, in order.
func (n *news) tell(each func(agent.Event)) {
	if n.silent > 0 {
		each(agent.Event{Silent: n.silent})
	}
	for i, e := range n.events {
		if n.status != nil && i == n.before {
			each(*n.status)
		}
		each(e)
	}
	if n.status != nil && n.before >= len(n.events) {
		each(*n.status)
	}
}
