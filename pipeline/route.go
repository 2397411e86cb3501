package pipeline

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/avgpipe/avgpipe/internal/wire"
	"github.com/avgpipe/avgpipe/stage"
	"github.com/avgpipe/avgpipe/stage/device"
)

// Transport copies memory of one device to memory of another, both of this process: a way between two graphics processors.
type Transport interface {
	// Name says what it is, for people: "peer copies".
	Name() string
	// Copy copies src to dst, which is as long. It returns when that has ended. Its error names the operation, both devices and the bytes; then
	// nothing writes to dst any more. It does not wait forever.
	Copy(dst, src device.Mem) error
	// Close frees what it holds of the devices.
	Close() error
}

// RouteReport says how boundaries cross from a stage to one beside it on another device.
type RouteReport struct {
	From, To       int    // stages
	Transport      string // that copies
	Bytes          int    // of a boundary
	BytesPerSecond float64
	Measured       []Measurement // of all transports, the fastest first
	Failed         error         // of the transport that copied before; nil: none has
}

// Measurement is how fast a transport copies a boundary.
type Measurement struct {
	Transport      string
	BytesPerSecond float64 // 0 where it failed
	Failed         error
}

// route copies boundaries in one direction between two stages on devices that do not share memory, of all pipelines.
type route struct {
	report     RouteReport
	told       func(RouteReport)
	mu         sync.Mutex // copies run one after the other
	transports []Transport
}

// trials is how often a transport copies a boundary before training, beside the first copy, which makes what it needs.
const trials = 3

// newRoute measures the transports with the memory of a boundary, and takes the fastest.
func newRoute(r RouteReport, told func(RouteReport), all []Transport, dst, src device.Mem) (*route, error) {
	found := &route{report: r, told: told}
	speeds := map[Transport]float64{}
	for _, t := range all {
		took, err := measure(t, dst, src)
		m := Measurement{Transport: t.Name(), Failed: err}
		if err != nil {
			m.Failed = errors.Join(err, t.Close())
		} else {
			m.BytesPerSecond = float64(src.Bytes()) / took.Seconds()
			speeds[t] = m.BytesPerSecond
			found.transports = append(found.transports, t)
		}
		found.report.Measured = append(found.report.Measured, m)
	}
	slices.SortStableFunc(found.report.Measured, func(a, b Measurement) int { return cmp.Compare(b.BytesPerSecond, a.BytesPerSecond) })
	if len(found.transports) == 0 {
		return nil, found.without()
	}
	fastest := slices.MaxFunc(found.transports, func(a, b Transport) int { return cmp.Compare(speeds[a], speeds[b]) })
	found.keep(fastest, found.transports[0])
	found.tell()
	return found, nil
}

// keep closes all transports but one, and one to fall back to. One that does not close is reported, and costs no training.
func (r *route) keep(fastest, fallback Transport) {
	for _, t := range r.transports {
		if t == fastest || t == fallback {
			continue
		}
		if err := t.Close(); err != nil {
			r.failed(t, err)
		}
	}
	r.transports = slices.Compact([]Transport{fastest, fallback})
}

// failed notes how a transport that was measured failed since.
func (r *route) failed(t Transport, err error) {
	for i := range r.report.Measured {
		if m := &r.report.Measured[i]; m.Transport == t.Name() {
			m.Failed = err
		}
	}
}

// measure is how long the fastest of a few copies takes.
func measure(t Transport, dst, src device.Mem) (time.Duration, error) {
	took := time.Duration(math.MaxInt64)
	for i := range trials + 1 {
		begun := time.Now()
		if err := t.Copy(dst, src); err != nil {
			return 0, err
		}
		if i > 0 {
			took = min(took, max(time.Since(begun), 1))
		}
	}
	return took, nil
}

// without is why no transport copies.
func (r *route) without() error {
	errs := []error{fmt.Errorf("copy boundaries of %d bytes from the device of stage %d to that of stage %d: no transport is left", r.report.Bytes, r.report.From, r.report.To)}
	for _, m := range r.report.Measured {
		errs = append(errs, m.Failed)
	}
	return errors.Join(errs...)
}

// tell tells which transport copies now.
func (r *route) tell() {
	r.report.Transport = r.transports[0].Name()
	for _, m := range r.report.Measured {
		if m.Transport == r.report.Transport {
			r.report.BytesPerSecond = m.BytesPerSecond
		}
	}
	if r.told != nil {
		report := r.report
		report.Measured = slices.Clone(report.Measured)
		r.told(report)
	}
}

// copy copies a boundary. A transport that fails is given up for the next one, as long as there is one.
func (r *route) copy(dst, src device.Mem) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	for {
		t := r.transports[0]
		err := t.Copy(dst, src)
		if err == nil || len(r.transports) == 1 {
			return err
		}
		r.transports = r.transports[1:]
		r.report.Failed = errors.Join(err, t.Close())
		r.failed(t, err)
		r.tell()
	}
}

func (r *route) close() (err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, t := range r.transports {
		err = errors.Join(err, t.Close())
	}
	return err
}

// openRoutes opens and measures the routes between stages here that have memory for copies, one after the other: they may share a bus.
func (w *wiring) openRoutes() error {
	open := func(from, to int, dst, src []device.Mem) error {
		if len(dst) == 0 || len(src) == 0 { // nothing crosses that way, or where it is
			return nil
		}
		if w.config.Transports == nil {
			return fmt.Errorf("copy boundaries from the device of stage %d to that of stage %d: Config.Transports is nil", from, to)
		}
		bytes := src[0].Bytes()
		r, err := newRoute(RouteReport{From: from, To: to, Bytes: bytes}, w.config.Events.OnRoute,
			w.config.Transports(w.device[from], w.device[to], bytes), dst[0], src[0])
		if err != nil {
			return err
		}
		return w.keepRoute(from, to, r)
	}
	for k := range w.stages - 1 {
		lower, upper := w.local[k], w.local[k+1]
		if lower == nil || upper == nil {
			continue
		}
		below, above := lower.lead().Buffers(), upper.lead().Buffers()
		if err := open(k, k+1, above.LandedInputs, below.Outputs); err != nil {
			return err
		}
		if err := open(k+1, k, below.LandedGradients, above.Gradients); err != nil {
			return err
		}
	}
	return nil
}

// keepRoute takes a route to close with the ends. When they are closed already, it is closed at once.
func (w *wiring) keepRoute(from, to int, r *route) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return errors.Join(cmp.Or(w.cause, wire.ErrClosed), r.close())
	}
	w.routes[[2]int{from, to}] = r
	return nil
}

// move has movers carry the frames of a link for training, where boundaries are copied from device to device.
func (w *wiring) move(l wire.Link, s *wire.Spec) error {
	if l.Purpose != wire.Training {
		return nil
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return cmp.Or(w.cause, wire.ErrClosed)
	}
	buffers := func(k int) stage.Buffers { return w.local[k].replicas[l.Pipeline].Buffers() }
	start := func(r *route, to []device.Mem) wire.Carrier {
		m := wire.NewMover(r.copy, to)
		w.movers = append(w.movers, m)
		return m
	}
	if r := w.routes[[2]int{l.Lower, l.Upper}]; r != nil {
		s.Down = start(r, buffers(l.Upper).LandedInputs)
	}
	if r := w.routes[[2]int{l.Upper, l.Lower}]; r != nil {
		s.Up = start(r, buffers(l.Lower).LandedGradients)
	}
	return nil
}
