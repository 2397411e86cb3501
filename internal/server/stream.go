package server

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"go.uber.org/zap"

	"github.com/avgpipe/avgpipe/internal/api"
)

// tick is how often streams look for something new.
const tick = 250 * time.Millisecond

// stream turns a function that writes into a handler. An error before the first byte becomes an answer; after it, the
// connection is broken so that the client does not take a part for the whole.
func (h *handler) stream(contentType string, f func(*http.Request, io.Writer) error) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
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

// logs copies the job's log; with ?follow=1, until the job has ended and its log is copied.
func (h *handler) logs(r *http.Request, w io.Writer) error {
	ref := r.PathValue("job")
	log, err := h.backend.Log(r.Context(), ref)
	if err != nil {
		return err
	}
	defer log.Close() //nolint:errcheck // only read
	if r.URL.Query().Get("follow") == "" {
		_, err := io.Copy(w, log)
		return err
	}
	return every(r.Context(), func(ctx context.Context) (bool, error) {
		status, err := h.backend.Job(ctx, ref) // before reading: what it wrote until it ended is copied
		if err != nil {
			return false, err
		}
		ref = status.ID
		_, err = io.Copy(w, log)
		return status.State.Ended(), err
	})
}

// tune writes the updates of a tuning.
func (h *handler) tune(r *http.Request, w io.Writer) error {
	request, peer, err := readJobFile(r, "tune")
	if err != nil {
		return err
	}
	return h.backend.Tune(r.Context(), request, peer, func(u api.TuneUpdate) error {
		text, err := json.Marshal(u)
		if err != nil {
			return fmt.Errorf("encode an update of a tuning: %w", err)
		}
		_, err = w.Write(append(text, '\n'))
		return err
	})
}

func (h *handler) model(r *http.Request, w io.Writer) error {
	return h.backend.Model(r.Context(), r.PathValue("job"), w)
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
