package wire

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"time"
)

// errEarly says that the other node is not ready for the link yet.
var errEarly = errors.New("not ready yet")

// Dial connects to the node of the link's upper stage. Workers of one placement start in any order, so it tries again until
// the other node is there and expects the link, or ctx ends. A node that has gone on to a later generation refuses for
// good, with ErrStale.
func Dial(ctx context.Context, address string, link Link, s Spec, c Config) (End, error) {
	if err := s.Validate(); err != nil {
		return nil, err
	}
	for wait := 10 * time.Millisecond; ; wait = min(2*wait, time.Second) {
		o, err := dialOnce(ctx, address, link, s, c)
		if s.timed = o.timed; err == nil {
			return newTCPEnd(o, link, s.Up, s), nil
		}
		if !mayPass(err) || !sleep(ctx, wait) {
			return nil, fmt.Errorf("dial %s for the %v: %w", address, link, ended(ctx, err))
		}
	}
}

// mayPass reports whether another attempt can succeed: the other node is still starting, or is making room for this
// generation. What the other end says by an alert of TLS, such as that it refuses the certificate, it says of the next attempt as well.
func mayPass(err error) bool {
	if alert := (*net.OpError)(nil); errors.As(err, &alert) && alert.Op == "remote error" {
		return false
	}
	var network net.Error
	return errors.Is(err, errEarly) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.As(err, &network)
}

// ended adds why ctx ended, if it has, to the error that came of it.
func ended(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil && !errors.Is(err, cause) {
		return fmt.Errorf("%w: %w", cause, err)
	}
	return err
}

// dialOnce makes one attempt.
func dialOnce(ctx context.Context, address string, link Link, s Spec, c Config) (o opened, err error) {
	dialer := net.Dialer{Timeout: handshakeTimeout, KeepAliveConfig: keepAlive}
	conn, err := dialer.DialContext(ctx, "tcp", address)
	if err != nil {
		return o, err
	}
	if conn, err = secure(conn, c.TLS, tls.Client); err == nil {
		o, err = greet(ctx, conn, address, link, s, c)
	}
	if err != nil {
		conn.Close()
	}
	return o, err
}

// greet performs the dialling end's part of the handshake.
func greet(ctx context.Context, conn net.Conn, address string, link Link, s Spec, c Config) (o opened, err error) {
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Now()) })
	defer stop()
	if err := conn.SetDeadline(time.Now().Add(handshakeTimeout)); err != nil {
		return o, err
	}
	if err := writeMessage(conn, link.header(opening, s.Generation), hello{Job: c.Job, Purpose: link.Purpose, Timed: true, Beside: c.Paths.name()}); err != nil {
		return o, ended(ctx, fmt.Errorf("write handshake: %w", err))
	}
	var answer reply
	header, err := readMessage(conn, answering, &answer)
	if err != nil {
		return o, ended(ctx, err)
	}
	switch answer.Verdict {
	case accepted:
		t := &talk{conn: conn, paths: c.Paths, link: link, spec: s}
		o = opened{conn: conn, timed: answer.Timed, choice: c.Paths.without(t.over())}
		if answer.Beside != "" && answer.Beside == c.Paths.name() {
			if o.path, o.choice, err = t.dialled(ctx, address); err != nil {
				return o, ended(ctx, err)
			}
		}
		if !stop() {
			o.give()
			return o, context.Cause(ctx)
		}
		return o, conn.SetDeadline(time.Time{})
	case outdated:
		return o, stale("the other node", s.Generation, header.Generation)
	case early:
		return o, fmt.Errorf("%w: %s", errEarly, answer.Reason)
	case refused:
	}
	return o, errors.New("refused: " + answer.Reason)
}

// sleep waits for d, or returns false when ctx ends first.
func sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-ctx.Done():
		return false
	}
}
