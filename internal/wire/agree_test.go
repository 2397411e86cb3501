package wire

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"
)

// TestAPathHasToBeFasterByATenth: TLS encrypts, and needs nothing else.
func TestAPathHasToBeFasterByATenth(t *testing.T) {
	for _, c := range []struct {
		connection, path time.Duration
		want             string
	}{
		{100, 10, "ucx"}, {100, 89, "ucx"}, {100, 90, "tls"}, {100, 100, "tls"}, {100, 1000, "tls"},
	} {
		m := Choice{Bytes: 7, Connection: c.connection * time.Millisecond, Path: c.path * time.Millisecond}
		got := m.decide("tls", "ucx")
		if m.Over, m.Reason = c.want, got.Reason; got != m || !strings.HasPrefix(got.Reason, "7 bytes and their answer took "+m.Path.String()+" over ucx and ") {
			t.Errorf("chosen %+v, expected %s", got, c.want)
		}
	}
}

// dumb is a transport of paths on which nothing ever comes.
type dumb struct{}

func (dumb) Name() string        { return "dumb" }
func (dumb) Open() (Path, error) { return &dumbPath{stopped: make(chan struct{})}, nil }

type dumbPath struct {
	once    sync.Once
	stopped chan struct{}
	closed  bool
}

func (*dumbPath) Address() []byte        { return []byte("nowhere") }
func (*dumbPath) Connect([]byte) error   { return nil }
func (*dumbPath) Send(_, _ []byte) error { return errors.New("a dumb path") }
func (*dumbPath) Flush() error           { return nil }
func (p *dumbPath) Next([]byte) error {
	<-p.stopped
	return errors.New("stopped")
}
func (*dumbPath) Payload([]byte, func(int)) error { return errors.New("a dumb path") }
func (p *dumbPath) Stop()                         { p.once.Do(func() { close(p.stopped) }) }
func (p *dumbPath) Close() error {
	p.Stop()
	p.closed = true
	return nil
}

// said is a connection on which the other end has said something, and hears nothing.
type said struct {
	net.Conn
	io.Reader
}

func (s said) Read(b []byte) (int, error) { return s.Reader.Read(b) }
func (said) Write(b []byte) (int, error)  { return len(b), nil }

// FuzzAgreement has a dialling end say anything after a handshake. The listening end takes no more memory than for the longest offer or measured message,
// does not hang, and chooses nothing that it does not have.
func FuzzAgreement(f *testing.F) {
	message := func(step uint64, payload any) []byte {
		text, err := json.Marshal(payload)
		if err != nil {
			f.Fatal(err)
		}
		h := testLink.header(offering, 1)
		h.Step = step
		return append(encoded(h, len(text)), text...)
	}
	opens := message(speaking, offer{Address: []byte("here"), Bytes: 100})
	f.Add(message(speaking, offer{Problem: "none"}))
	f.Add(append(bytes.Clone(opens), message(speaking, Choice{Over: "tcp", Reason: "slow"})...))
	f.Add(bytes.Join([][]byte{opens, message(measuring, "a payload"), message(speaking, Choice{Over: "elsewhere"})}, nil))
	f.Add(append(bytes.Clone(opens), encoded(testLink.header(offering, 1), -1)...))
	f.Fuzz(func(t *testing.T, b []byte) {
		to := &talk{conn: said{Reader: bytes.NewReader(b)}, paths: &Paths{Transport: dumb{}}, link: testLink, spec: Spec{Generation: 1, Depth: 1, MaxBytes: 8}}
		path, choice, err := to.accepted(context.Background())
		if err == nil && choice.Over != "tcp" || path != nil {
			t.Errorf("chosen %+v", choice)
		}
		if len(to.buffer) > maxMeasured {
			t.Errorf("%d bytes of memory were taken", len(to.buffer))
		}
	})
}
