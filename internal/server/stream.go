package server

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/avgpipe/avgpipe/internal/api"
)

// tick is how often streams look for something new.
const tick = 250 * time.Millisecond

// maxTail bounds how many entries of a log are kept to find the last ones.
const maxTail = 1_000_000

// stream turns a function that writes into a handler. An error before the first byte becomes an answer; after it, the
// connection is broken so that the client does not take a part for the whole.
func (h *handler) stream(contentType string, f func(*http.Request, io.Writer) error) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		peer, _ := peerFrom(r.Context()) // the guard has let it through
		end := h.accounts.stream(peer)
		if end == nil {
			h.refuse(w, r, tooMany(r, 0, "too many answers to you go on at a time: logs that are followed, jobs that are watched"))
			return
		}
		defer end()
		out := &streamWriter{w: w, control: http.NewResponseController(w), contentType: contentType}
		err := f(r, out)
		if err == nil {
			out.start() // an empty answer
			return
		}
		if !out.started {
			h.refuse(w, r, err)
			return
		}
		if r.Context().Err() == nil {
			h.log.Warn("stream broken", zap.String("path", r.URL.Path), zap.Error(err))
		}
		panic(http.ErrAbortHandler)
	}
}

// streamWriter sends every write at once and gives each its own deadline.
type streamWriter struct {
	w           http.ResponseWriter
	control     *http.ResponseController
	contentType string
	started     bool
}

func (s *streamWriter) start() {
	if !s.started {
		s.w.Header().Set("Content-Type", s.contentType)
		s.started = true
	}
}

func (s *streamWriter) Write(p []byte) (int, error) {
	s.start()
	if err := s.control.SetWriteDeadline(time.Now().Add(writeTimeout)); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return 0, fmt.Errorf("set the deadline: %w", err)
	}
	n, err := s.w.Write(p)
	if err != nil {
		return n, err
	}
	return n, s.control.Flush()
}

// watch writes the job's status whenever it differs from the last one written, until the job has ended.
func (h *handler) watch(r *http.Request, w io.Writer) error {
	ref, last := r.PathValue("job"), []byte(nil)
	return every(r.Context(), func(ctx context.Context) (bool, error) {
		status, err := h.backend.Job(ctx, ref)
		if err != nil {
			return false, err
		}
		ref = status.ID // a name may not be unique for ever
		text, err := json.Marshal(status)
		if err != nil {
			return false, fmt.Errorf("encode the status of job %s: %w", status.ID, err)
		}
		if !bytes.Equal(text, last) {
			last = text
			if _, err := w.Write(append(text, '\n')); err != nil {
				return false, err
			}
		}
		return status.State.Ended(), nil
	})
}

// logs writes the entries of the job's log that were asked for; with ?follow=1, until the job has ended and its log is written.
func (h *handler) logs(r *http.Request, w io.Writer) error {
	request, err := logRequest(r)
	if err != nil {
		return err
	}
	ref := r.PathValue("job")
	log, err := h.backend.Log(r.Context(), ref, request)
	if err != nil {
		return err
	}
	defer log.Close() //nolint:errcheck // only read
	out := bufio.NewWriterSize(w, 64<<10)
	tail, over := request.Tail, !request.Follow
	return every(r.Context(), func(ctx context.Context) (bool, error) {
		status, err := h.backend.Job(ctx, ref) // before reading: what it wrote until it ended is written
		if err != nil {
			return false, err
		}
		ref = status.ID
		last := over // an end is recorded just before the log says so
		over = over || status.State.Ended()
		err = copyEntries(ctx, log, last, tail, out)
		tail = 0
		return last, errors.Join(err, out.Flush())
	})
}

// copyEntries writes the entries that there are now: the last ones, if tail is above 0.
func copyEntries(ctx context.Context, log LogReader, ended bool, tail int, out io.Writer) error {
	var kept [][]byte
	for ctx.Err() == nil {
		entry, err := log.Next(ended)
		switch {
		case errors.Is(err, io.EOF):
			for _, e := range kept {
				if _, err := out.Write(append(e, '\n')); err != nil {
					return err
				}
			}
			return nil
		case err != nil:
			return err
		case tail > 0:
			kept = append(kept[max(0, len(kept)+1-tail):], entry)
		default:
			if _, err := out.Write(append(entry, '\n')); err != nil {
				return err
			}
		}
	}
	return context.Cause(ctx)
}

// logRequest reads the query of a request for a log.
func logRequest(r *http.Request) (api.LogRequest, error) {
	query := r.URL.Query()
	request := api.LogRequest{Follow: query.Get("follow") != "", Level: query.Get("level"), After: query.Get("after")}
	tail, err := number(r, "tail", maxTail, "a number of entries, at most 1000000; 0, or left out, means all")
	if err != nil {
		return request, err
	}
	request.Tail = int(tail) //nolint:gosec // below maxTail
	if follow := query.Get("follow"); follow != "" && follow != "1" {
		return request, api.Errorf(http.StatusBadRequest, "%s %s: follow=%q; allowed is 1, or nothing", r.Method, r.URL.Path, follow)
	}
	if since := query.Get("since"); since != "" {
		if request.Since, err = time.Parse(time.RFC3339Nano, since); err != nil {
			return request, api.Errorf(http.StatusBadRequest, "%s %s: since=%q; allowed is a time as in 2006-01-02T15:04:05Z", r.Method, r.URL.Path, since)
		}
	}
	if !slices.Contains([]string{"", "debug", "info", "warn", "error"}, request.Level) {
		return request, api.Errorf(http.StatusBadRequest, "%s %s: level=%q; allowed are debug, info, warn, error", r.Method, r.URL.Path, request.Level)
	}
	return request, nil
}

// tune writes the updates of a tuning.
func (h *handler) tune(r *http.Request, w io.Writer) error {
	request, peer, err := readBody[api.SubmitRequest](r)
	if err != nil {
		return err
	}
	lines := json.NewEncoder(w)
	return h.backend.Tune(r.Context(), request, peer, func(u api.TuneUpdate) error { return lines.Encode(u) })
}

// every calls f at once and then at every tick, until it says that it is done, fails, or ctx ends.
func every(ctx context.Context, f func(context.Context) (done bool, err error)) error {
	ticker := time.NewTicker(tick)
	defer ticker.Stop()
	for {
		if done, err := f(ctx); done || err != nil {
			return err
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}
