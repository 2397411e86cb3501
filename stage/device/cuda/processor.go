//go:build cuda && cgo && linux && amd64

package cuda

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"unsafe"

	"gorgonia.org/cu"

	"github.com/avgpipe/avgpipe/stage/device/cuda/driver"
)

// processor is a graphics processor as the devices of this process share it: its context, and the kernels, which the driver compiles once.
type processor struct {
	ordinal int
	gpu     cu.Device
	major   int          // of its compute capability
	about   string       // what it is, for people
	context cu.CUContext // the process's one for this processor
	module  cu.Module
	kernels map[string]cu.Function
	devices []*Device  // that are open on it; processors guards them
	alone   sync.Mutex // of the operation of a device that is Synchronous

	mu      sync.Mutex
	locked  map[unsafe.Pointer]int // the bytes of page-locked memory that AllocHost gave out
	failure error                  // of the context, as it was first seen: it does not recover
	budget  budget
}

// processors are those in use, by their numbers.
var processors = struct {
	sync.Mutex
	used map[int]*processor
}{used: map[int]*processor{}}

// acquire gives the device the processor of a number. It calls release when it closes.
func (d *Device) acquire(ordinal int, limit int64) error {
	processors.Lock()
	defer processors.Unlock()
	p := processors.used[ordinal]
	if p == nil {
		p = &processor{ordinal: ordinal, kernels: map[string]cu.Function{}, locked: map[unsafe.Pointer]int{}}
		if err := p.choose(); err != nil {
			return err
		}
		if err := p.load(); err != nil {
			return errors.Join(fmt.Errorf("%s: %w", p.about, err), p.gpu.ReleasePrimaryCtx())
		}
		processors.used[ordinal] = p
	}
	d.processor, p.devices = p, append(p.devices, d)
	p.budget.bound(limit)
	return nil
}

// release gives the processor back. The last device to do so frees what they share, and a context that has failed ends.
func (p *processor) release(d *Device) error {
	processors.Lock()
	defer processors.Unlock()
	p.devices = slices.DeleteFunc(p.devices, func(one *Device) bool { return one == d })
	if len(p.devices) > 0 {
		return nil
	}
	delete(processors.used, p.ordinal)
	return errors.Join(p.unlock(), p.module.Unload(), p.gpu.ReleasePrimaryCtx())
}

// shared reports whether several devices are open on it.
func (p *processor) shared() bool {
	processors.Lock()
	defer processors.Unlock()
	return len(p.devices) > 1
}

// choose finds the processor, and takes its context.
func (p *processor) choose() error {
	count, err := cu.NumDevices()
	if err != nil {
		return fmt.Errorf("count the graphics processors: %w", err)
	}
	if p.ordinal >= count {
		return fmt.Errorf("graphics processor %d: the driver shows %d, numbered from 0; see CUDA_VISIBLE_DEVICES", p.ordinal, count)
	}
	if p.gpu, err = cu.GetDevice(p.ordinal); err != nil {
		return fmt.Errorf("graphics processor %d: %w", p.ordinal, err)
	}
	name, _ := p.gpu.Name()
	p.major, _ = p.gpu.Attribute(cu.ComputeCapabilityMajor)
	minor, _ := p.gpu.Attribute(cu.ComputeCapabilityMinor)
	version := cu.Version()
	p.about = fmt.Sprintf("%s, compute %d.%d, driver for CUDA %d.%d", name, p.major, minor, version/1000, version%1000/10)
	if p.major < LeastCapability {
		return fmt.Errorf("graphics processor %d, %s, has compute capability %d.%d, expected %d.0 or above", p.ordinal, name, p.major, minor,
			LeastCapability)
	}
	if p.context, err = p.gpu.RetainPrimaryCtx(); err != nil {
		return fmt.Errorf("take the context of %s: %w", p.about, err)
	}
	return nil
}

// load gives the driver the kernels: machine code, or what it compiles itself.
func (p *processor) load() error {
	err := p.enter()
	defer runtime.UnlockOSThread()
	if err != nil {
		return fmt.Errorf("enter the context: %w", err)
	}
	var refused error
	for _, name := range imagesFor(p.major) {
		code, about, err := openImage(name)
		if err != nil {
			return err
		}
		if p.module, err = cu.LoadData(code); err != nil {
			refused = errors.Join(refused, fmt.Errorf("load the kernels, %s: %w", name, err))
			continue
		}
		p.about += ", " + about
		return p.find(code)
	}
	return refused
}

// find finds the kernels of an image that was loaded.
func (p *processor) find(code string) (err error) {
	for _, name := range kernelNames.FindAllStringSubmatch(code, -1) {
		if p.kernels[name[1]], err = p.module.Function(name[1]); err != nil {
			return fmt.Errorf("find the kernel %s: %w", name[1], err)
		}
	}
	for name, bytes := range dynamicShared {
		kernel := p.kernels[name]
		if err := driver.AllowShared(*(*unsafe.Pointer)(unsafe.Pointer(&kernel)), bytes); err != nil {
			return fmt.Errorf("kernel %s: %d bytes: %w", name, bytes, err)
		}
	}
	return nil
}

// enter makes the context that of the thread, which the goroutine keeps: drivers keep a context for each thread.
func (p *processor) enter() error {
	runtime.LockOSThread()
	return cu.SetCurrentContext(p.context)
}
