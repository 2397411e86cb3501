package remote_test

import (
	"context"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/avgpipe/avgpipe/internal/agent"
	"github.com/avgpipe/avgpipe/internal/agent/remote"
)

// FuzzAnswer has a node answer anything: whoever asks gets an answer or an error, waits no longer than a node may be silent, and takes nothing that was
// broken off for whole.
func FuzzAnswer(f *testing.F) {
	head := "HTTP/1.1 200 OK\r\nContent-Type: application/x-ndjson\r\n"
	for _, answer := range []string{
		head + "Content-Length: 15\r\n\r\n{\"result\":{}}\n\n", head + "Connection: close\r\n\r\n{}\n{\"event\":{}}\n{\"result\":[]}\n", head + "Connection: close\r\n\r\n{}\n{\"res",
		head + "Connection: close\r\n\r\n{\"error\":{\"text\":\"no\",\"obstacle\":{\"kind\":\"space\"},\"damaged\":{\"path\":\"x\"},\"status\":404}}\n",
		"HTTP/1.1 403 Forbidden\r\nContent-Length: 13\r\n\r\n{\"text\":\"no\"}\n", "HTTP/1.1 500 x\r\nConnection: close\r\n\r\nwhat", "SSH-2.0\r\n", "", "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n123456789",
		"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n", head + "Transfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n",
	} {
		f.Add(answer)
	}
	f.Fuzz(func(t *testing.T, answer string) {
		c := remote.New(remote.Config{Node: "a", Silence: 5 * time.Second, Dial: func(context.Context) (net.Conn, error) { return saying(answer), nil }})
		defer c.Close()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if _, err := c.Info(ctx); err == nil && !strings.Contains(answer, "result") {
			t.Errorf("%q is taken for what a node has", answer)
		}
		body, size, err := c.Shards("1").Open(ctx, "")
		if err == nil {
			n, err := io.Copy(io.Discard, body)
			if closeErr := body.Close(); err == nil && closeErr == nil && n != size {
				t.Errorf("%q: %d bytes of %d are taken for whole", answer, n, size)
			}
		}
		if err := c.Events(ctx, agent.Process{Node: "a"}, func(agent.Event) {}); err == nil && !strings.Contains(answer, "result") {
			t.Errorf("%q is taken for all events", answer)
		}
	})
}

// saying is a connection whose other end says something and ends it, and takes everything.
func saying(answer string) net.Conn {
	here, there := net.Pipe()
	go func() { _, _ = io.Copy(io.Discard, there) }()
	go func() {
		_, _ = io.WriteString(there, answer)
		_ = there.Close()
	}()
	return here
}
