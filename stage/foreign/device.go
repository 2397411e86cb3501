package foreign

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"

	"github.com/avgpipe/avgpipe/stage/device"
)

// Device computes modules in a Process, and all else on a device of this one whose memory is the host's.
type Device struct {
	on      device.Device
	process *Process
	sets    map[string]*bound // of parameters, by where they lie
	all     []*bound          // by number
	calls   map[string]int    // the numbers of forwards and backwards that the process remembers, by all that they say but what changes
	kept    map[int]*bound    // the set of each forward whose backward has not run, by where its Keep lies
	locked  map[int]bool      // allocations that the process was told to page-lock, by where they lie
	key     []byte
	queue   []any // requests that wait until something else needs what they make
	failure error // the first since the last Synchronize
}

var (
	_ device.Device   = (*Device)(nil)
	_ device.Threaded = (*Device)(nil)
)

// Over returns a device that computes on another one, which Close closes, as it does the process.
func Over(p *Process, on device.Device) *Device {
	return &Device{on: on, process: p, sets: map[string]*bound{}, calls: map[string]int{}, kept: map[int]*bound{}, locked: map[int]bool{}}
}

// Asked is a device that is asked what it has, and does not compute.
func Asked(on device.Device) *Device { return &Device{on: on} }

// Name implements device.Device.
func (d *Device) Name() string {
	name := fmt.Sprintf("%s, and modules in Python %s", d.on.Name(), d.process.python)
	if d.process.config.GPU != "" {
		name += " on " + d.process.config.GPU
	}
	return name
}

// Host implements device.Device: only the arena is memory that both processes have.
func (d *Device) Host() bool { return false }

// Attach implements device.Threaded.
func (d *Device) Attach() error {
	if t, ok := d.on.(device.Threaded); ok {
		return t.Attach()
	}
	return nil
}

// Alloc implements device.Device.
func (d *Device) Alloc(t device.Type, n int) (device.Mem, error) {
	if err := device.CheckHostAlloc(t, n); err != nil {
		return device.Mem{}, err
	}
	p := d.process.arena.alloc(n * t.Bytes())
	if p == nil {
		return device.Mem{}, fmt.Errorf("device: allocate %d elements of %v: %d bytes do not fit into the shared memory", n, t, n*t.Bytes())
	}
	return device.NewMem(p, n, t), nil
}

// Free implements device.Device.
func (d *Device) Free(m device.Mem) {
	if m.Absent() {
		return
	}
	d.touch(m, true)
	from := d.at(m)
	for at := range d.kept {
		if from <= at && at < from+m.Bytes() {
			delete(d.kept, at)
			d.queue = append(d.queue, dropRequest{"drop", at})
		}
	}
	d.flush()
	if err := d.unlock(from); err != nil {
		d.fail(err) // the GPU may still write there, so nothing else may have it
		return
	}
	d.fail(d.process.arena.release(m.Pointer()))
}

// Upload implements device.Device.
func (d *Device) Upload(dst device.Mem, src []byte) {
	d.touch(dst, true)
	d.flush()
	d.on.Upload(dst, src)
}

// Download implements device.Device.
func (d *Device) Download(dst []byte, src device.Mem) {
	d.touch(src, false)
	d.flush()
	d.on.Download(dst, src)
}

// Record implements device.Device.
func (d *Device) Record() device.Event { return nil }

// Synchronize implements device.Device.
func (d *Device) Synchronize() error {
	d.flush()
	err := errors.Join(d.failure, d.on.Synchronize())
	d.failure = nil
	return err
}

// Close implements device.Device.
func (d *Device) Close() error {
	err := d.on.Close()
	if d.process != nil {
		err = errors.Join(err, d.process.Close())
	}
	return err
}

// Has implements device.Device.
func (d *Device) Has(op device.Op) bool {
	switch op.(type) {
	case *device.ModulesForward, *device.ModulesBackward:
		return true
	}
	return d.on.Has(op)
}

// Do implements device.Device. Modules wait in a queue until another operation needs what they make, so that several are one message. After a
// failure they do nothing until Synchronize.
func (d *Device) Do(op device.Op) {
	switch o := op.(type) {
	case *device.ModulesForward:
		device.Check(op)
		d.forward(o)
	case *device.ModulesBackward:
		device.Check(op)
		d.backward(o)
	default:
		d.touchAll(op)
		d.flush()
		d.on.Do(op)
	}
}

// flush has the process do what is queued.
func (d *Device) flush() {
	if len(d.queue) == 0 {
		return
	}
	if d.failure == nil {
		request := d.queue[0]
		if len(d.queue) > 1 {
			request = batchRequest{"batch", d.queue}
		}
		if err := d.process.train(request); err != nil {
			d.fail(err)
			for _, b := range d.all {
				b.told, b.pending = false, d.process.copies // a bind or a gather may not have been reached
			}
			clear(d.calls)
		}
	}
	clear(d.queue)
	d.queue = d.queue[:0]
}

