package node_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/avgpipe/avgpipe/internal/api"
	"github.com/avgpipe/avgpipe/internal/envtest"
	"github.com/avgpipe/avgpipe/internal/node/nodetest"
)

// A daemon that answers is ready, and counts what happens to its jobs.
func TestDaemonSaysHowItIs(t *testing.T) {
	d := nodetest.Start(t, nodetest.StateDir(t))
	get := func(path string) string { return get(t, d.Dir, path) }
	var ready string
	nodetest.Eventually(t, "it is ready, or not for another reason", func() bool { // it answers a moment before it has looked at the jobs
		ready = get(api.PathReady)
		return !strings.HasPrefix(ready, "503 ") || !strings.Contains(ready, "it has not looked at the jobs yet")
	})
	if ready != "200 raft: ok\ncoordinator: ok\nsocket: ok\n" {
		t.Errorf("readyz: %q", ready)
	}
	id := d.Submit(t, nodetest.Job(t, d.Dir, "good", 40))
	d.Until(t, id, "ends", ended)
	const counted = `avgpipe_jobs_ended_total{state="done"} 1`
	var metrics string
	nodetest.Eventually(t, "the job is counted", func() bool { // a moment after the state says it
		metrics = get(api.PathMetrics)
		return strings.Contains(metrics, counted)
	})
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

// get returns the status and the text that the daemon of a state directory answers with.
func get(t *testing.T, dir, path string) string {
	t.Helper()
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", nodetest.Socket(dir))
	}}
	defer transport.CloseIdleConnections()
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

// A node that does not lead is ready while another one does. Without one it is not, and systemd leaves it alone.
func TestANodeThatDoesNotLeadIsReadyAndAlive(t *testing.T) {
	path := filepath.Join(nodetest.StateDir(t), "systemd.sock")
	systemd, err := (&net.ListenConfig{}).ListenPacket(t.Context(), "unixgram", path)
	if err != nil {
		t.Fatal(err)
	}
	defer systemd.Close()
	messages := make(chan string)
	go func() {
		defer close(messages)
		buffer := make([]byte, 4096)
		for {
			n, _, err := systemd.ReadFrom(buffer)
			if err != nil {
				return
			}
			select {
			case messages <- string(buffer[:n]):
			default:
			}
		}
	}()
	defer func() {
		systemd.Close()
		for range messages {
		}
	}()
	t.Setenv("NOTIFY_SOCKET", path)
	t.Setenv("WATCHDOG_USEC", strconv.Itoa(int(9*time.Second/time.Microsecond)/10))
	all := form(t, 3)
	_, others := leader(t, all)
	last := others[0]
	nodetest.Eventually(t, "it is ready", func() bool { return get(t, last.Dir, api.PathReady) == "200 raft: ok\nleader: ok\nsocket: ok\n" })
	for _, h := range all {
		if h != last {
			h.Stop(t)
		}
	}
	nodetest.Eventually(t, "it is not ready", func() bool {
		text := get(t, last.Dir, api.PathReady)
		return strings.HasPrefix(text, "503 ") && strings.Contains(text, "leader: no node leads") && strings.Contains(text, "socket: ok")
	})
	for alive := 0; alive < 10; { // of the only daemon that runs
		if envtest.Receive(t, "systemd is told that the daemon works", messages) == "WATCHDOG=1" {
			alive++
		}
	}
	for _, h := range all {
		if h != last {
			h.start(t, h.Dir)
		}
	}
	nodetest.Eventually(t, "it is ready again", func() bool { return strings.HasPrefix(get(t, last.Dir, api.PathReady), "200 ") })
}
