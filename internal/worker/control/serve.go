package control

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
)

// maxRequestBytes bounds the body of a control request; the largest is a few dozen bytes.
const maxRequestBytes = 1 << 16

// Trainer is what a Server answers for.
type Trainer interface {
	Status() Status
	Commit(r CommitRequest) CommitResponse
	// Abort ends training without a commit.
	Abort()
}

// Server answers the daemon.
type Server struct {
	Trainer Trainer
	Events  *EventLog

	lastAsked atomic.Pointer[time.Time] // when the last request came or stream ended, for the orphan watch
	streams   atomic.Int64              // open event streams: a daemon that listens needs not ask
}

// Listen makes the socket of a worker. It replaces one that a dead worker left behind.
func Listen(ctx context.Context, path string) (net.Listener, error) {
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("worker: remove stale control socket %s: %w", path, err)
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "unix", path)
	if err != nil {
		return nil, fmt.Errorf("worker: listen on control socket %s: %w", path, err)
	}
	if err := os.Chmod(path, 0o600); err != nil {
		return nil, errors.Join(fmt.Errorf("worker: restrict control socket %s: %w", path, err), listener.Close())
	}
	return listener, nil
}

// Serve answers what comes on a listener until ctx ends, and closes it.
func (s *Server) Serve(ctx context.Context, listener net.Listener) error {
	s.asked()
	server := &http.Server{
		Handler:           s.routes(),
		ReadHeaderTimeout: 10 * time.Second,
		BaseContext:       func(net.Listener) context.Context { return ctx },
	}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			return fmt.Errorf("worker: serve control socket %s: %w", listener.Addr(), err)
		}
		return nil
	})
	group.Go(func() error {
		<-ctx.Done()
		return server.Close()
	})
	return group.Wait()
}

func (s *Server) asked() {
	now := time.Now()
	s.lastAsked.Store(&now)
}

func (s *Server) routes() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /status", func(w http.ResponseWriter, _ *http.Request) { reply(w, s.Trainer.Status()) })
	mux.HandleFunc("GET /events", s.stream)
	mux.HandleFunc("POST /commit", s.postCommit)
	mux.HandleFunc("POST /abort", func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusNoContent)
		_ = http.NewResponseController(w).Flush() // the end closes the connection; a reader that has gone is told nothing
		s.Trainer.Abort()
	})
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.asked()
		mux.ServeHTTP(w, r)
	})
}

func (s *Server) postCommit(w http.ResponseWriter, r *http.Request) {
	var request CommitRequest
	body := json.NewDecoder(io.LimitReader(r.Body, maxRequestBytes))
	body.DisallowUnknownFields()
	if err := body.Decode(&request); err != nil {
		http.Error(w, fmt.Sprintf("commit request: %v", err), http.StatusBadRequest)
		return
	}
	reply(w, s.Trainer.Commit(request))
}

// stream writes the events after ?after=SEQ, one JSON line each, until the reader or the worker goes.
func (s *Server) stream(w http.ResponseWriter, r *http.Request) {
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
		s.asked()
	}()
	w.Header().Set("Content-Type", "application/x-ndjson")
	w.WriteHeader(http.StatusOK)
	flush := http.NewResponseController(w)
	encoder := json.NewEncoder(w)
	if err := flush.Flush(); err != nil {
		return
	}
	for {
		events, err := s.Events.After(r.Context(), seq)
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
		s.Events.sent(seq)
	}
}

// ErrOrphan says that no daemon has come back.
var ErrOrphan = errors.New("worker: no daemon has come back")

// WatchOrphan returns ErrOrphan when no daemon has asked for longer than bound. A bound of 0 never does.
func (s *Server) WatchOrphan(ctx context.Context, bound time.Duration) error {
	if bound <= 0 {
		return nil
	}
	s.asked()
	tick := time.NewTicker(bound / 10)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		idle := time.Since(*s.lastAsked.Load())
		if s.streams.Load() == 0 && idle > bound {
			return fmt.Errorf("%w: nothing asked for %s (orphan_after %s)", ErrOrphan, idle.Round(time.Second), bound)
		}
	}
}

func reply(w http.ResponseWriter, value any) {
	w.Header().Set("Content-Type", "application/json")
	if err := json.NewEncoder(w).Encode(value); err != nil {
		return // the reader has gone; it will ask again
	}
}
