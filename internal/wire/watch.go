package wire

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/avgpipe/avgpipe/internal/trace"
)

// Watch finds out whether the other end of a link over TCP is alive and how far away it is: each end sends a probe every so often, which the other
// answers. An end that has heard nothing for longer than the bound ends the link. A Watch is of one end; its methods may be called concurrently.
type Watch struct {
	// Peer names the other end's node and its address in messages.
	Peer string
	// Every is the time between two probes. Default 500 ms.
	Every time.Duration
	// Least and Most bound how long the other end may be silent. Defaults 3 s and 15 s.
	Least, Most time.Duration
	// Step is how long a step of training takes; 0 where that is not known yet. Nil: it never is.
	Step func() time.Duration
	// Timed, unless nil, hears of each frame of the other end as soon as its header is here: when it was sent, on this process's clock (trace.Now). It is not
	// called while nothing is known of the other host's clock, nor by a peer of a release that does not say. It must return at once.
	Timed func(h Header, sent time.Duration)

	choice         atomic.Pointer[Choice]
	heard          atomic.Int64 // when, on the clock of trace.Now; 0: the link is not open yet
	delivering     atomic.Bool  // the reader waits for room, and hears nothing
	sent, received atomic.Int64 // bytes

	mu     sync.Mutex
	probes []probed // the newest
}

// probed is what one probe has found, and when, on the clock of trace.Now.
type probed struct{ roundTrip, offset, at time.Duration }

// clocksDrift is how far two clocks may part in a time, as NTP takes it (RFC 5905, PHI).
const clocksDrift = 15e-6

// uncertain is how far the offset may be off by now.
func (p probed) uncertain(now time.Duration) time.Duration {
	return p.roundTrip/2 + time.Duration(clocksDrift*float64(now-p.at))
}

const (
	recentProbes = 64
	probeBytes   = 8  // of a probe: when it was sent
	echoBytes    = 24 // of an answer: that, when the probe arrived, and when the answer was sent
)

// Observation is what a Watch has seen.
type Observation struct {
	Peer string
	// RoundTrip is the shortest of the newest probes, and Offset how far the other host's clock is ahead, as that of them saw it which says it best. It is off by
	// at most Uncertain: half of that probe's round trip, and what clocks may have parted since. All are 0 before the first answer.
	RoundTrip, Offset, Uncertain time.Duration
	Silent, Bound                time.Duration // since anything was heard, and how long that may last
	Sent, Received               int64         // bytes, with headers
	Choice                       Choice        // what carries the frames
}

