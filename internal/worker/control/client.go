package control

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"time"

	"github.com/avgpipe/avgpipe/internal/unixhttp"
)

// Bounds of the talk with a worker.
const (
	// AskTimeout bounds every question but that for events.
	AskTimeout = 2 * time.Second
	maxEvent   = 1 << 20 // bytes of one event
)

// Client asks the worker of a job's directory. It dials on first use.
type Client struct{ unix *unixhttp.Client }

// NewClient returns a client. dial connects to a socket.
func NewClient(dir string, dial func(ctx context.Context, socket string) (net.Conn, error)) Client {
	return Client{unixhttp.Over(SocketPath(dir), dial)}
}

// Close closes idle connections.
func (c Client) Close() { c.unix.Close() }

func (c Client) ask(ctx context.Context, method, path string, body, answer any) error {
	if err := c.unix.Call(ctx, AskTimeout, method, path, body, answer); err != nil {
		return fmt.Errorf("ask the worker: %w", err)
	}
	return nil
}

// Status asks how it is.
func (c Client) Status(ctx context.Context) (s Status, err error) {
	err = c.ask(ctx, http.MethodGet, "/status", nil, &s)
	return s, err
}

// Commit asks for the shards of a round.
func (c Client) Commit(ctx context.Context, r CommitRequest) (answer CommitResponse, err error) {
	err = c.ask(ctx, http.MethodPost, "/commit", r, &answer)
	return answer, err
}

// Abort tells it to end.
func (c Client) Abort(ctx context.Context) error {
	return c.ask(ctx, http.MethodPost, "/abort", nil, nil)
}

// Events calls each with every event after a number, until the worker closes the stream or ctx ends.
func (c Client) Events(ctx context.Context, after uint64, each func(Event)) error {
	return unixhttp.Each(ctx, c.unix, http.MethodGet, "/events?after="+strconv.FormatUint(after, 10), nil, maxEvent, func(e Event) error {
		each(e)
		return nil
	})
}
