package pipeline

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/avgpipe/avgpipe/internal/trace"
	"github.com/avgpipe/avgpipe/stage"
)

// errStopped is what Do returns once the executor has ended.
var errStopped = errors.New("executor has stopped")

// executor runs closures of one device, one at a time, in the order they were handed in, on one OS thread.
type executor struct {
	attach func() error    // unless nil, runs once on the executor's thread before anything else: device.Threaded.Attach
	use    func(queue int) // unless nil, turns the device to one of its queues: device.Queues.Use
	trace  trace.Listener  // hears of every closure and of the wait before it
	parker parker

	mu      sync.Mutex
	queue   []work // waiting; at most a few for each pipeline
	idle    bool   // the goroutine is parked or about to be
	ended   bool   // nothing is taken any more
	leaving bool   // Run's context is over

	wakers atomic.Int32 // that may still use the parker

	queues  []underWay // of the device; queue 0 is for what belongs to no pipeline, or for everything
	current int        // the queue that the device is turned to; on the executor
}

// underWay are the passes that a queue of the device has been given and that have not ended.
type underWay struct {
	list  chan pass
	under sync.WaitGroup // counts them
}

// queueOf is the queue of the device that works for a pipeline.
func (e *executor) queueOf(pipeline int) int {
	if len(e.queues) < 2 {
		return 0
	}
	return 1 + pipeline%(len(e.queues)-1)
}

// turn turns the device to a queue.
func (e *executor) turn(queue int) {
	e.current = queue
	if e.use != nil {
		e.use(queue)
	}
}

// behind is how many passes wait in a list behind the one that is awaited. The executor has handed over one more when it finds the list
// full: a queue of a device has at most three.
const behind = 1

// pass is work that a device with a queue goes on with alone.
type pass struct {
	event stage.Event
	end   func(error) // once the event has passed
}

// later has end called when an event of a queue has passed. It waits while too many have not. On the executor.
func (e *executor) later(queue int, event stage.Event, end func(error)) {
	p := &e.queues[queue]
	p.under.Add(1)
	p.list <- pass{event, end}
}

// end ends passes, in their order.
func (p *underWay) end() {
	for pass := range p.list {
		pass.end(pass.event.Wait())
		p.under.Done()
	}
}

// await waits for what a queue was given, and for what all were where it is queue 0. On the executor.
func (e *executor) await(queue int) {
	if queue > 0 {
		e.queues[queue].under.Wait()
		return
	}
	for i := range e.queues {
		e.queues[i].under.Wait()
	}
}

// work is an entry of the executor's queue.
type work interface {
	run()           // on the executor
	drop(err error) // instead of run, when the executor ends first
}

// Run executes until ctx ends. The closure that is running then finishes; those that wait fail with errStopped. run locks its
// goroutine to the thread and leaves it locked, so that the thread, with whatever Attach bound to it, ends with the goroutine:
// call it on a goroutine of its own. It returns nil when ctx ended, or why the executor could not start.
func (e *executor) Run(ctx context.Context) error {
	if e.queues == nil {
		e.queues = make([]underWay, 1)
	}
	var ending sync.WaitGroup
	defer ending.Wait()
	for i := range e.queues {
		p := &e.queues[i]
		p.list = make(chan pass, behind)
		ending.Go(p.end)
		defer close(p.list)
	}
	runtime.LockOSThread()
	stop := context.AfterFunc(ctx, e.leave)
	defer stop()
	var err error
	if e.attach != nil {
		if err = e.attach(); err != nil {
			err = fmt.Errorf("attach the device to its thread: %w", err)
			e.leave()
		}
	}
	for w := e.next(); w != nil; w = e.next() {
		w.run()
	}
	return errors.Join(err, e.end())
}

// leave makes next return nil.
func (e *executor) leave() {
	e.mu.Lock()
	e.leaving = true
	e.unlockAndWake()
}

// unlockAndWake releases mu and wakes the goroutine if it sleeps. In this order: woken first, it would run into the lock and go
// to sleep again, this time the slow way.
func (e *executor) unlockAndWake() {
	wake := e.idle && !e.ended
	if wake {
		e.idle = false
		e.wakers.Add(1)
	}
	e.mu.Unlock()
	if wake {
		e.parker.wake()
		e.wakers.Add(-1)
	}
}

