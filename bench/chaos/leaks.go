package main

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"strings"

	"github.com/avgpipe/avgpipe/bench/internal/rig"
	"github.com/avgpipe/avgpipe/internal/api"
)

// usage is what a daemon has open and running.
type usage struct{ files, goroutines int }

// spare is what a daemon may have more of after a trial than one that has just started has: connections that are kept for the next request, of its own and of
// each of the other hosts, and what serves them.
func (w *testbed) spare() usage {
	others := len(w.hosts) - 1
	return usage{files: 4 + 12*others, goroutines: 8 + 24*others}
}

// usage asks the daemon itself, on a connection that goes with the answer.
func (h *host) usage(ctx context.Context) (u usage, err error) {
	transport := &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", h.socket())
	}}
	ctx, cancel := context.WithTimeout(ctx, responseTimeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://daemon"+api.PathMetrics, http.NoBody)
	if err != nil {
		return u, err
	}
	answer, err := transport.RoundTrip(request)
	if err != nil {
		return u, err
	}
	defer answer.Body.Close() //nolint:errcheck // only read
	for lines := bufio.NewScanner(answer.Body); lines.Scan(); {
		name, value, _ := strings.Cut(lines.Text(), " ")
		switch name {
		case "process_open_fds":
			u.files, err = strconv.Atoi(value)
		case "go_goroutines":
			u.goroutines, err = strconv.Atoi(value)
		}
		if err != nil {
			return u, fmt.Errorf("metrics of the daemon%s: %w", h.of(), err)
		}
	}
	if u.files == 0 || u.goroutines == 0 {
		return u, fmt.Errorf("metrics of the daemon%s have no files or no goroutines: %+v", h.of(), u)
	}
	return u, nil
}

// noteUsage notes the most that a daemon has that has just started.
func (w *testbed) noteUsage(ctx context.Context) error {
	for _, h := range w.hosts {
		var u usage
		var err error
		if waited := rig.Poll(ctx, startBound, "metrics of the daemon"+h.of(), func() bool {
			u, err = h.usage(ctx)
			return err == nil
		}); waited != nil {
			return fmt.Errorf("%w: %w", waited, err)
		}
		w.idle = usage{max(w.idle.files, u.files), max(w.idle.goroutines, u.goroutines)}
	}
	w.say("daemons have up to %+v", w.idle)
	return nil
}

// checkLeaks expects that daemons have closed and ended what the trial made them open and start.
func (w *testbed) checkLeaks(ctx context.Context) error {
	for _, h := range w.hosts {
		h.client.Close() // which it may open again
	}
	spare := w.spare()
	for _, h := range w.hosts {
		var u usage
		var err error
		waited := rig.Poll(ctx, leakBound, "a daemon that closes what it does not need", func() bool {
			u, err = h.usage(ctx)
			return err == nil && u.files <= w.idle.files+spare.files && u.goroutines <= w.idle.goroutines+spare.goroutines
		})
		w.say("the daemon%s has %+v", h.of(), u)
		if waited != nil {
			return fmt.Errorf("the daemon%s has %d files and %d goroutines, at the start it was up to %d and %d: %w", h.of(),
				u.files, u.goroutines, w.idle.files, w.idle.goroutines, err)
		}
	}
	return nil
}
