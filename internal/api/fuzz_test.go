package api

import (
	"context"
	"io"
	"net"
	"testing"
	"time"

	"github.com/avgpipe/avgpipe/internal/unixhttp"
)

// FuzzDaemonAnswer has a daemon answer anything: the client returns, and takes no stream that broke off for one that ended.
func FuzzDaemonAnswer(f *testing.F) {
	head := "HTTP/1.1 200 OK\r\nConnection: close\r\n"
	for _, answer := range []string{
		head + "\r\n{\"id\":\"1\",\"state\":\"running\"}\n{\"id\":\"1\",\"state\":\"done\"}\n", head + "\r\n{\"id\":\"1\",\"state\":\"running\"}\n{\"id", head + "\r\nwhat",
		head + "Avgpipe-Age: NaN\r\n\r\n[]", "HTTP/1.1 503 x\r\nContent-Type: application/json\r\nConnection: close\r\n\r\n{\"error\":\"no\",\"code\":\"unavailable\",\"problems\":[{\"line\":-1,\"column\":99}]}",
		"HTTP/1.1 404 x\r\nConnection: close\r\n\r\n", "SSH-2.0\r\n", "", head + "Transfer-Encoding: chunked\r\n\r\n5\r\n{}", "HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{}",
	} {
		f.Add(answer)
	}
	f.Fuzz(func(t *testing.T, answer string) {
		c := &Client{unix: unixhttp.Over("fuzz", func(context.Context, string) (net.Conn, error) {
			here, there := net.Pipe()
			go func() { _, _ = io.Copy(io.Discard, there) }()
			go func() {
				_, _ = io.WriteString(there, answer)
				_ = there.Close()
			}()
			return here, nil
		})}
		defer c.Close()
		c.OnAge(func(time.Duration, string) {})
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if last, err := c.Watch(ctx, "1", nil); err == nil && !last.State.Ended() {
			t.Errorf("%q ends a watch in state %q", answer, last.State)
		} else if err != nil {
			_ = err.Error() // problems are shown with their lines
		}
		if _, err := c.Jobs(ctx); err != nil {
			_ = err.Error()
		}
		_ = c.Logs(ctx, "1", LogRequest{}, func([]byte) error { return nil })
		_ = c.Model(ctx, "1", io.Discard)
	})
}
