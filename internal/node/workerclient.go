package node

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"time"

	"github.com/avgpipe/avgpipe/internal/worker/control"
)

// Bounds of the talk with a worker.
const (
	askTimeout = 2 * time.Second // for an answer
	maxEvent   = 1 << 20         // bytes of one event
)

// workerClient speaks package control's protocol with one worker.
type workerClient struct {
	dir  string
	http *http.Client
}

func newWorkerClient(dir string) *workerClient {
	socket := control.SocketPath(dir)
	return &workerClient{dir: dir, http: &http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{Timeout: askTimeout}).DialContext(ctx, "unix", socket)
		},
	}}}
}

func (c *workerClient) close() { c.http.CloseIdleConnections() }

// status asks how the worker is.
func (c *workerClient) status(ctx context.Context) (control.Status, error) {
	var s control.Status
	err := c.ask(ctx, http.MethodGet, "/status", nil, &s)
	return s, err
}

// commit asks for a snapshot of a round.
func (c *workerClient) commit(ctx context.Context, r control.CommitRequest) (control.CommitResponse, error) {
	var answer control.CommitResponse
	err := c.ask(ctx, http.MethodPost, "/commit", r, &answer)
	return answer, err
}

// abort tells the worker to end at once.
func (c *workerClient) abort(ctx context.Context) error {
	return c.ask(ctx, http.MethodPost, "/abort", nil, nil)
}

// events calls each with every event after a number, until the worker closes the stream or ctx ends.
func (c *workerClient) events(ctx context.Context, after uint64, each func(control.Event)) error {
	response, err := c.do(ctx, http.MethodGet, "/events?after="+strconv.FormatUint(after, 10), http.NoBody)
	if err != nil {
		return err
	}
	defer response.Body.Close() //nolint:errcheck // only read
	lines := bufio.NewScanner(response.Body)
	lines.Buffer(nil, maxEvent)
	for lines.Scan() {
		var e control.Event
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			return fmt.Errorf("worker in %s: decode an event: %w", c.dir, err)
		}
		each(e)
	}
	if err := lines.Err(); err != nil {
		return fmt.Errorf("worker in %s: read events: %w", c.dir, err)
	}
	return nil
}

// ask sends a request and decodes the answer, within askTimeout.
func (c *workerClient) ask(ctx context.Context, method, path string, body, answer any) error {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	var reader io.Reader = http.NoBody
	if body != nil {
		text, err := json.Marshal(body)
		if err != nil {
			return fmt.Errorf("worker in %s: %s %s: encode: %w", c.dir, method, path, err)
		}
		reader = bytes.NewReader(text)
	}
	response, err := c.do(ctx, method, path, reader)
	if err != nil {
		return err
	}
	defer response.Body.Close() //nolint:errcheck // only read
	if answer == nil {
		return nil
	}
	if err := json.NewDecoder(response.Body).Decode(answer); err != nil {
		return fmt.Errorf("worker in %s: %s %s: decode the answer: %w", c.dir, method, path, err)
	}
	return nil
}

func (c *workerClient) do(ctx context.Context, method, path string, body io.Reader) (*http.Response, error) {
	request, err := http.NewRequestWithContext(ctx, method, "http://worker"+path, body)
	if err != nil {
		return nil, fmt.Errorf("worker in %s: %s %s: %w", c.dir, method, path, err)
	}
	request.Header.Set("Content-Type", "application/json")
	response, err := c.http.Do(request)
	if err != nil {
		return nil, fmt.Errorf("worker in %s: %w", c.dir, err)
	}
	if response.StatusCode/100 != 2 {
		text, _ := io.ReadAll(io.LimitReader(response.Body, 4096)) // best effort: the status says it already
		_ = response.Body.Close()                                  // only read
		return nil, fmt.Errorf("worker in %s: %s %s: %s: %s", c.dir, method, path, response.Status, bytes.TrimSpace(text))
	}
	return response, nil
}