// Observation returns what was seen up to now; false before the link is open.
func (w *Watch) Observation() (Observation, bool) {
	if w.heard.Load() == 0 {
		return Observation{}, false
	}
	o := Observation{Peer: w.Peer, Silent: w.silent(), Bound: w.bound(), Sent: w.sent.Load(), Received: w.received.Load()}
	if c := w.choice.Load(); c != nil {
		o.Choice = *c
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for i, p := range w.probes {
		if i == 0 || p.roundTrip < o.RoundTrip {
			o.RoundTrip = p.roundTrip
		}
	}
	if best, now, ok := w.best(); ok {
		o.Offset, o.Uncertain = best.offset, best.uncertain(now)
	}
	return o, true
}

// best is the probe that says best how far the other host's clock is ahead; false before the first answer. The caller holds mu.
func (w *Watch) best() (best probed, now time.Duration, ok bool) {
	now = trace.Now()
	for i, p := range w.probes {
		if i == 0 || p.uncertain(now) < best.uncertain(now) {
			best = p
		}
	}
	return best, now, len(w.probes) > 0
}

// timed says when the other end sent a frame whose header has just come, by its stamp.
func (w *Watch) timed(h Header, stamp uint32) {
	if w.Timed == nil || stamp == 0 {
		return
	}
	w.mu.Lock()
	best, now, ok := w.best()
	w.mu.Unlock()
	if ok {
		there := uint32((clock() + int64(best.offset)) / int64(time.Microsecond))
		w.Timed(h, now-time.Duration(int32(there-stamp))*time.Microsecond)
	}
}

// stampOf is what a header says of a time on the clock of trace.Now: the microseconds of this host's clock, of which 32 bits are enough for half an hour; 0 for
// a time that was not noted.
func stampOf(at time.Duration) uint32 {
	if at == 0 {
		return 0
	}
	return max(1, uint32((trace.Epoch.UnixNano()+int64(at))/int64(time.Microsecond)))
}

func (w *Watch) every() time.Duration { return cmp.Or(w.Every, 500*time.Millisecond) }

// hear notes that bytes have arrived.
func (w *Watch) hear(n int) {
	w.received.Add(int64(n))
	w.heard.Store(int64(trace.Now()))
}

func (w *Watch) silent() time.Duration { return trace.Now() - time.Duration(w.heard.Load()) }

// bound is how long the other end may be silent: eight times the longest of the newest round trips, and at least half a step, since what a false
// alarm costs grows with the step.
func (w *Watch) bound() time.Duration {
	longest := time.Duration(0)
	w.mu.Lock()
	for _, p := range w.probes {
		longest = max(longest, p.roundTrip)
	}
	w.mu.Unlock()
	bound := 8 * longest
	if w.Step != nil {
		bound = max(bound, w.Step()/2)
	}
	return min(max(bound, cmp.Or(w.Least, 3*time.Second)), cmp.Or(w.Most, 15*time.Second))
}

// clock is the time of this host on which probes are stamped. It does not jump while the process lives.
func clock() int64 { return trace.Epoch.UnixNano() + int64(trace.Now()) }

// answered takes the four times of a probe, as NTP does.
func (w *Watch) answered(b []byte, now int64) {
	sent, arrived, back := stamp(b, 0), stamp(b, 1), stamp(b, 2)
	p := probed{
		roundTrip: time.Duration((now - sent) - (back - arrived)),
		offset:    time.Duration((arrived-sent)/2 + (back-now)/2),
		at:        trace.Now(),
	}
	if p.roundTrip < 0 || now < sent || back < arrived {
		return // no clock says so
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.probes = append(w.probes, p)
	w.probes = w.probes[max(0, len(w.probes)-recentProbes):]
}

func stamp(b []byte, i int) int64 { return int64(binary.LittleEndian.Uint64(b[8*i:])) }

// watch probes the other end until the link ends, and ends it when the other end is silent for too long. After a pause of this process itself, which
// its own clock shows, the other end gets all of the bound again.
func (e *tcpEnd) watch() {
	w := e.spec.Watch
	ticker := time.NewTicker(w.every())
	defer ticker.Stop()
	for last := trace.Now(); ; last = trace.Now() {
		select {
		case <-e.state.done:
			return
		case <-ticker.C:
		}
		if trace.Now()-last > 2*w.every() || w.delivering.Load() {
			w.heard.Store(int64(trace.Now()))
		}
		if silent, bound := w.silent(), w.bound(); silent > bound {
			e.finish(fmt.Errorf("%s: nothing has come for %v, more than the %v that it may take: its process has stopped, or its host or the network is gone",
				e.name(), silent.Round(time.Millisecond), bound))
			return
		}
		select {
		case e.probe <- struct{}{}:
		default: // the one before still waits for the writer
		}
	}
}

// name describes the link and its other end in messages.
func (e *tcpEnd) name() string {
	if w := e.spec.Watch; w != nil && w.Peer != "" {
		return e.link.String() + " to " + w.Peer
	}
	return e.link.String()
}

// writeProbe sends a probe.
func (e *tcpEnd) writeProbe() error {
	return e.writeSmall(probing, clock())
}

// writeEcho answers one.
func (e *tcpEnd) writeEcho(to echo) error {
	return e.writeSmall(echoing, to.sent, to.arrived, clock())
}

func (e *tcpEnd) writeSmall(kind Kind, stamps ...int64) error {
	b := e.small[:headerBytes]
	e.link.header(kind, e.spec.Generation).encode(b, 8*len(stamps))
	for _, s := range stamps {
		b = binary.LittleEndian.AppendUint64(b, uint64(s))
	}
	if e.beside != nil {
		return e.beside.send(b[:headerBytes], b[headerBytes:])
	}
	_, err := e.conn.Write(b)
	return err
}

// echo is an answer that is to be written.
type echo struct{ sent, arrived int64 }

// probed takes a probe or its answer; false: the frame is another.
func (e *tcpEnd) probed(f Frame) bool {
	now := clock()
	switch f.Kind {
	case probing:
		select {
		case e.echo <- echo{stamp(f.Payload, 0), now}:
		default: // the writer is busy for longer than the other end waits between two probes
		}
	case echoing:
		if e.spec.Watch != nil {
			e.spec.Watch.answered(f.Payload, now)
		}
	default:
		return false
	}
	f.Release()
	return true
}

// heardReader tells a Watch of what is read.
type heardReader struct {
	io.Reader
	watch *Watch
}

func (r heardReader) Read(b []byte) (int, error) {
	n, err := r.Reader.Read(b)
	if n > 0 {
		r.watch.hear(n)
	}
	return n, err
}
