package gpu

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Source asks a driver about the processors of this host. Its calls take milliseconds, but one into a broken driver may never return: nobody
// can end it. Sample and WaitXID may run at the same time, each once.
type Source interface {
	// Sample lists the processors and what they report now, in the order of their indices. Calls that failed are told; what they would have said is
	// not known.
	Sample() ([]Sample, []Failure, error)
	// WaitXID waits for an error that the driver reports, for a time. Nil: there was none.
	WaitXID(bound time.Duration) (*XID, error)
	// Close is called when neither of the others runs.
	Close() error
}

// Failure is a call to the driver that failed.
type Failure struct {
	Call string // and what it was about: "nvmlDeviceGetPowerUsage of GPU 0"
	Err  error
}

// ErrNone is the error of an Open on a host, or in a build, that has no driver: there are no processors.
var ErrNone = errors.New("no graphics processors")

// Events are told to whoever logs them, from one goroutine at a time. All are required.
type Events struct {
	Health  func(g GPU, before Health) // it has changed
	XID     func(g GPU, x XID)
	Failure func(f Failure) // told once for each call and error
	Faults  func(Faults)    // all that are to be kept now
}

// Config configures a Monitor. Open, Select and Events are required.
type Config struct {
	Open   func() (Source, error)
	Select Selection
	Events Events
	// Faults are those that were kept, as of this boot of the host.
	Faults Faults
	// Period is the pause between two samples. Default 10 s: a sample takes some milliseconds for each processor.
	Period time.Duration
	// Bound is how long the driver may take to answer before that is said. Default 30 s: without persistence mode, it may initialise
	// each processor anew.
	Bound time.Duration
}

// xidBound is how long one wait for an XID takes, and so the monitor's end.
const xidBound = time.Second

// Monitor knows the processors that the daemon may use. Its methods may be called concurrently.
type Monitor struct {
	config    Config
	source    Source // nil: there are no processors
	watched   []*watched
	said      map[string]bool // failures that were told
	kept      Faults          // as they were told
	gone      Faults          // of them, those of processors that are not watched
	clears    chan func()     // for Run
	published atomic.Pointer[[]GPUStatus]
	hidden    string
	excluded  []string // UUIDs of processors that are there, and that the selection does not take
}

// watched is a processor under watch.
type watched struct {
	tracker

	status GPUStatus
}

// sampled is the answer of a source.
type sampled struct {
	source   Source
	found    []Sample
	failures []Failure
	err      error
}

// Start opens the source and chooses from what it finds. Where there is no driver it has no processors. The caller runs the monitor.
func Start(ctx context.Context, c Config) (*Monitor, error) {
	if c.Period <= 0 {
		c.Period = 10 * time.Second
	}
	if c.Bound <= 0 {
		c.Bound = 30 * time.Second
	}
	m := &Monitor{config: c, said: map[string]bool{}, kept: c.Faults, gone: Faults{}, clears: make(chan func())}
	maps.Copy(m.gone, c.Faults)
	m.publish()
	if c.Select.None() {
		return m, nil
	}
	first := make(chan sampled, 1)
	go func() { // ends with the driver's answer: a call into it cannot be ended
		s := sampled{}
		if s.source, s.err = c.Open(); s.err == nil {
			s.found, s.failures, s.err = s.source.Sample()
		}
		first <- s
	}()
	bound := time.NewTimer(c.Bound)
	defer bound.Stop()
	select {
	case s := <-first:
		return m, m.begin(s)
	case <-bound.C:
		return m, m.absent(fmt.Errorf("the driver has not answered for %v; see whether nvidia-smi answers, then restart the daemon", c.Bound))
	case <-ctx.Done():
		return m, context.Cause(ctx)
	}
}

// absent takes note that there are no processors. Where some are asked for, that is an error, which lasts where there is no driver.
func (m *Monitor) absent(why error) error {
	switch {
	case m.config.Select.All():
	case errors.Is(why, ErrNone):
		return fmt.Errorf("%w: %w", ErrSelection, why)
	default:
		return why
	}
	m.say(Failure{"open the driver", why})
	return nil
}

