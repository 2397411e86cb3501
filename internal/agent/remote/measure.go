package remote

import (
	"context"
	"errors"
	"io"
	"time"

	"github.com/avgpipe/avgpipe/internal/agent"
)

// Bounds of a measurement.
const (
	measureTime = 500 * time.Millisecond
	readTime    = 300 * time.Millisecond // of it, for the throughput
	pings       = 3
)

// Measure implements agent.Measurer. It takes half a second and 16 MiB at most, on top of the time to connect.
func (c *Client) Measure(ctx context.Context) (link agent.Link, err error) {
	if err := c.call(ctx, "ping", &question{}, nil); err != nil { // it connects
		return link, err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, measureTime, agent.ErrUnreachable)
	defer cancel()
	for i := range pings {
		began := time.Now()
		if err := c.call(ctx, "ping", &question{}, nil); err != nil {
			return agent.Link{}, err
		}
		if took := time.Since(began); i == 0 || took < link.RTT {
			link.RTT = took
		}
	}
	t, err := c.ask(ctx, "measure", &question{Bytes: maxMeasure})
	if err != nil {
		return agent.Link{}, err
	}
	defer t.close()
	stop := time.AfterFunc(readTime, func() { t.cancel(errEnough) })
	defer stop.Stop()
	began := time.Now()
	bytes, err := io.Copy(io.Discard, t) //nolint:contextcheck // as the talk
	if err != nil && (!errors.Is(context.Cause(t.within), errEnough) || bytes == 0) {
		return agent.Link{}, t.unreachable(err)
	}
	link.BytesPerSecond = float64(bytes) / max(time.Since(began), time.Microsecond).Seconds()
	return link, nil
}

var errEnough = errors.New("enough was read")
