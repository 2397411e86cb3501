package remote

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/avgpipe/avgpipe/internal/agent"
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
	return w.follow(ctx, each)
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

// follow calls each with all events, and the last status of those that came faster than each returned.
func (w *watch) follow(ctx context.Context, each func(agent.Event)) error {
	w.mu.Lock()
	next, statuses, silent := 0, 0, w.silent
	w.mu.Unlock()
	for {
		w.mu.Lock()
		events, status, at := w.events[next:len(w.events):len(w.events)], w.status, max(0, w.statusAt-next)
		if w.statuses == statuses {
			status = nil
		}
		passed := w.silent - silent
		next, statuses, silent = len(w.events), w.statuses, w.silent
		ended, err, changed := w.ended, w.err, w.changed
		w.mu.Unlock()
		if passed > 0 {
			each(agent.Event{Silent: passed})
		}
		for i, e := range events {
			if status != nil && i == at {
				each(*status)
				status = nil
			}
			each(e)
		}
		if status != nil {
			each(*status)
		}
		if ended {
			return err
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}
