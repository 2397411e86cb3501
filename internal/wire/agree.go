package wire

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"time"
)

// Two ends that both have a transport agree over their connection, after its handshake, on whether to use it (docs/formats.md, Frames): the dialling end
// offers, the listening end answers, the dialling end measures both ways and says what it has chosen.
const (
	maxOffer     = 64 << 10        // bytes of an offer
	maxMeasured  = 1 << 20         // of a message that is measured
	pathTimeout  = 3 * time.Second // of a measured message and its answer on a path
	leastRounds  = 2               // messages that are measured each way, at least
	mostRounds   = 32
	measuredTime = 100 * time.Millisecond // after which least is enough
)

// Steps of the frames of kind offering.
const (
	speaking  = 0 // an offer or a choice, in JSON
	measuring = 1 // a message to be answered, or its answer
	ready     = 2 // on a path: it is used from here on
)

// offer is one end of a path.
type offer struct {
	Address []byte `json:"address,omitempty"`
	Bytes   int    `json:"bytes,omitempty"`   // of the longest message that is measured
	Problem string `json:"problem,omitempty"` // why there is no path
}

// talk is one end's part of an agreement.
type talk struct {
	conn   net.Conn
	paths  *Paths
	link   Link
	spec   Spec
	header [headerBytes]byte
	buffer []byte // what payloads are read to
}

// over is the name of the connection.
func (t *talk) over() string {
	if _, is := t.conn.(*secured); is {
		return "tls"
	}
	return "tcp"
}

// say writes something in JSON.
func (t *talk) say(payload any) error {
	return writeMessage(t.conn, t.link.header(offering, t.spec.Generation), payload)
}

// hear reads it.
func (t *talk) hear(payload any) error {
	b, h, err := t.frame(connSource{t.conn}, maxOffer)
	switch {
	case err != nil:
		return err
	case h.Step != speaking:
		return fmt.Errorf("%w: %v, expected an offer", errHandshake, h)
	}
	if err := json.Unmarshal(b, payload); err != nil {
		return fmt.Errorf("%w: %w", errHandshake, err)
	}
	return nil
}

// frame reads a frame of the agreement. Its payload is valid until the next one.
func (t *talk) frame(from source, most int) ([]byte, Header, error) {
	b := make([]byte, headerBytes)
	if err := from.header(b); err != nil {
		return nil, Header{}, fmt.Errorf("agree on a path: %w", err)
	}
	h, n, err := decodeHeader(b, most)
	if err == nil && h.Kind != offering {
		err = fmt.Errorf("%v, want %v", h.Kind, offering)
	}
	if err != nil {
		return nil, h, fmt.Errorf("%w: %w", errHandshake, err)
	}
	if len(t.buffer) < n {
		t.buffer = aligned((n + alignment - 1) &^ (alignment - 1)) // the same for all messages: a path keeps what it knows
	}
	payload := t.buffer[:n]
	if err := from.payload(payload); err != nil {
		return nil, h, fmt.Errorf("agree on a path: %w", err)
	}
	return payload, h, nil
}

// step is the header of a frame of n bytes that is measured, encoded.
func (t *talk) step(step uint64, n int) []byte {
	h := t.link.header(offering, t.spec.Generation)
	h.Step = step
	h.encode(t.header[:], n)
	return t.header[:]
}

// dialled agrees for the dialling end.
func (t *talk) dialled(ctx context.Context, address string) (Path, Choice, error) {
	giveBack, err := t.paths.await(ctx)
	if err != nil {
		return nil, Choice{}, err
	}
	defer giveBack()
	to := way{address, min(t.spec.MaxBytes, maxMeasured)}
	before, known := t.known(to)
	if known && before.Over == t.over() {
		return nil, before, t.say(offer{Problem: before.Reason})
	}
	path, err := t.paths.Transport.Open()
	if err != nil {
		c := t.failed(err)
		return nil, c, t.say(offer{Problem: c.Reason})
	}
	defer context.AfterFunc(ctx, path.Stop)()
	c, err := t.offer(path, to)
	if err == nil && c.Over == "" {
		if c, err = t.chosen(path, to, before, known); err == nil {
			err = t.say(c)
		}
	}
	if err != nil || c.Over == t.over() {
		return nil, c, errors.Join(err, path.Close())
	}
	return path, c, nil
}

