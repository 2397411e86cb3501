//go:build cuda && cgo && linux && amd64

package cuda

import (
	"cmp"
	"errors"
	"fmt"
	"strings"

	"gorgonia.org/cu"
)

// A context fails by an operation, and from then on every call does, of all devices on the processor. Whoever calls first would be told of a failure
// that is another's: so check asks the driver whether it is the context that failed, and what is kept then names the operations in flight.

// check keeps the first failure.
func (d *Device) check(doing string, err error) {
	if err == nil {
		return
	}
	err = fmt.Errorf("%s: %w", doing, err)
	if !d.deferred(err) && !d.lost() {
		d.keep(err)
	}
}

// deferred leaves a failure to the end of a capture, within which the driver may not be asked. It is false where there is none.
func (d *Device) deferred(err error) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.capturing {
		d.graphs.refused = cmp.Or(d.graphs.refused, err)
	}
	return d.capturing
}

// lost reports whether the context has failed, and then keeps how.
func (d *Device) lost() bool {
	err := d.failed(d.stream)
	if err != nil {
		d.keep(err)
	}
	return err != nil
}

// failed is how the context has failed, which any of its streams says; nil: it is whole.
func (p *processor) failed(stream cu.Stream) error {
	err := p.on(stream.Query)
	if err == nil || errors.Is(err, cu.NotReady) {
		return nil
	}
	return p.lose(p.blame(err))
}

// blame names the operations that a failure of the context may come from: those of all devices on it.
func (p *processor) blame(err error) error {
	processors.Lock()
	defer processors.Unlock()
	var names []string
	for _, d := range p.devices {
		d.mu.Lock()
		names = d.history.pending(names)
		d.mu.Unlock()
	}
	return fmt.Errorf("run operations: %w; one of these failed: %s (AVGPIPED_CUDA_LAUNCHES=%s says which)", err,
		cmp.Or(strings.Join(names, ", "), "none, all had ended"), Synchronous)
}

// lose keeps a failure of the context, unless one is kept, and returns the first: all of its devices have that.
func (p *processor) lose(err error) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.failure == nil {
		p.failure = err
	}
	return p.failure
}

// keep keeps a failure of the device, unless one is kept.
func (d *Device) keep(err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.failure == nil {
		d.failure = err
	}
}

// kept is the first failure.
func (d *Device) kept() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.failure
}