// next waits for work; nil when the executor must end.
func (e *executor) next() work {
	for {
		e.mu.Lock()
		switch {
		case e.leaving:
			e.mu.Unlock()
			return nil
		case len(e.queue) > 0:
			w := e.queue[0]
			e.queue = slices.Delete(e.queue, 0, 1)
			e.idle = false
			e.mu.Unlock()
			return w
		}
		e.idle = true
		e.mu.Unlock()
		e.parker.park()
	}
}

// end refuses what still waits.
func (e *executor) end() error {
	e.mu.Lock()
	rest := e.queue
	e.queue, e.ended = nil, true
	e.mu.Unlock()
	for e.wakers.Load() > 0 { // in the middle of one call of the system
		runtime.Gosched()
	}
	err := e.parker.close()
	for _, w := range rest {
		w.drop(errStopped)
	}
	return err
}

// submit queues work from any goroutine.
func (e *executor) submit(w work) {
	e.mu.Lock()
	if e.ended {
		e.mu.Unlock()
		w.drop(errStopped)
		return
	}
	e.queue = append(e.queue, w)
	e.unlockAndWake()
}

// between runs the calls that may run in the middle of a pass and that wait, and turns the device back to the queue of the pass. On the executor.
func (e *executor) between() {
	defer e.turn(e.current)
	for {
		e.mu.Lock()
		at := slices.IndexFunc(e.queue, func(w work) bool {
			c, ok := w.(*call)
			return ok && c.between
		})
		if at < 0 {
			e.mu.Unlock()
			return
		}
		w := e.queue[at]
		e.queue = slices.Delete(e.queue, at, at+1)
		e.mu.Unlock()
		w.run()
	}
}

// Do runs f on the executor, for what belongs to no pipeline, and returns its error. The wait for the device and the run are emitted as spans with the fields
// of span, whose Kind is the run's. When ctx ends before f has started, f is not run; once started it is always waited for.
func (e *executor) Do(ctx context.Context, span trace.Span, f func() error) error {
	return e.call(ctx, span, &call{f: f})
}

// doBetween is Do for what may also run in the middle of a pass, between two layers: it touches nothing that the pass does.
func (e *executor) doBetween(ctx context.Context, span trace.Span, f func() error) error {
	return e.call(ctx, span, &call{f: f, between: true})
}

// doOn is Do on a queue of the device.
func (e *executor) doOn(ctx context.Context, queue int, span trace.Span, f func() error) error {
	return e.call(ctx, span, &call{f: f, queue: queue})
}

func (e *executor) call(ctx context.Context, span trace.Span, c *call) error {
	c.done, c.executor = make(chan error, 1), e
	asked := trace.Now()
	e.submit(c)
	var err error
	select {
	case err = <-c.done:
	case <-ctx.Done():
		if c.state.CompareAndSwap(waiting, abandoned) {
			return fmt.Errorf("wait for the device: %w", context.Cause(ctx))
		}
		err = <-c.done
	}
	if c.ran {
		wait := span
		wait.Kind, wait.Start, wait.End = trace.WaitDevice, asked, c.start
		e.trace.Emit(wait)
		span.Start, span.End = c.start, c.end
		e.trace.Emit(span)
	}
	return err
}

// The states of a call.
const (
	waiting int32 = iota
	running
	abandoned
)

// call is the work of one Do.
type call struct {
	f          func() error
	state      atomic.Int32
	done       chan error
	executor   *executor
	queue      int  // of the device
	between    bool // it may run in the middle of a pass
	ran        bool
	start, end time.Duration // when it ran
}

func (c *call) run() {
	if !c.state.CompareAndSwap(waiting, running) {
		return
	}
	c.executor.await(c.queue)
	c.executor.turn(c.queue)
	c.ran, c.start = true, trace.Now()
	err := c.f()
	c.end = trace.Now()
	c.done <- err
}

func (c *call) drop(err error) {
	if c.state.CompareAndSwap(waiting, running) {
		c.done <- err
	}
}
