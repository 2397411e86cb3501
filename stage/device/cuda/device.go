//go:build cuda && cgo && linux && amd64

package cuda

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"runtime"
	"sync"
	"unsafe"

	"gorgonia.org/cu"

	"github.com/avgpipe/avgpipe/stage/device"
	"github.com/avgpipe/avgpipe/stage/device/cuda/blas"
	"github.com/avgpipe/avgpipe/stage/device/cuda/dnn"
	"github.com/avgpipe/avgpipe/stage/device/cuda/driver"
	"github.com/avgpipe/avgpipe/stage/device/cuda/library"
)

// Device is a stream of a graphics processor, with the memory that was allocated on it. Other devices on the processor may use the memory, once an
// event has passed of the device that wrote it.
type Device struct {
	*processor
	name      string
	stream    cu.Stream
	blas      *blas.Handle // nil without cuBLAS
	dnn       *dnn.Handle  // nil without cuDNN
	workspace cu.DevicePtr // of cuBLAS
	squares   cu.DevicePtr // where blocks meet that add squares up: struct Squares of kernels/optimizer.cu
	scratch   device.Mem   // of operations
	call      call
	graphs    graphs
	launches  Launches
	tf32      bool
	events    [64]event
	next      int
	memory    map[unsafe.Pointer]int64 // bytes of what Alloc returned
	fault     *fault
	open      bool

	rotations device.Rotations
	tables    map[*float32]device.Mem // of rotations; a longer one is twice as long, so that few are outgrown

	mu        sync.Mutex // guards what whoever waits for an event looks at
	failure   error      // the first since the last Synchronize; of the context, where that has failed
	staging   staging
	history   history
	capturing bool // a pass
}

var (
	_ device.Device   = (*Device)(nil)
	_ device.Replayer = (*Device)(nil)
)

// event is a moment of the stream.
type event struct {
	device *Device
	event  cu.Event
	after  moment
}

// moment is how much was handed over before it: operations, and bytes of the ring.
type moment struct{ operations, bytes int }

// Open returns a device.
func Open(c Config) (*Device, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	if err := driver.Load(c.Library, c.Visible, c.Opening); err != nil {
		return nil, err
	}
	d := &Device{open: true, launches: cmp.Or(c.Launches, Graphs), tf32: c.TF32, memory: map[unsafe.Pointer]int64{}, tables: map[*float32]device.Mem{}}
	if err := d.acquire(c.Ordinal, c.MemoryBytes); err != nil {
		return nil, fmt.Errorf("cuda device: %w", err)
	}
	d.name = d.about
	d.enter()
	err := d.prepare(c)
	d.leave()
	if err != nil {
		if d.shared() {
			err = fmt.Errorf("%w; where the processor has failed for another device of this process; it is whole when all have closed", err)
		}
		return nil, errors.Join(fmt.Errorf("%s: %w", d.name, err), d.Close())
	}
	return d, nil
}

// prepare makes what operations need.
func (d *Device) prepare(c Config) (err error) {
	if d.stream, err = cu.MakeStream(cu.NonBlocking); err != nil {
		return fmt.Errorf("make a stream: %w", err)
	}
	for i := range d.events {
		d.events[i].device = d
		if d.events[i].event, err = cu.MakeEvent(cu.BlockingSyncEvent | cu.DisableTiming); err != nil {
			return fmt.Errorf("make an event: %w", err)
		}
	}
	at, err := driver.HostAlloc(int(unsafe.Sizeof(fault{})))
	if err != nil {
		return err
	}
	d.fault = (*fault)(at)
	*d.fault = fault{}
	if d.staging, err = newStaging(); err != nil {
		return err
	}
	for _, own := range []struct {
		to    *cu.DevicePtr
		bytes int64
	}{{&d.squares, squaresBytes}, {&d.graphs.block, 8 * mostNumbers}} {
		if *own.to, err = d.allocate(own.bytes); err != nil {
			return err
		}
	}
	d.check("zero memory", cu.MemsetD8Async(d.squares, 0, squaresBytes, d.stream))
	d.call.prepare(d)
	products, err := d.chooseProducts(c)
	d.name = fmt.Sprintf("cuda (%s, %s, %s)", d.about, products, d.chooseConvolutions(c))
	return err
}

