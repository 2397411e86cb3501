package remote

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/avgpipe/avgpipe/internal/agent"
	"github.com/avgpipe/avgpipe/internal/api"
)

// Bounds of lines for logs that wait until the node can be reached.
const (
	maxLines     = 1024
	maxLineBytes = 16 << 10 // of the fields of one, and of its message
	linesAtOnce  = 64
	linesPause   = time.Second // before they are sent again
)

// Log implements agent.Agent. A line that finds too many waiting is dropped and counted.
func (c *Client) Log(job string, level zapcore.Level, message string, fields ...zap.Field) {
	l := logLine{Job: job, Level: level.String(), Message: message[:min(len(message), maxLineBytes)]}
	object := zapcore.NewMapObjectEncoder()
	for _, f := range fields {
		f.AddTo(object)
	}
	text, err := json.Marshal(object.Fields)
	if err != nil || len(text) > maxLineBytes {
		text, _ = json.Marshal(map[string]string{"fields": "lost: they cannot be sent"}) // which can be encoded
	}
	l.Fields = text
	select {
	case c.lines <- l:
	default:
		c.dropped.Add(1)
	}
}

// Dropped is how many lines for logs were lost since the client was made.
func (c *Client) Dropped() uint64 { return c.dropped.Load() }

// sendLines sends lines in their order until Close, and then once what is left.
func (c *Client) sendLines() {
	for {
		select {
		case l := <-c.lines:
			c.sendUntilTaken(c.more([]logLine{l}))
		case <-c.ctx.Done():
			ctx, cancel := context.WithTimeout(context.WithoutCancel(c.ctx), c.config.Silence)
			defer cancel()
			for batch := c.more(nil); len(batch) > 0; batch = c.more(nil) {
				if c.call(ctx, "log", &question{Lines: batch}, nil) != nil {
					c.dropped.Add(uint64(len(batch)))
				}
			}
			return
		}
	}
}

// more adds the lines that wait, up to a bound.
func (c *Client) more(batch []logLine) []logLine {
	for len(batch) < linesAtOnce {
		select {
		case l := <-c.lines:
			batch = append(batch, l)
		default:
			return batch
		}
	}
	return batch
}

// sendUntilTaken sends lines again and again while the node cannot be reached. What it refuses is dropped. Lines may come twice where an answer
// was lost.
func (c *Client) sendUntilTaken(batch []logLine) {
	for {
		err := c.call(c.ctx, "log", &question{Lines: batch}, nil)
		if err == nil {
			return
		}
		if c.ctx.Err() == nil && errors.Is(err, agent.ErrUnreachable) {
			select {
			case <-time.After(linesPause):
				continue
			case <-c.ctx.Done():
			}
		}
		if c.ctx.Err() != nil {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(c.ctx), c.config.Silence)
			err = c.call(ctx, "log", &question{Lines: batch}, nil)
			cancel()
		}
		if err != nil {
			c.dropped.Add(uint64(len(batch)))
		}
		return
	}
}

// OpenLog implements agent.Agent.
func (c *Client) OpenLog(ctx context.Context, job string, r api.LogRequest) (agent.LogReader, error) {
	l := &logReader{client: c, ctx: ctx, job: job, request: r, place: r.After}
	if err := l.fill(false); err != nil {
		return nil, err
	}
	return l, nil
}

// logReader reads a log page by page.
type logReader struct {
	client  *Client
	ctx     context.Context //nolint:containedctx // of OpenLog: Next has none
	job     string
	request api.LogRequest
	entries []json.RawMessage
	place   string // after the last entry that was returned
}

func (l *logReader) fill(ended bool) error {
	p, err := get[page](l.ctx, l.client, "read_log", &question{Job: l.job, Log: &l.request, Ended: ended})
	if err != nil {
		return err
	}
	l.entries, l.request.After = p.Entries, p.Place
	return nil
}

// Next implements agent.LogReader.
func (l *logReader) Next(ended bool) ([]byte, error) {
	if len(l.entries) == 0 {
		if err := l.fill(ended); err != nil {
			return nil, err
		}
	}
	if len(l.entries) == 0 {
		l.place = l.request.After
		return nil, io.EOF
	}
	e := l.entries[0]
	l.entries = l.entries[1:]
	var at struct{ Cursor string }
	if err := json.Unmarshal(e, &at); err != nil {
		return nil, err
	}
	l.place = at.Cursor
	return e, nil
}

// Place implements agent.LogReader.
func (l *logReader) Place() string { return l.place }

// Close implements agent.LogReader.
func (*logReader) Close() error { return nil }
