package node_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/avgpipe/avgpipe/internal/api"
	"github.com/avgpipe/avgpipe/internal/node/nodetest"
)

// A daemon that answers is ready, and counts what happens to its jobs.
func TestDaemonSaysHowItIs(t *testing.T) {
	d := nodetest.Start(t, nodetest.StateDir(t))
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", nodetest.Socket(d.Dir))
	}}
	defer transport.CloseIdleConnections()
	get := func(path string) string {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://x"+path, http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		response, err := (&http.Client{Transport: transport}).Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
		text, err := io.ReadAll(response.Body)
		if err != nil {
			t.Fatal(err)
		}
		return fmt.Sprint(response.StatusCode, " ", string(text))
	}
	ready := get(api.PathReady)
	for strings.HasPrefix(ready, "503 ") && t.Context().Err() == nil { // it answers a moment before it has looked at the jobs
		if !strings.Contains(ready, "it has not looked at the jobs yet") {
			t.Fatalf("readyz: %q", ready)
		}
		time.Sleep(10 * time.Millisecond)
		ready = get(api.PathReady)
	}
	if ready != "200 raft: ok\ncoordinator: ok\nsocket: ok\n" {
		t.Errorf("readyz: %q", ready)
	}
	id := d.Submit(t, nodetest.Job(t, d.Dir, "good", 40))
	d.Until(t, id, "ends", ended)
	const counted = `avgpipe_jobs_ended_total{state="done"} 1`
	metrics := get(api.PathMetrics)
	for !strings.Contains(metrics, counted) && t.Context().Err() == nil { // it is counted a moment after the state says it
		time.Sleep(10 * time.Millisecond)
		metrics = get(api.PathMetrics)
	}
	for _, line := range []string{
		`avgpipe_build_info{goversion="go`, counted, `avgpipe_jobs{state="done"} 1`, "avgpipe_raft_leader 1", "avgpipe_node_cores 2",
		"avgpipe_state_free_bytes ", "avgpipe_coordinator_last_tick_timestamp_seconds ", "avgpipe_worker_failures_total 0",
	} {
		if !strings.Contains(metrics, line) {
			t.Errorf("no %s in the metrics", line)
		}
	}
	if strings.Contains(metrics, "avgpipe_rounds_committed_total 0\n") || strings.Contains(metrics, "job_id=") {
		t.Error("no commit is counted, or an ended job has series")
	}
}
