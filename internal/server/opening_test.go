package server_test

import (
	"bufio"
	"context"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/avgpipe/avgpipe/internal/api"
	"github.com/avgpipe/avgpipe/internal/audit"
	"github.com/avgpipe/avgpipe/internal/server"
)

// TestWhoAsksBadlyIsRefusedAndWrittenDown: malformed, too large or too slow, in the header or in the body.
func TestWhoAsksBadlyIsRefusedAndWrittenDown(t *testing.T) {
	header := func(text string) string { return text + " HTTP/1.1\r\nHost: x\r\n" }
	for _, c := range []struct {
		what, send   string
		header, read time.Duration // timeouts; 0: the default
		status       int           // that is answered
		record       audit.Record
	}{
		{"no HTTP", "hello\r\n\r\n", 0, 0, 400, audit.Record{Operation: "unknown", Status: 400, Error: "the header of a request could not be read"}},
		{"a slow header", "GET /v1/jobs HT", 100 * time.Millisecond, 0, 400, audit.Record{Operation: "unknown", Status: 400, Error: "did not come in time"}},
		{"a long header", header("GET /v1/jobs") + "X: " + strings.Repeat("x", 80<<10) + "\r\n\r\n", 0, 0, 431, audit.Record{Operation: "unknown", Status: 400, Error: "too long"}},
		{"a bad query", header("GET /v1/jobs?bogus=1") + "\r\n", 0, 0, 400, audit.Record{Operation: "jobs", Object: "/v1/jobs", Status: 400, Error: "bogus"}},
		{"a slow body", header("POST /v1/jobs") + "Content-Length: 100\r\n\r\n{", 0, 3 * time.Second, 408, audit.Record{Operation: "submit", Object: "/v1/jobs", Status: 408, Error: "did not come in time"}},
		{"a large body", header("POST /v1/jobs") + "Content-Length: 2000000\r\n\r\n{\"file\": \"" + strings.Repeat("x", 1<<20), 0, 0, 413, audit.Record{Operation: "submit", Object: "/v1/jobs", Status: 413, Error: "more than"}},
	} {
		t.Run(c.what, func(t *testing.T) {
			t.Parallel()
			path, written := listening(t, c.header, c.read)
			conn, err := (&net.Dialer{}).DialContext(t.Context(), "unix", path)
			if err != nil {
				t.Fatal(err)
			}
			sent := make(chan struct{})
			go func() { // the server may refuse before it has read all
				defer close(sent)
				_, _ = conn.Write([]byte(c.send))
			}()
			answer, err := http.ReadResponse(bufio.NewReader(conn), nil)
			if got := statusOf(answer); got != c.status {
				t.Errorf("%d, %v", got, err)
			}
			_ = conn.Close()
			<-sent
			r := <-written
			if r.From != "unix" || r.User == "" || r.UID == nil || r.Operation != c.record.Operation || r.Object != c.record.Object || r.Status != c.record.Status || !strings.Contains(r.Error, c.record.Error) {
				t.Errorf("written down is %+v", r)
			}
		})
	}
}

// listening serves on a socket, with timeouts, until the test ends. It returns the socket's path and what is written down.
func listening(t *testing.T, header, read time.Duration) (string, chan audit.Record) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "s")
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "unix", path)
	if err != nil {
		t.Fatal(err)
	}
	written := make(chan audit.Record, 10)
	ctx, cancel := context.WithCancel(context.Background())
	var serving sync.WaitGroup
	serving.Go(func() {
		if err := server.Serve(ctx, server.Config{
			Listener: l, Backend: &fake{job: api.JobStatus{ID: "1"}}, Log: zap.NewNop(), Audit: func(r audit.Record) { written <- r },
			HeaderTimeout: header, ReadTimeout: read,
		}); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() {
		cancel()
		serving.Wait()
	})
	return path, written
}

func statusOf(r *http.Response) int {
	if r == nil {
		return 0
	}
	_ = r.Body.Close() // the connection is closed
	return r.StatusCode
}
