package worker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/avgpipe/avgpipe/internal/trace"
	"github.com/avgpipe/avgpipe/internal/worker/control"
)

// maxRequestBytes bounds the body of a control request; the largest is a few dozen bytes.
const maxRequestBytes = 1 << 16

// controller is what the control socket drives; the trainer is the one in use.
type controller interface {
	status() control.Status
	commit(control.CommitRequest) control.CommitResponse
	abort()
}

// server answers the daemon on the worker's unix socket.
type server struct {
	controller controller
	events     *eventLog
	lastAsked  atomic.Int64 // trace.Now of the last request, for the orphan watch
	streams    atomic.Int64 // open event streams: a daemon that listens needs not ask
}

// serve answers on path until ctx ends. It replaces a socket that a dead worker left behind.
func (s *server) serve(ctx context.Context, path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("worker: remove stale control socket %s: %w", path, err)
	}
	var listen net.ListenConfig
	listener, err := listen.Listen(ctx, "unix", path)
	if err != nil {
		return fmt.Errorf("worker: listen on control socket %s: %w", path, err)
	}
	if err := os.Chmod(path, 0o600); err != nil {
		return errors.Join(fmt.Errorf("worker: restrict control socket %s: %w", path, err), listener.Close())
	}
	s.lastAsked.Store(int64(trace.Now()))
	server := &http.Server{
		Handler:           s.routes(),
		ReadHeaderTimeout: 10 * time.Second,
		BaseContext:       func(net.Listener) context.Context { return ctx },
	}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			return fmt.Errorf("worker: serve control socket %s: %w", path, err)
		}
		return nil
	})
	group.Go(func() error {
		<-ctx.Done()
		return server.Close()
	})
	return group.Wait()
}

func (s *server) routes() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /status", func(w http.ResponseWriter, _ *http.Request) { reply(w, s.controller.status()) })
	mux.HandleFunc("GET /events", s.stream)
	mux.HandleFunc("POST /commit", s.postCommit)
	mux.HandleFunc("POST /abort", func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusNoContent)
		s.controller.abort()
	})
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.lastAsked.Store(int64(trace.Now()))
		mux.ServeHTTP(w, r)
	})
}

func (s *server) postCommit(w http.ResponseWriter, r *http.Request) {
	var request control.CommitRequest
	body := json.NewDecoder(io.LimitReader(r.Body, maxRequestBytes))
	body.DisallowUnknownFields()
	if err := body.Decode(&request); err != nil {
		http.Error(w, fmt.Sprintf("commit request: %v", err), http.StatusBadRequest)
		return
	}
	reply(w, s.controller.commit(request))
}

// stream writes the events after ?after=SEQ, one JSON line each, until the reader or the worker goes.
func (s *server) stream(w http.ResponseWriter, r *http.Request) {
	var seq uint64
	if after := r.URL.Query().Get("after"); after != "" {
		if _, err := fmt.Sscan(after, &seq); err != nil {
			http.Error(w, fmt.Sprintf("after=%q: %v", after, err), http.StatusBadRequest)
			return
		}
	}
	s.streams.Add(1)
	defer func() {
		s.streams.Add(-1)
		s.lastAsked.Store(int64(trace.Now()))
	}()
	w.Header().Set("Content-Type", "application/x-ndjson")
	w.WriteHeader(http.StatusOK)
	flush := http.NewResponseController(w)
	encoder := json.NewEncoder(w)
	if err := flush.Flush(); err != nil {
		return
	}
	for {
		events, err := s.events.after(r.Context(), seq)
		if err != nil {
			return
		}
		for _, e := range events {
			if err := encoder.Encode(e); err != nil {
				return
			}
			seq = e.Seq
		}
		if err := flush.Flush(); err != nil {
			return
		}
		s.events.sent(seq)
	}
}

// watchOrphan returns errOrphan when no daemon has asked for longer than bound. A bound of 0 never does.
func (s *server) watchOrphan(ctx context.Context, bound time.Duration) error {
	if bound <= 0 {
		return nil
	}
	tick := time.NewTicker(bound / 10)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		idle := trace.Now() - time.Duration(s.lastAsked.Load())
		if s.streams.Load() == 0 && idle > bound {
			return fmt.Errorf("%w: nothing asked for %s (orphan_after %s)", errOrphan, idle.Round(time.Second), bound)
		}
	}
}

func reply(w http.ResponseWriter, value any) {
	w.Header().Set("Content-Type", "application/json")
	if err := json.NewEncoder(w).Encode(value); err != nil {
		return // the reader has gone; it will ask again
	}
}