// chooseProducts opens cuBLAS where there is one that can be used, and says what multiplies.
func (d *Device) chooseProducts(c Config) (products string, err error) {
	const own = "products by our own kernels"
	switch {
	case c.OwnProducts:
		return own + ", as configured", nil
	case c.WithoutBLAS != "":
		return own + ", which are slower: " + c.WithoutBLAS, nil
	}
	if _, err := blas.Load(search(c)); errors.Is(err, library.ErrAbsent) {
		return own + " for want of cuBLAS", nil
	} else if err != nil {
		return own + ", which are slower: " + err.Error(), nil //nolint:nilerr // they do
	}
	if d.workspace, err = d.allocate(blas.WorkspaceBytes); err != nil {
		return "products by cuBLAS", err
	}
	d.blas, err = blas.Open(unsafe.Pointer(d.stream.C()), uintptr(d.workspace), c.TF32)
	switch {
	case errors.Is(err, blas.NoMemory):
		return "products by cuBLAS", err
	case err != nil:
		at := d.workspace
		d.workspace = 0
		return own + ", which are slower: " + err.Error(), cu.MemFree(at)
	}
	return "products by cuBLAS " + d.blas.Version(), nil
}

// chooseConvolutions opens cuDNN where there is one, and says what computes convolutions.
func (d *Device) chooseConvolutions(c Config) string {
	switch {
	case c.OwnProducts || c.OwnConvolutions:
		return "convolutions by products, as configured"
	case c.WithoutDNN != "":
		return "convolutions by products: " + c.WithoutDNN
	}
	found, err := dnn.Open(search(c), unsafe.Pointer(d.stream.C()))
	switch {
	case errors.Is(err, library.ErrAbsent):
		return "convolutions by products for want of cuDNN"
	case err != nil:
		return "convolutions by products: " + err.Error()
	}
	d.dnn = found
	return "convolutions by cuDNN " + found.Version()
}

// search is where cuBLAS and cuDNN are.
func search(c Config) library.Search {
	return library.Search{Directories: c.Libraries, Opening: c.Opening}
}

// enter makes the device's context that of the thread, which the goroutine keeps until leave: drivers keep a context for each thread.
func (d *Device) enter() { d.check("enter the context", d.processor.enter()) }

func (d *Device) leave() { runtime.UnlockOSThread() }

// Name implements device.Device.
func (d *Device) Name() string { return d.name }

// Host implements device.Device.
func (d *Device) Host() bool { return false }

// Shares reports whether operations of d may use memory of another device: both are on one processor, in one process.
func (d *Device) Shares(with device.Device) bool {
	other, ok := with.(*Device)
	return ok && other.processor == d.processor
}

// Alloc implements device.Device.
func (d *Device) Alloc(t device.Type, n int) (device.Mem, error) {
	size := t.Bytes()
	if n < 0 || n > math.MaxInt64/2/size {
		return device.Mem{}, fmt.Errorf("%s: allocate %d elements of %v: expected 0 to %d", d.name, n, t, math.MaxInt64/2/size)
	}
	d.enter()
	defer d.leave()
	bytes := max(int64(n)*int64(size), 1)
	err := d.budget.take(bytes)
	var found cu.DevicePtr
	if err == nil {
		if found, err = d.allocate(bytes); err != nil {
			d.budget.give(bytes)
		}
	}
	if err != nil {
		return device.Mem{}, fmt.Errorf("%s: %d elements of %v: %w", d.name, n, t, err)
	}
	d.check("zero an allocation", cu.MemsetD8Async(found, 0, bytes, d.stream))
	at := *(*unsafe.Pointer)(unsafe.Pointer(&found))
	d.memory[at] = bytes
	return device.NewMem(at, n, t), nil
}

// allocate is memory that nothing was written to.
func (d *Device) allocate(bytes int64) (cu.DevicePtr, error) {
	found, err := cu.MemAlloc(bytes)
	switch {
	case err == nil:
		return found, nil
	case d.lost():
		return 0, fmt.Errorf("allocate memory of the device: %w", d.kept())
	}
	held := int64(0)
	for _, n := range d.memory {
		held += n
	}
	left, all, _ := cu.MemInfo()
	return 0, fmt.Errorf("allocate memory of the device: %w: %d bytes asked for, %d of %d bytes available, %d allocations of %d bytes held here; "+
		"where memory is short, use fewer pipelines, smaller micro-batches or more stages", err, bytes, left, all, len(d.memory), held)
}

// Free implements device.Device. The driver waits for who uses the memory.
func (d *Device) Free(m device.Mem) {
	if m.Absent() {
		return
	}
	bytes, ok := d.memory[m.Pointer()]
	if !ok {
		panic("device: Free: memory that Alloc did not return, or freed before")
	}
	delete(d.memory, m.Pointer())
	d.budget.give(bytes)
	d.enter()
	defer d.leave()
	d.check("destroy graphs", d.graphs.forget(func(g *graph) bool { return g.touches(m) }))
	d.check("free memory", cu.MemFree(address(m)))
}