// begin takes the first answer.
func (m *Monitor) begin(s sampled) error {
	if s.err != nil && s.source != nil {
		s.err = errors.Join(s.err, s.source.Close())
	}
	if s.err != nil {
		return m.absent(s.err)
	}
	found := make([]GPU, len(s.found))
	for i, one := range s.found {
		found[i] = one.GPU
	}
	chosen, err := m.config.Select.Of(found)
	if err != nil {
		return errors.Join(err, s.source.Close())
	}
	m.source, m.hidden = s.source, m.config.Select.Hides(found)
	for _, g := range found {
		if !slices.ContainsFunc(chosen, func(c GPU) bool { return c.UUID == g.UUID }) {
			m.excluded = append(m.excluded, g.UUID)
		}
	}
	for _, g := range chosen {
		g.Health = healthOf(nil)
		m.watched = append(m.watched, &watched{newTracker(g, m.config.Faults[g.UUID]), GPUStatus{GPU: g}})
		delete(m.gone, g.UUID)
	}
	m.take(s)
	return nil
}

// GPUs are the processors that the daemon may use, the sick ones too.
func (m *Monitor) GPUs() []GPU {
	all := make([]GPU, 0, len(*m.published.Load()))
	for _, s := range *m.published.Load() {
		all = append(all, s.GPU)
	}
	return all
}

// Hidden says which processors no job can use, and why; "" where there is none.
func (m *Monitor) Hidden() string { return m.hidden }

// Excludes reports whether the configuration keeps a processor from jobs. One that is not there is not excluded.
func (m *Monitor) Excludes(uuid string) bool {
	return m.config.Select.None() || slices.Contains(m.excluded, uuid)
}

// Close closes the source of a monitor that does not run.
func (m *Monitor) Close() error {
	if m.source == nil {
		return nil
	}
	return m.source.Close()
}

// Status is what these reported last.
func (m *Monitor) Status() []GPUStatus { return slices.Clone(*m.published.Load()) }

// Run samples, waits for errors and lets people clear them until ctx ends. A call of the driver that hangs then is left behind.
func (m *Monitor) Run(ctx context.Context) {
	samples, xids, answered := make(chan sampled), make(chan XID), make(chan Failure)
	silent := time.NewTimer(m.config.Period + m.config.Bound)
	defer silent.Stop()
	var asking sync.WaitGroup
	if m.source != nil {
		asking.Go(func() { m.sample(ctx, samples) })
		asking.Go(func() { m.waitXIDs(ctx, xids, answered) })
		defer m.leave(&asking)
	}
	for ctx.Err() == nil {
		select {
		case s := <-samples:
			if m.take(s) {
				silent.Reset(m.config.Period + m.config.Bound)
			}
		case x := <-xids:
			m.note(x)
		case f := <-answered:
			m.say(f)
		case do := <-m.clears:
			do()
		case <-silent.C:
			m.silent()
		case <-ctx.Done():
		}
	}
}

// leave closes the source once nobody asks it any more.
func (m *Monitor) leave(asking *sync.WaitGroup) {
	ended := make(chan struct{})
	go func() { asking.Wait(); close(ended) }()
	bound := time.NewTimer(3 * xidBound)
	defer bound.Stop()
	select {
	case <-ended:
		if err := m.source.Close(); err != nil {
			m.say(Failure{"close the driver", err})
		}
	case <-bound.C:
		m.say(Failure{"wait for the driver's last answer", errors.New("there was none; the process ends without it")})
	}
}

// sample asks for samples, one after the other.
func (m *Monitor) sample(ctx context.Context, out chan<- sampled) {
	for pause(ctx, m.config.Period) {
		s := sampled{source: m.source}
		s.found, s.failures, s.err = m.source.Sample()
		send(ctx, out, s)
	}
}

// waitXIDs passes errors on as the driver reports them.
func (m *Monitor) waitXIDs(ctx context.Context, out chan<- XID, failed chan<- Failure) {
	for ctx.Err() == nil {
		x, err := m.source.WaitXID(xidBound)
		switch {
		case err != nil:
			send(ctx, failed, Failure{"wait for XIDs", err})
			pause(ctx, m.config.Period)
		case x != nil:
			send(ctx, out, *x)
		}
	}
}

// pause waits. It reports whether ctx lasts.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

func send[T any](ctx context.Context, out chan<- T, v T) {
	select {
	case out <- v:
	case <-ctx.Done():
	}
}
