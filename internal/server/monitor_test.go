package server_test

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	"go.uber.org/zap"

	"github.com/avgpipe/avgpipe/internal/api"
	"github.com/avgpipe/avgpipe/internal/server"
)

// get asks a server over TCP.
func get(t *testing.T, address, path string) (status int, text string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+address+path, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	response, err := (&http.Client{Transport: transport}).Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, string(body)
}

func TestMonitoringHasNoAPI(t *testing.T) {
	f := &fake{job: api.JobStatus{ID: "1", State: api.Running}}
	var config net.ListenConfig
	l, err := config.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- server.ServeMonitoring(ctx, l, f, zap.NewNop()) }()
	address := l.Addr().String()
	for path, want := range map[string]int{
		"/healthz": 200, "/readyz": 200, "/metrics": 200, "/": 404, "/v1/jobs": 404, "/v1/jobs/1": 404, "/v1/version": 404, "/v1/openapi.json": 404,
	} {
		if status, text := get(t, address, path); status != want {
			t.Errorf("GET %s: %d %s; want %d", path, status, text, want)
		}
	}
	f.set(func(f *fake) { f.failure = errors.New("it hangs") })
	if status, text := get(t, address, "/readyz"); status != 503 || text != "raft: ok\ncoordinator: it hangs\n" {
		t.Errorf("not ready: %d %q", status, text)
	}
	if status, _ := get(t, address, "/healthz"); status != 200 {
		t.Errorf("healthz of one that is not ready: %d", status)
	}
	stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestNodeMetrics(t *testing.T) {
	f := &fake{job: api.JobStatus{ID: "7", Name: "m", State: api.Queued, Submitted: time.Now().Add(-time.Hour)}}
	text := scrape(t, f)
	for _, line := range []string{
		`avgpipe_build_info{goversion="",node="",version="v"} 1`, `avgpipe_jobs{state="queued"} 1`, `avgpipe_jobs{state="running"} 0`,
		"avgpipe_queue_oldest_seconds 3600", "avgpipe_node_cores 8", "avgpipe_node_cores_free 3", "avgpipe_state_free_bytes 1.073741824e+09",
		"avgpipe_raft_leader 1", "avgpipe_raft_applied_index 12", "avgpipe_coordinator_last_tick_timestamp_seconds 1e+09",
		`avgpipe_jobs_ended_total{state="failed"} 2`, `avgpipe_jobs_ended_total{state="done"} 0`, "avgpipe_rounds_committed_total 7",
		"avgpipe_worker_failures_total 5", "process_resident_memory_bytes ", "go_goroutines ",
	} {
		if !strings.Contains(text, line) {
			t.Errorf("no %s", line)
		}
	}
	problems, err := promlint.New(strings.NewReader(text)).Lint()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
}

// However many jobs have ended, they have no series.
func TestEndedJobsHaveNoSeries(t *testing.T) {
	f := &fake{job: api.JobStatus{ID: "7", Name: "m", State: api.Failed}}
	if text := scrape(t, f); strings.Contains(text, `job_id="7"`) || !strings.Contains(text, `avgpipe_jobs{state="failed"} 1`) {
		t.Error("an ended job has series, or is not counted")
	}
}