// address is where m lies, as the driver has it.
func address(m device.Mem) cu.DevicePtr { return cu.DevicePtr(uintptr(m.Pointer())) }

// Upload implements device.Device.
func (d *Device) Upload(dst device.Mem, src []byte) {
	device.CheckLength("Upload", src, dst)
	d.enter()
	defer d.leave()
	if d.processor.isLocked(src) {
		d.uploadLocked(address(dst), src)
		return
	}
	for from := 0; from < len(src); from += partBytes {
		d.upload(address(dst)+cu.DevicePtr(from), src[from:min(from+partBytes, len(src))])
	}
}

// Download implements device.Device.
func (d *Device) Download(dst []byte, src device.Mem) {
	device.CheckLength("Download", dst, src)
	d.enter()
	defer d.leave()
	if d.processor.isLocked(dst) {
		d.downloadLocked(dst, address(src))
		return
	}
	for from := 0; from < len(dst); from += partBytes {
		d.download(dst[from:min(from+partBytes, len(dst))], address(src)+cu.DevicePtr(from))
	}
}

// Record implements device.Device.
func (d *Device) Record() device.Event {
	d.enter()
	defer d.leave()
	e := &d.events[d.next]
	d.next = (d.next + 1) % len(d.events)
	now := d.now()
	d.check("record an event", e.event.Record(d.stream))
	d.mu.Lock()
	defer d.mu.Unlock()
	e.after = now // last: whoever waits for what the event was before must not take it for this
	return e
}

// Wait implements device.Event.
func (e *event) Wait() error {
	d := e.device
	d.enter()
	defer d.leave()
	d.mu.Lock()
	after := e.after
	d.mu.Unlock()
	d.ended(after, e.event.Synchronize())
	return d.found(false)
}

// Follow implements device.Queue.
func (d *Device) Follow(e device.Event) {
	d.enter()
	defer d.leave()
	d.check("wait for an event of another queue", d.stream.Wait(e.(*event).event, 0)) //nolint:forcetypeassert // of a device that Shares
}

// Synchronize implements device.Device. Once the processor's context has failed, every call does, and the first failure stays: it alone names its
// operation.
func (d *Device) Synchronize() error {
	d.enter()
	defer d.leave()
	return d.found(d.drain() == nil)
}

// drain waits for the stream.
func (d *Device) drain() error {
	now := d.now()
	err := d.stream.Synchronize()
	d.ended(now, err)
	return err
}

func (d *Device) now() moment {
	d.mu.Lock()
	defer d.mu.Unlock()
	return moment{d.history.handed, d.staging.handed}
}

// ended notes how what was handed over before a moment ended.
func (d *Device) ended(m moment, err error) {
	if err != nil {
		d.keep(d.lose(d.blame(err)))
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.staging.pass(m.bytes)
	if err == nil {
		d.history.passed = max(d.history.passed, m.operations)
	}
}

// found is the first failure, of a call or in a kernel, which forget forgets.
func (d *Device) found(forget bool) error {
	if err := d.fault.err(forget); err != nil {
		d.keep(fmt.Errorf("run an operation: %w", err))
	}
	err := d.kept()
	if forget {
		d.mu.Lock()
		d.failure = nil
		d.mu.Unlock()
	}
	if err != nil {
		return fmt.Errorf("%s: %w", d.name, err)
	}
	return nil
}

// Close implements device.Device.
func (d *Device) Close() error {
	if !d.open {
		return nil
	}
	d.open = false
	d.enter()
	defer d.leave()
	var failed error // the first: a device that is lost fails each time
	free := func(err error) { failed = cmp.Or(failed, err) }
	for at, bytes := range d.memory {
		d.budget.give(bytes)
		free(cu.MemFree(cu.DevicePtr(uintptr(at))))
	}
	if d.fault != nil {
		free(driver.HostFree(unsafe.Pointer(d.fault)))
	}
	free(d.staging.close())
	for i := range d.events {
		if d.events[i].event != (cu.Event{}) {
			free(cu.DestroyEvent(&d.events[i].event))
		}
	}
	if d.dnn != nil {
		free(d.dnn.Close())
	}
	if d.blas != nil {
		free(d.blas.Close())
	}
	free(d.graphs.forget(func(*graph) bool { return true }))
	for _, own := range []cu.DevicePtr{d.squares, d.graphs.block, d.workspace} {
		if own != 0 {
			free(cu.MemFree(own))
		}
	}
	if d.stream != cu.NoStream {
		free(d.stream.Destroy())
	}
	free(d.release(d))
	if failed != nil {
		return fmt.Errorf("%s: close: %w", d.name, failed)
	}
	return nil
}
