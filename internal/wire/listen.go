package wire

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"
)

// Config is what the links of one process between nodes have in common.
type Config struct {
	// Job names the job; a connection of another job is refused.
	Job string
	// TLS, unless nil, secures every connection. It is asked for each, so that certificates may change. For Dial the configuration
	// verifies the peer; for Listen it requires the client's certificate, and Peer says whose it must be.
	TLS func() (*tls.Config, error)
	// Peer, unless nil, refuses a connection for a link by what TLS knows of the dialling end. Only for Listen.
	Peer func(l Link, s tls.ConnectionState) error
	// Refused is told of a connection that is no link of this generation, and why. One that only has to try again is none of these. It is called
	// concurrently and does not block. Nil: nobody is. Only for Listen.
	Refused func(from net.Addr, err error)
	// Paths, unless nil, may choose something faster than connections, and which does not encrypt.
	Paths *Paths
}

// Bounds of waits. All but the last only catch what nobody reports: the coordinator's heartbeats are faster.
const (
	handshakeTimeout = 10 * time.Second       // of each handshake, and how long a connection waits for its Accept
	orderTimeout     = 5 * time.Second        // for what was sent to arrive, when a link ends in order
	causeTimeout     = 100 * time.Millisecond // to tell the other end why a link failed
)

// keepAlive probes a peer after 15 s without traffic; it counts as lost after three unanswered probes.
var keepAlive = net.KeepAliveConfig{Enable: true, Idle: 15 * time.Second, Interval: 5 * time.Second, Count: 3}

// Listener takes the connections of the links whose upper stage is on this node.
type Listener struct {
	config     Config
	generation uint64
	listener   net.Listener
	ctx        context.Context // of the handshakes; ended by Close
	cancel     context.CancelFunc
	workers    sync.WaitGroup

	waiting sync.Map // Link -> expected: those that Accept waits for
}

// Listen starts to accept connections of generation on address, host:port. Close ends it.
func Listen(ctx context.Context, address string, generation uint64, c Config) (*Listener, error) {
	config := net.ListenConfig{KeepAliveConfig: keepAlive}
	inner, err := config.Listen(ctx, "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("listen for links on %s: %w", address, err)
	}
	return Serve(ctx, inner, generation, c), nil
}

// Serve is Listen on a listener that is open. It takes the listener over.
func Serve(ctx context.Context, inner net.Listener, generation uint64, c Config) *Listener {
	l := &Listener{config: c, generation: generation, listener: inner}
	l.ctx, l.cancel = context.WithCancel(context.WithoutCancel(ctx))
	l.workers.Go(l.serve)
	return l
}

// Address is where the listener listens.
func (l *Listener) Address() string { return l.listener.Addr().String() }

// Close stops to accept. Links that exist go on.
func (l *Listener) Close() error {
	l.cancel()
	err := l.listener.Close()
	l.workers.Wait()
	if err != nil {
		return fmt.Errorf("close listener of links: %w", err)
	}
	return nil
}

// Accept waits until the other node has dialled the link, ctx ends or the listener is closed.
func (l *Listener) Accept(ctx context.Context, link Link, s Spec) (End, error) {
	if err := s.Validate(); err != nil {
		return nil, err
	}
	if s.Generation != l.generation {
		return nil, stale(link.String(), l.generation, s.Generation)
	}
	arrived := make(chan opened)
	if _, busy := l.waiting.LoadOrStore(link, expected{arrived, s}); busy {
		return nil, fmt.Errorf("accept %v: it is being accepted already", link)
	}
	defer l.waiting.Delete(link)
	select {
	case o := <-arrived:
		s.timed = o.timed
		return newTCPEnd(o, link, s.Down, s), nil
	case <-ctx.Done():
		return nil, fmt.Errorf("accept %v on %s: the other node has not dialled: %w", link, l.Address(), context.Cause(ctx))
	case <-l.ctx.Done():
		return nil, fmt.Errorf("accept %v: %w", link, net.ErrClosed)
	}
}

// expected is a link that Accept waits for.
type expected struct {
	arrived chan opened
	spec    Spec
}