// known is what was measured before, or how that failed.
func (t *talk) known(to way) (Choice, bool) {
	if t.paths.Always {
		return Choice{Over: t.paths.name(), Reason: "it is always used"}, true
	}
	for _, w := range []way{to, {address: to.address}} {
		if found, known := t.paths.found.Load(w); known {
			return found.(Choice), true //nolint:forcetypeassert,errcheck // nothing else is there
		}
	}
	return Choice{}, false
}

// failed is the choice of the connection after a failure of a path.
func (t *talk) failed(err error) Choice {
	reason := fmt.Sprintf("%s failed: %v", t.paths.name(), err)
	return Choice{Over: t.over(), Reason: reason[:min(len(reason), maxReason)]}
}

// offer exchanges addresses. The choice that it returns is empty unless the other end has none.
func (t *talk) offer(path Path, to way) (Choice, error) {
	if err := t.say(offer{Address: path.Address(), Bytes: to.bytes}); err != nil {
		return Choice{}, err
	}
	var answer offer
	if err := t.hear(&answer); err != nil {
		return Choice{}, err
	}
	if answer.Problem != "" {
		return Choice{Over: t.over(), Reason: "at the other node " + answer.Problem}, nil
	}
	if err := path.Connect(answer.Address); err != nil {
		c := t.failed(err)
		return c, t.say(c)
	}
	return Choice{}, nil
}

// chosen tries a path, measures both ways unless that was done before, and chooses.
func (t *talk) chosen(path Path, to way, before Choice, known bool) (Choice, error) {
	timer := time.AfterFunc(pathTimeout, path.Stop)
	defer timer.Stop()
	c := before
	err := t.ask(path, nil)
	if err == nil && !known {
		c, err = t.measure(path, to.bytes, timer)
		if err == nil {
			t.paths.found.Store(to, c)
		}
	}
	if lost := (*pathError)(nil); errors.As(err, &lost) {
		c, err = t.failed(lost.error), nil
		t.paths.found.Store(way{address: to.address}, c) // of all messages
	}
	if err == nil && c.Over != t.over() {
		if !timer.Stop() {
			return t.failed(errors.New("it was slow for too long")), nil
		}
		if err := path.Send(t.step(ready, 0), nil); err != nil {
			return t.failed(err), nil
		}
	}
	return c, err
}

// pathError is of a path, and not of the connection.
type pathError struct{ error }

// measure sends messages both ways, in turn.
func (t *talk) measure(path Path, n int, timer *time.Timer) (Choice, error) {
	c, payload := Choice{Bytes: n}, aligned((n + alignment - 1) &^ (alignment - 1))[:n]
	begun := time.Now()
	for i := 0; i < leastRounds || i < mostRounds && time.Since(begun) < measuredTime; i++ {
		start := time.Now()
		if err := t.askConnection(payload); err != nil {
			return c, err
		}
		between := time.Now()
		timer.Reset(pathTimeout)
		if err := t.ask(path, payload); err != nil {
			return c, err
		}
		connection, beside := between.Sub(start), time.Since(between)
		if i == 0 || connection < c.Connection {
			c.Connection = connection
		}
		if i == 0 || beside < c.Path {
			c.Path = beside
		}
	}
	return c.decide(t.over(), t.paths.name()), nil
}

// ask sends a message on a path and waits for its answer.
func (t *talk) ask(path Path, payload []byte) error {
	if err := path.Send(t.step(measuring, len(payload)), payload); err != nil {
		return &pathError{err}
	}
	if _, _, err := t.frame(pathSource{path: path}, 0); err != nil {
		return &pathError{err}
	}
	return nil
}

