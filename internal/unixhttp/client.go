// Package unixhttp is a client of HTTP with JSON bodies over a unix socket: that of the daemon, and those of its workers.
package unixhttp

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"
)

// maxError bounds what is read of an answer that is not 2xx.
const maxError = 1 << 20

// Client talks to what listens on a socket. It dials on first use and is safe for concurrent use.
type Client struct {
	Socket string
	// OnSlow, unless nil, is called of each request that has no answer after slowAfter. It must not be changed while requests run.
	OnSlow func()
	// OnHeader, unless nil, is called of each answer's header. It must not be changed while requests run.
	OnHeader func(http.Header)
	http     http.Client
}

const slowAfter = 3 * time.Second

// DialError says that nobody answers at a socket.
type DialError struct{ Err error }

func (e *DialError) Error() string { return e.Err.Error() }
func (e *DialError) Unwrap() error { return e.Err }

// StatusError is an answer that is not 2xx.
type StatusError struct {
	Status      string
	Code        int
	ContentType string
	Body        []byte
}

func (e *StatusError) Error() string { return fmt.Sprintf("%s: %s", e.Status, bytes.TrimSpace(e.Body)) }

// New returns a client of a socket. Connecting takes so long at most.
func New(socket string, bound time.Duration) *Client {
	dialer := &net.Dialer{Timeout: bound}
	return Over(socket, func(ctx context.Context, socket string) (net.Conn, error) {
		return dialer.DialContext(ctx, "unix", socket)
	})
}

// Over is New with another way to connect.
func Over(socket string, dial func(ctx context.Context, socket string) (net.Conn, error)) *Client {
	return &Client{Socket: socket, http: http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			c, err := dial(ctx, socket)
			if err != nil && ctx.Err() == nil {
				err = &DialError{err}
			}
			return c, err
		},
	}}}
}

// Close closes idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// Do sends a request, with body as JSON unless it is nil. An answer that is not 2xx is a *StatusError. The caller closes the body.
func (c *Client) Do(ctx context.Context, method, path string, body any) (io.ReadCloser, error) {
	var reader io.Reader = http.NoBody
	if body != nil {
		text, err := json.Marshal(body)
		if err != nil {
			return nil, fmt.Errorf("%s %s: encode: %w", method, path, err)
		}
		reader = bytes.NewReader(text)
	}
	return c.Send(ctx, method, path, "application/json", reader)
}

// Send is Do with a body of any type.
func (c *Client) Send(ctx context.Context, method, path, contentType string, body io.Reader) (io.ReadCloser, error) {
	request, err := http.NewRequestWithContext(ctx, method, "http://unix"+path, body)
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", method, path, err)
	}
	request.Header.Set("Content-Type", contentType)
	response, err := c.answer(request)
	if err != nil {
		return nil, fmt.Errorf("%s %s at %s: %w", method, path, c.Socket, err)
	}
	if c.OnHeader != nil {
		c.OnHeader(response.Header)
	}
	if response.StatusCode/100 == 2 {
		return response.Body, nil
	}
	defer response.Body.Close() //nolint:errcheck // only read
	text, err := io.ReadAll(io.LimitReader(response.Body, maxError))
	if err != nil {
		return nil, fmt.Errorf("%s: read the error: %w", response.Status, err)
	}
	return nil, &StatusError{Status: response.Status, Code: response.StatusCode, ContentType: response.Header.Get("Content-Type"), Body: text}
}

// answer waits for the header of an answer.
func (c *Client) answer(request *http.Request) (*http.Response, error) {
	if c.OnSlow != nil {
		said := make(chan struct{})
		slow := time.AfterFunc(slowAfter, func() {
			defer close(said)
			c.OnSlow()
		})
		defer func() {
			if !slow.Stop() {
				<-said
			}
		}()
	}
	return c.http.Do(request)
}

// Call is Do whose answer is decoded, unless answer is nil. All together take so long at most.
func (c *Client) Call(ctx context.Context, bound time.Duration, method, path string, body, answer any) error {
	ctx, cancel := context.WithTimeout(ctx, bound)
	defer cancel()
	content, err := c.Do(ctx, method, path, body)
	if err != nil {
		return err
	}
	defer content.Close() //nolint:errcheck // only read
	if answer == nil {
		return nil
	}
	if err := json.NewDecoder(content).Decode(answer); err != nil {
		return fmt.Errorf("%s %s: decode the answer of %s: %w", method, path, c.Socket, err)
	}
	return nil
}

// Each calls each with every line of an answer, JSON of a T, until each fails, the answer ends or ctx does. A line has so many bytes at most.
func Each[T any](ctx context.Context, c *Client, method, path string, body any, longest int, each func(T) error) error {
	content, err := c.Do(ctx, method, path, body)
	if err != nil {
		return err
	}
	defer content.Close() //nolint:errcheck // only read
	lines := bufio.NewScanner(content)
	lines.Buffer(nil, longest)
	for lines.Scan() {
		var line T
		if err := json.Unmarshal(lines.Bytes(), &line); err != nil { // as of a part of a line
			return cmp.Or[error](context.Cause(ctx), &ReadError{err})
		}
		if err := each(line); err != nil {
			return err
		}
	}
	if err := lines.Err(); err != nil && context.Cause(ctx) == nil {
		return &ReadError{err}
	}
	return context.Cause(ctx)
}

// ReadError says that an answer broke off.
type ReadError struct{ Err error }

func (e *ReadError) Error() string { return "the answer broke off: " + e.Err.Error() }
func (e *ReadError) Unwrap() error { return e.Err }