// lock has the process page-lock what crosses, where that makes copies faster: all of the allocation that it lies in, if that has pages of its own.
func (d *Device) lock(lists ...[]device.Mem) {
	if !d.process.locks {
		return
	}
	for _, list := range lists {
		for _, m := range list {
			if m.Absent() {
				continue
			}
			if s := d.process.arena.around(d.at(m)); s.bytes >= arenaLarge && !d.locked[s.from] {
				d.locked[s.from] = true
				d.queue = append(d.queue, lockRequest{"lock", s.from, s.bytes})
			}
		}
	}
}

// unlock ends that, before memory is freed. It does not wait in the queue, which a failure drops.
func (d *Device) unlock(from int) error {
	if !d.locked[from] {
		return nil
	}
	delete(d.locked, from)
	clear(d.calls) // what lies there next is locked when it is first said
	return d.process.train(unlockRequest{"unlock", from})
}

func (d *Device) fail(err error) {
	if d.failure == nil {
		d.failure = err
	}
}

func (d *Device) forward(o *device.ModulesForward) {
	set, seeds, keep := d.set(o), make([]uint64, len(o.Streams)), d.at(o.Keep)
	for i := range seeds {
		seeds[i] = o.Seed(o.First + i)
	}
	if keep >= 0 {
		d.kept[keep] = set
	}
	begins, changed := o.By.Begins || !o.Training, set.changed && d.process.copies
	set.changed = false
	d.says(1, set.bind.Set, keep, truth(o.Training), truth(o.Counts), d.at(o.UserLoss))
	d.lie(o.In, o.Out, o.Targets)
	call, again := d.call()
	if again {
		d.queue = append(d.queue, againRequest{"again", call, seeds, begins, changed})
		return
	}
	r := forwardRequest{
		Request: "forward", Set: set.bind.Set, First: o.First, Seeds: seeds, Inputs: d.tensors(o.In, o.Inputs), Keep: d.place(o.Keep),
		Train: o.Training, Begins: begins, Changed: changed, Count: o.Counts, Call: call,
	}
	if o.Loss {
		r.Loss = &lossOf{d.tensors(o.Targets, o.Modules.Targets), d.at(o.UserLoss)}
	} else {
		r.Outputs = d.tensors(o.Out, o.Outputs)
	}
	d.lock(o.In, o.Out, o.Targets)
	d.queue = append(d.queue, r)
}

func (d *Device) backward(o *device.ModulesBackward) {
	keep := d.at(o.Keep)
	if set := d.kept[keep]; set != nil {
		set.pending = d.process.copies
	}
	delete(d.kept, keep)
	d.says(2, keep, int(math.Float32bits(o.Weight)))
	d.lie(o.DOut, o.DIn)
	call, again := d.call()
	if again {
		d.queue = append(d.queue, againRequest{Request: "again", Call: call})
		return
	}
	d.lock(o.DOut, o.DIn)
	d.queue = append(d.queue, backwardRequest{"backward", keep, d.places(o.DOut), d.places(o.DIn), o.Weight, call})
}

// mostCalls bounds how many calls the process remembers.
const mostCalls = 1 << 12

// call is the number of the call that key says, and whether the process remembers it.
func (d *Device) call() (number int, again bool) {
	if number, again = d.calls[string(d.key)]; again {
		return number, true
	}
	if len(d.calls) == mostCalls {
		clear(d.calls)
	}
	number = len(d.calls)
	d.calls[string(d.key)] = number
	return number, false
}

// says begins key with numbers.
func (d *Device) says(numbers ...int) {
	d.key = d.key[:0]
	for _, n := range numbers {
		d.key = binary.LittleEndian.AppendUint64(d.key, uint64(n)) //nolint:gosec // -1 is another number
	}
}

// lie adds to key where tensors lie.
func (d *Device) lie(lists ...[]device.Mem) {
	for _, list := range lists {
		for _, m := range list {
			d.key = binary.LittleEndian.AppendUint64(d.key, uint64(d.at(m))) //nolint:gosec // -1 is another number
			d.key = binary.LittleEndian.AppendUint64(d.key, uint64(m.Len())) //nolint:gosec // not negative
		}
	}
}

func truth(b bool) int {
	if b {
		return 1
	}
	return 0
}

// at is where a tensor lies; -1: it is absent.
func (d *Device) at(m device.Mem) int {
	if m.Absent() {
		return -1
	}
	return d.process.arena.offset(m.Pointer())
}

func (d *Device) place(m device.Mem) *int {
	if m.Absent() {
		return nil
	}
	at := d.at(m)
	return &at
}

func (d *Device) places(all []device.Mem) []*place {
	out := make([]*place, len(all))
	for i, m := range all {
		out[i] = d.placeOf(m)
	}
	return out
}

func (d *Device) placeOf(m device.Mem) *place {
	if m.Absent() {
		return nil
	}
	return &place{d.at(m)}
}

func (d *Device) tensors(all []device.Mem, of []device.ModuleTensor) []tensor {
	out := make([]tensor, len(all))
	for i, m := range all {
		out[i] = tensor{d.at(m), of[i].Shape, of[i].Type.String(), of[i].Differentiable}
	}
	return out
}