// askConnection does so on the connection.
func (t *talk) askConnection(payload []byte) error {
	header, err := t.step(measuring, len(payload)), error(nil)
	if s, is := t.conn.(*secured); is { // as the frames of a link
		err = s.writeFrame(header, payload)
	} else {
		_, err = (&net.Buffers{header, payload}).WriteTo(t.conn)
	}
	if err == nil {
		_, _, err = t.frame(connSource{t.conn}, 0)
	}
	return err
}

// accepted agrees for the listening end.
func (t *talk) accepted(ctx context.Context) (Path, Choice, error) {
	var asked offer
	if err := t.hear(&asked); err != nil {
		return nil, Choice{}, err
	}
	if asked.Problem != "" {
		return nil, Choice{Over: t.over(), Reason: "the other node says: " + asked.Problem}, nil
	}
	path, err := t.paths.Transport.Open()
	if err == nil {
		if err = path.Connect(asked.Address); err != nil {
			err = errors.Join(err, path.Close())
		}
	}
	if err != nil {
		c := t.failed(err)
		return nil, c, t.say(offer{Problem: c.Reason})
	}
	defer context.AfterFunc(ctx, path.Stop)()
	timer := time.AfterFunc(handshakeTimeout, path.Stop)
	defer timer.Stop()
	answered, most := make(chan error, 1), max(0, min(asked.Bytes, maxMeasured))
	go func() { answered <- (&talk{link: t.link, spec: t.spec}).answer(path, most) }()
	c, err := t.answerConnection(path.Address(), most)
	if err != nil || c.Over == t.over() {
		path.Stop()
		<-answered //nolint:errcheck // it says that it was stopped
		return nil, c, errors.Join(err, path.Close())
	}
	if err := <-answered; err != nil {
		return nil, c, errors.Join(err, path.Close())
	}
	return path, c, nil
}

// answer answers on a path, until it is used or stopped.
func (t *talk) answer(path Path, most int) error {
	for {
		switch _, h, err := t.frame(pathSource{path: path}, most); {
		case err != nil:
			return err
		case h.Step == ready:
			return nil
		}
		if err := path.Send(t.step(measuring, 0), nil); err != nil {
			return err
		}
	}
}

// answerConnection answers on the connection, until the other end has chosen.
func (t *talk) answerConnection(address []byte, most int) (c Choice, err error) {
	if err := t.say(offer{Address: address}); err != nil {
		return c, err
	}
	for {
		b, h, err := t.frame(connSource{t.conn}, max(most, maxOffer))
		if err != nil {
			return c, err
		}
		if h.Step == speaking {
			if err := json.Unmarshal(b, &c); err != nil {
				return c, fmt.Errorf("%w: %w", errHandshake, err)
			}
			if c.Over != t.over() && c.Over != t.paths.name() {
				return c, fmt.Errorf("%w: the other end has chosen %.32q of %s and %s", errHandshake, c.Over, t.over(), t.paths.name())
			}
			return c, nil
		}
		if _, err := t.conn.Write(t.step(measuring, 0)); err != nil {
			return c, fmt.Errorf("agree on a path: %w", err)
		}
	}
}

// source is where frames come from.
type source interface {
	header(b []byte) error
	payload(b []byte) error
}

type connSource struct{ io.Reader }

func (s connSource) header(b []byte) error  { _, err := io.ReadFull(s.Reader, b); return err }
func (s connSource) payload(b []byte) error { _, err := io.ReadFull(s.Reader, b); return err }

// pathSource tells a Watch of what comes, unless that is nil.
type pathSource struct {
	path  Path
	watch *Watch
}

func (s pathSource) header(b []byte) error {
	err := s.path.Next(b)
	if err == nil {
		s.heard(len(b))
	}
	return err
}

func (s pathSource) payload(b []byte) error {
	if len(b) == 0 {
		return nil
	}
	return s.path.Payload(b, s.heard)
}

func (s pathSource) heard(n int) {
	if s.watch != nil {
		s.watch.hear(n)
	}
}
