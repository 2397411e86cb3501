package agenttest

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"strconv"
	"time"

	"github.com/avgpipe/avgpipe/internal/checkpoint"
	"github.com/avgpipe/avgpipe/internal/shard"
	"github.com/avgpipe/avgpipe/internal/worker/control"
)

// Worker is the program of a fake worker: it returns its exit code.
func Worker(assignment string) int {
	t, err := openTrainer(assignment)
	if err != nil {
		fmt.Fprintln(os.Stderr, "fake worker:", err)
		return control.ExitInvalid
	}
	ctx, end := context.WithCancel(context.Background())
	t.end = end
	listener, err := (&net.ListenConfig{}).Listen(ctx, "unix", control.SocketPath(t.a.Dir))
	if err != nil {
		fmt.Fprintln(os.Stderr, "fake worker:", err)
		return control.ExitFailed
	}
	server := &http.Server{Handler: t.routes(), ReadHeaderTimeout: time.Second}
	go func() { _ = server.Serve(listener) }() // ends with the process
	t.run(ctx)
	time.Sleep(20 * time.Millisecond) // for the last events to be read
	return t.code
}

func openTrainer(path string) (*trainer, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var a control.Assignment
	if err := json.Unmarshal(text, &a); err != nil {
		return nil, err
	}
	store, err := shard.OpenDirStore(checkpoint.OS, control.ShardDir(a.Dir))
	return newTrainer(a, store, os.Stderr), err
}

func (t *trainer) routes() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /status", func(w http.ResponseWriter, _ *http.Request) { reply(w, t.status()) })
	mux.HandleFunc("POST /commit", func(w http.ResponseWriter, r *http.Request) {
		var request control.CommitRequest
		if err := json.NewDecoder(r.Body).Decode(&request); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		reply(w, t.commit(request))
	})
	mux.HandleFunc("POST /abort", func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusNoContent)
		t.end()
	})
	mux.HandleFunc("GET /events", t.stream)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		t.mu.Lock()
		t.asked = time.Now()
		t.mu.Unlock()
		mux.ServeHTTP(w, r)
	})
}

func reply(w http.ResponseWriter, v any) { _ = json.NewEncoder(w).Encode(v) }

func (t *trainer) stream(w http.ResponseWriter, r *http.Request) {
	after, err := strconv.Atoi(r.URL.Query().Get("after"))
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	out, encoder := http.NewResponseController(w), json.NewEncoder(w)
	t.follow(r.Context(), after, func(e control.Event) bool { return encoder.Encode(e) == nil }, out.Flush)
}
