package remote

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/avgpipe/avgpipe/internal/agent"
)

// idleFor is how long a connection is kept that nobody uses: commits that come every minute find one.
const idleFor = 90 * time.Second

// Silence is how long a node may say nothing.
const Silence = 5 * time.Second

// Config configures a Client.
type Config struct {
	Node string // whose agent is asked
	// Dial connects to it, with the certificate of this node.
	Dial func(ctx context.Context) (net.Conn, error)
	// Term is that in which this node leads, as far as it knows. Nil: 0.
	Term func() uint64
	// Silence is how long a node may say nothing before it counts as unreachable. Default Silence: it speaks every second.
	Silence time.Duration
}

func (c Config) withDefaults() Config {
	if c.Term == nil {
		c.Term = func() uint64 { return 0 }
	}
	if c.Silence == 0 {
		c.Silence = Silence
	}
	return c
}

// Client is the agent of another node. Its errors about a node that does not answer wrap agent.ErrUnreachable; all others are what
// the agent said.
type Client struct {
	config  Config
	http    http.Client
	ctx     context.Context // ends with Close
	cancel  context.CancelFunc
	tasks   sync.WaitGroup
	lines   chan logLine
	dropped atomic.Uint64
}

var (
	_ agent.Agent    = (*Client)(nil)
	_ agent.Measurer = (*Client)(nil)
)

// New returns a client. It connects when it is asked. The caller closes it.
func New(c Config) *Client {
	c = c.withDefaults()
	ctx, cancel := context.WithCancel(context.Background())
	client := &Client{config: c, ctx: ctx, cancel: cancel, lines: make(chan logLine, maxLines)}
	client.http.Transport = &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			ctx, cancel := context.WithTimeout(ctx, c.Silence)
			defer cancel()
			return c.Dial(ctx)
		},
		DisableCompression: true, MaxIdleConnsPerHost: 4, IdleConnTimeout: idleFor,
	}
	client.tasks.Go(client.sendLines)
	return client
}

// Close tries once more to send lines of logs, for Config.Silence at most, and closes all connections that nobody uses.
func (c *Client) Close() {
	c.cancel()
	c.tasks.Wait()
	c.http.CloseIdleConnections()
}

// silent says that a node said nothing for too long.
type silent struct{ bound time.Duration }

func (s silent) Error() string { return fmt.Sprintf("it said nothing for %v", s.bound) }

// talk is one question and its answer.
type talk struct {
	client *Client
	method string
	ctx    context.Context // of who asks
	within context.Context // ends when the node says nothing for too long, and with close
	cancel context.CancelCauseFunc
	timer  *time.Timer
	body   io.ReadCloser
	bytes  int64 // the answer's length; -1: it is of lines
}

// unreachable is the error of an answer that broke off, unless whoever asked has gone. What the system says of the connection is text: a
// node that is gone must not be taken for an obstacle here.
func (t *talk) unreachable(err error) error {
	if t.ctx.Err() != nil {
		return context.Cause(t.ctx)
	}
	if cause := context.Cause(t.within); cause != nil {
		err = cause
	}
	return fmt.Errorf("ask node %s to %s: %w: %s", t.client.config.Node, t.method, agent.ErrUnreachable, err.Error())
}

func (t *talk) close() {
	t.timer.Stop()
	t.cancel(nil)
	if t.body != nil {
		_ = t.body.Close() // only read
	}
}

// Read reads on in the answer. The time between two reads is the reader's.
func (t *talk) Read(p []byte) (int, error) {
	t.timer.Reset(t.client.config.Silence)
	n, err := t.body.Read(p)
	t.timer.Stop()
	return n, err
}