// serve accepts connections until Close. Each handshake has a goroutine of its own, so a silent peer delays nobody.
func (l *Listener) serve() {
	for {
		conn, err := l.listener.Accept()
		switch {
		case l.ctx.Err() != nil:
			if err == nil {
				conn.Close()
			}
			return
		case err != nil: // of one connection, or out of file descriptors: neither ends the listener
			sleep(l.ctx, 50*time.Millisecond)
		default:
			l.workers.Go(func() {
				conn, err := secure(conn, l.config.TLS, tls.Server)
				if err == nil {
					err = l.handshake(conn)
				}
				if err != nil { // the dialling end was told, or is no stage of a pipeline
					conn.Close()
				}
				if refuses := l.config.Refused; err != nil && refuses != nil && l.ctx.Err() == nil && !errors.Is(err, errEarly) {
					refuses(conn.RemoteAddr(), err)
				}
			})
		}
	}
}

// handshake answers one hello and hands the connection to the Accept that waits for it.
func (l *Listener) handshake(conn net.Conn) error {
	stop := context.AfterFunc(l.ctx, func() { _ = conn.SetDeadline(time.Now()) })
	defer stop()
	if err := conn.SetDeadline(time.Now().Add(handshakeTimeout)); err != nil {
		return err
	}
	var h hello
	header, err := readMessage(conn, opening, &h)
	if err != nil {
		return err
	}
	wanted, answer := l.judge(h, header)
	if err := l.peer(conn, h, header); err != nil {
		answer = reply{Verdict: refused, Reason: err.Error()}
	}
	if err := writeMessage(conn, Header{Kind: answering, Generation: l.generation, Micro: -1}, answer); err != nil || answer.Verdict != accepted {
		why := errors.New(answer.Reason)
		if answer.Verdict == early {
			why = fmt.Errorf("%w: %s", errEarly, answer.Reason)
		}
		return errors.Join(why, err)
	}
	t := &talk{conn: conn, paths: l.config.Paths, link: header.link(h.Purpose), spec: wanted.spec}
	o := opened{conn: conn, timed: h.Timed, choice: t.paths.without(t.over())}
	if answer.Beside != "" {
		if o.path, o.choice, err = t.accepted(l.ctx); err != nil {
			return err
		}
	}
	if err := l.hand(o, wanted.arrived, stop); err != nil {
		o.give()
		return err
	}
	return nil
}

// hand gives what was opened to its Accept.
func (l *Listener) hand(o opened, arrived chan opened, stop func() bool) error {
	if !stop() { // Close has begun
		return net.ErrClosed
	}
	if err := o.conn.SetDeadline(time.Time{}); err != nil {
		return err
	}
	select {
	case arrived <- o:
		return nil
	case <-time.After(handshakeTimeout): // its Accept has ended in the meantime
		return context.DeadlineExceeded
	case <-l.ctx.Done():
		return net.ErrClosed
	}
}

// peer refuses whom the link is not for.
func (l *Listener) peer(conn net.Conn, h hello, header Header) error {
	s, ok := conn.(*secured)
	if !ok || l.config.Peer == nil {
		return nil
	}
	return l.config.Peer(header.link(h.Purpose), s.ConnectionState())
}

// judge decides on a hello.
func (l *Listener) judge(h hello, header Header) (expected, reply) {
	link := header.link(h.Purpose)
	switch {
	case h.Job != l.config.Job:
		return expected{}, reply{Verdict: refused, Reason: fmt.Sprintf("job %q is not here, but job %q", h.Job, l.config.Job)}
	case header.Generation < l.generation:
		return expected{}, reply{Verdict: outdated, Reason: fmt.Sprintf("generation %d is over", header.Generation)}
	case header.Generation > l.generation:
		return expected{}, reply{Verdict: early, Reason: fmt.Sprintf("generation %d has not reached this node", header.Generation)}
	}
	if wanted, is := l.waiting.Load(link); is {
		answer := reply{Verdict: accepted, Timed: true}
		if h.Beside == l.config.Paths.name() {
			answer.Beside = h.Beside
		}
		return wanted.(expected), answer //nolint:forcetypeassert,errcheck // Accept puts nothing else there
	}
	return expected{}, reply{Verdict: early, Reason: fmt.Sprintf("the %v is not expected", link)}
}
