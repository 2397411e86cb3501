package foreign

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/avgpipe/avgpipe/stage/device"
)

// Device computes modules in a Process, and all else on a device of this one whose memory is the host's.
type Device struct {
	on      device.Device
	process *Process
	sets    map[string]int // of parameters, by where they lie
	kept    map[int]bool   // where the Keep lies of each forward whose backward has not run
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
	return &Device{on: on, process: p, sets: map[string]int{}, kept: map[int]bool{}}
}

// Asked is a device that is asked what it has, and does not compute.
func Asked(on device.Device) *Device { return &Device{on: on} }

// Name implements device.Device.
func (d *Device) Name() string {
	return fmt.Sprintf("%s, and modules in Python %s", d.on.Name(), d.process.python)
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
	from := d.at(m)
	for at := range d.kept {
		if from <= at && at < from+m.Bytes() {
			delete(d.kept, at)
			d.queue = append(d.queue, dropRequest{"drop", at})
		}
	}
	d.flush()
	d.fail(d.process.arena.release(m.Pointer()))
}

// Upload implements device.Device.
func (d *Device) Upload(dst device.Mem, src []byte) {
	d.flush()
	d.on.Upload(dst, src)
}

// Download implements device.Device.
func (d *Device) Download(dst []byte, src device.Mem) {
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
		at := d.at(o.Keep)
		delete(d.kept, at)
		d.queue = append(d.queue, backwardRequest{"backward", at, d.places(o.DOut), d.places(o.DIn), o.Weight})
	default:
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
			clear(d.sets) // a bind may not have been reached
		}
	}
	clear(d.queue)
	d.queue = d.queue[:0]
}

func (d *Device) fail(err error) {
	if d.failure == nil {
		d.failure = err
	}
}

func (d *Device) forward(o *device.ModulesForward) {
	r := forwardRequest{
		Request: "forward", Set: d.set(o), First: o.First, Inputs: d.tensors(o.In, o.Inputs), Train: o.Training, Begins: o.By.Begins || !o.Training, Count: o.Counts,
	}
	if o.Loss {
		r.Loss = &lossOf{d.tensors(o.Targets, o.Modules.Targets), tensor{At: d.at(o.Losses), Shape: []int{o.Losses.Len()}, Type: o.Losses.Type().String()}, o.Ignores}
	} else {
		r.Outputs = d.tensors(o.Out, o.Outputs)
	}
	for i := range o.Streams {
		r.Seeds = append(r.Seeds, o.Seed(o.First+i))
	}
	if !o.Keep.Absent() {
		at := d.at(o.Keep)
		r.Keep = &at
		d.kept[at] = true
	}
	d.queue = append(d.queue, r)
}

// set is the number of the parameters that lie here, which the process is told when they are new to it.
func (d *Device) set(o *device.ModulesForward) int {
	d.key = binary.LittleEndian.AppendUint64(d.key[:0], uint64(o.First))    //nolint:gosec // not negative
	d.key = binary.LittleEndian.AppendUint64(d.key, uint64(len(o.Streams))) // several may begin with the same
	for i := range o.Params {
		for _, m := range []device.Mem{o.Params[i], o.Grads[i], o.Sums[i]} {
			d.key = binary.LittleEndian.AppendUint64(d.key, uint64(d.at(m))) //nolint:gosec // -1 is another number
		}
	}
	if set, ok := d.sets[string(d.key)]; ok {
		return set
	}
	r := bindRequest{Request: "bind", Set: len(d.sets), First: o.First, Last: o.First + len(o.Streams), Parameters: make([][2]*int, len(o.Params))}
	for i := range o.Params {
		second := o.Grads[i]
		if second.Absent() {
			second = o.Sums[i]
		}
		r.Parameters[i] = [2]*int{d.place(o.Params[i]), d.place(second)}
	}
	d.queue = append(d.queue, r)
	d.sets[string(d.key)] = r.Set
	return r.Set
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