// ask sends a question and waits for the beginning of its answer. The caller closes the talk.
func (c *Client) ask(ctx context.Context, method string, q *question) (*talk, error) {
	text, err := json.Marshal(q)
	if err != nil {
		return nil, fmt.Errorf("ask node %s to %s: encode: %w", c.config.Node, method, err)
	}
	if len(text) > maxBody {
		return nil, fmt.Errorf("ask node %s to %s: the question has %d bytes, %d at most", c.config.Node, method, len(text), maxBody)
	}
	t := &talk{client: c, method: method, ctx: ctx, bytes: -1}
	t.within, t.cancel = context.WithCancelCause(ctx)
	t.timer = time.AfterFunc(c.config.Silence, func() { t.cancel(silent{c.config.Silence}) })
	r, err := http.NewRequestWithContext(t.within, http.MethodPost, "http://"+host+prefix+method, nil) //nolint:contextcheck // it ends with ctx, and by silence
	if err != nil {
		t.close()
		return nil, err
	}
	r.ContentLength = int64(len(text))
	r.GetBody = func() (io.ReadCloser, error) {
		return io.NopCloser(heard{bytes.NewReader(text), func() { t.timer.Reset(c.config.Silence) }}), nil
	}
	if r.Body, err = r.GetBody(); err != nil {
		t.close()
		return nil, err
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set(termHeader, strconv.FormatUint(c.config.Term(), 10))
	if methods[method].reads {
		r.Header["Idempotency-Key"] = []string{} // net/http asks again where the connection was closed before it was asked
	}
	response, err := c.http.Do(r) //nolint:bodyclose // talk closes it
	t.timer.Stop()
	if err != nil {
		err = t.unreachable(err)
		t.close()
		return nil, err
	}
	t.body, t.bytes = response.Body, response.ContentLength
	if response.StatusCode != http.StatusOK {
		defer t.close()
		return nil, t.refusal(response.Status)
	}
	return t, nil
}

// host stands in addresses for the node, which Dial knows.
const host = "agent"

// heard calls each time that something was read.
type heard struct {
	io.Reader
	now func()
}

func (h heard) Read(p []byte) (int, error) {
	h.now()
	return h.Reader.Read(p)
}

// maxRefusal bounds an answer that is not 200, in bytes.
const maxRefusal = 1 << 20

// refusal is the error of an answer that is not 200.
func (t *talk) refusal(status string) error {
	text, err := io.ReadAll(io.LimitReader(t, maxRefusal))
	if err != nil {
		return t.unreachable(err)
	}
	f := &failure{}
	if json.Unmarshal(text, f) != nil || f.Text == "" {
		return fmt.Errorf("ask node %s to %s: %s: %.200q", t.client.config.Node, t.method, status, text)
	}
	return f.of(t.client.config.Node)
}

// last reads the answer to its last line and calls each with the events before.
func (t *talk) last(each func(agent.Event)) (json.RawMessage, error) {
	lines := bufio.NewScanner(t)
	lines.Buffer(nil, maxLine)
	for lines.Scan() {
		var l line
		if err := json.Unmarshal(lines.Bytes(), &l); err != nil { // as of a part of a line
			return nil, t.unreachable(fmt.Errorf("the answer broke off: %w", err))
		}
		switch {
		case l.Error != nil:
			lines.Scan() // to the end, so that the connection serves on
			return nil, l.Error.of(t.client.config.Node)
		case l.Result != nil:
			lines.Scan() // as above
			return l.Result, nil
		case l.Event != nil && each != nil:
			each(*l.Event)
		}
	}
	err := lines.Err()
	if err == nil {
		err = errors.New("the answer broke off")
	}
	return nil, t.unreachable(err)
}

// call asks a question and decodes its answer, unless answer is nil.
func (c *Client) call(ctx context.Context, method string, q *question, answer any) error {
	t, err := c.ask(ctx, method, q)
	if err != nil {
		return err
	}
	defer t.close()
	text, err := t.last(nil)
	if err != nil || answer == nil {
		return err
	}
	if err := json.Unmarshal(text, answer); err != nil {
		return fmt.Errorf("ask node %s to %s: decode its answer: %w", c.config.Node, method, err)
	}
	return nil
}

// get is call for a value.
func get[T any](ctx context.Context, c *Client, method string, q *question) (value T, err error) {
	var got T
	if err := c.call(ctx, method, q, &got); err != nil {
		return value, err
	}
	return got, nil
}
