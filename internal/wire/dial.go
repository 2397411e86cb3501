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
		conn, timed, err := dialOnce(ctx, address, link, s, c)
		if s.timed = timed; err == nil {
			return newTCPEnd(conn, link, s.Up, s), nil
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

// dialOnce makes one attempt. It reports whether the other end takes headers that say when their frame was sent.
func dialOnce(ctx context.Context, address string, link Link, s Spec, c Config) (conn net.Conn, timed bool, err error) {
	dialer := net.Dialer{Timeout: handshakeTimeout, KeepAliveConfig: keepAlive}
	conn, err = dialer.DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, false, err
	}
	if conn, err = secure(conn, c.TLS, tls.Client); err == nil {
		timed, err = greet(ctx, conn, link, s, c)
	}
	if err != nil {
		conn.Close()
		return nil, false, err
	}
	return conn, timed, nil
}

// greet performs the dialling end's part of the handshake.
func greet(ctx context.Context, conn net.Conn, link Link, s Spec, c Config) (timed bool, err error) {
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Now()) })
	defer stop()
	if err := conn.SetDeadline(time.Now().Add(handshakeTimeout)); err != nil {
		return false, err
	}
	if err := writeMessage(conn, link.header(opening, s.Generation), hello{c.Job, link.Purpose, true}); err != nil {
		return false, ended(ctx, fmt.Errorf("write handshake: %w", err))
	}
	var answer reply
	header, err := readMessage(conn, answering, &answer)
	if err != nil {
		return false, ended(ctx, err)
	}
	switch answer.Verdict {
	case accepted:
		if !stop() {
			return false, context.Cause(ctx)
		}
		return answer.Timed, conn.SetDeadline(time.Time{})
	case outdated:
		return false, stale("the other node", s.Generation, header.Generation)
	case early:
		return false, fmt.Errorf("%w: %s", errEarly, answer.Reason)
	case refused:
	}
	return false, errors.New("refused: " + answer.Reason)
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
