package agent

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/avgpipe/avgpipe/internal/unixhttp"
	"github.com/avgpipe/avgpipe/internal/worker/control"
)

// Bounds of the talk with a worker.
const (
	askTimeout = 2 * time.Second // for an answer
	maxEvent   = 1 << 20         // bytes of one event
)

// client speaks package control's protocol with the worker of a directory.
type client struct{ unix *unixhttp.Client }

func newClient(dir string) client { return client{unixhttp.New(control.SocketPath(dir), askTimeout)} }

func (c client) ask(ctx context.Context, method, path string, body, answer any) error {
	if err := c.unix.Call(ctx, askTimeout, method, path, body, answer); err != nil {
		return fmt.Errorf("ask the worker: %w", err)
	}
	return nil
}

func (c client) status(ctx context.Context) (s control.Status, err error) {
	err = c.ask(ctx, http.MethodGet, "/status", nil, &s)
	return s, err
}

func (c client) commit(ctx context.Context, r control.CommitRequest) (answer control.CommitResponse, err error) {
	err = c.ask(ctx, http.MethodPost, "/commit", r, &answer)
	return answer, err
}

func (c client) abort(ctx context.Context) error {
	return c.ask(ctx, http.MethodPost, "/abort", nil, nil)
}

// events calls each with every event after a number, until the worker closes the stream or ctx ends.
func (c client) events(ctx context.Context, after uint64, each func(control.Event)) error {
	return c.unix.Lines(ctx, "/events?after="+strconv.FormatUint(after, 10), maxEvent, func(line []byte) error {
		var e control.Event
		if err := json.Unmarshal(line, &e); err != nil {
			return fmt.Errorf("decode an event of a worker: %w", err)
		}
		each(e)
		return nil
	})
}
