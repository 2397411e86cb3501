//go:build cuda && cgo && linux && amd64

package cuda

import (
	"cmp"
	"errors"
	"fmt"
	"runtime"
	"time"
	"unsafe"

	"gorgonia.org/cu"

	"github.com/avgpipe/avgpipe/stage/device"
	"github.com/avgpipe/avgpipe/stage/device/cuda/driver"
	"github.com/avgpipe/avgpipe/stage/device/cuda/library"
	"github.com/avgpipe/avgpipe/stage/device/cuda/nccl"
)

// Transport copies memory of one processor to memory of another, on streams of its own. It must be closed before the devices.
type Transport struct {
	name     string
	from, to side
	hand     func(dst, src cu.DevicePtr, bytes int) error // hands a copy to the streams
	staging  []byte                                       // page-locked memory, of the transport through the host
	pair     *nccl.Pair                                   // of NCCL
	stuck    bool                                         // a copy has not ended, whatever was done
}

// side is what a transport has on one of its processors.
type side struct {
	*processor
	stream cu.Stream
	event  cu.Event
}

// limit is how long a copy may take. lookout is how often a failure is looked for meanwhile.
var limit, lookout = time.Minute, 100 * time.Millisecond

// stagedBytes is how much crosses the host at once: while it goes on to the second processor, what follows comes from the first.
const stagedBytes = 4 << 20

// Apart reports whether two devices are on different processors, both in this process: Transports copies between them.
func Apart(a, b device.Device) bool {
	from, of := device.Of[*Device](a)
	to, other := device.Of[*Device](b)
	return of && other && from.processor != to.processor
}

// Transports opens the ways to copy up to so many bytes from one device to another, which are Apart. The first needs the driver alone. The error says
// why others are left out; NCCL that is not installed is no reason.
func Transports(a, b device.Device, c Config, bytes int) (found []*Transport, err error) {
	from, _ := device.Of[*Device](a)
	to, _ := device.Of[*Device](b)
	for _, prepare := range []func(*Transport) error{(*Transport).byPeers, func(t *Transport) error { return t.byHost(bytes) }, func(t *Transport) error { return t.byNCCL(c) }} {
		t := &Transport{from: side{processor: from.processor}, to: side{processor: to.processor}}
		failed := t.open(prepare)
		if failed == nil {
			found = append(found, t)
			continue
		}
		if !errors.Is(failed, library.ErrAbsent) {
			err = errors.Join(err, fmt.Errorf("copy from %v to %v: %w", &t.from, &t.to, failed))
		}
		err = errors.Join(err, t.Close())
	}
	return found, err
}

func (t *Transport) open(prepare func(*Transport) error) error {
	for _, s := range []*side{&t.from, &t.to} {
		if err := s.open(); err != nil {
			return err
		}
	}
	return prepare(t)
}

// byPeers has the driver copy from processor to processor. Where they cannot reach each other's memory, it goes through the host by itself.
func (t *Transport) byPeers() error {
	t.name = "copies through the host by the driver"
	if reaches, err := t.to.gpu.CanAccessPeer(t.from.gpu); err != nil {
		return fmt.Errorf("ask whether the memory can be reached: %w", err)
	} else if reaches != 0 {
		err := t.to.on(func() error { return t.from.context.EnablePeerAccess(0) })
		if err != nil && !errors.Is(err, cu.PeerAccessAlreadyEnabled) {
			return fmt.Errorf("reach the memory: %w", err)
		}
		t.name = "peer copies"
	}
	t.hand = func(dst, src cu.DevicePtr, bytes int) error {
		return t.to.on(func() error {
			return cu.MemcpyPeerAsync(dst, t.to.context, src, t.from.context, int64(bytes), t.to.stream)
		})
	}
	return nil
}

// byHost copies through page-locked memory.
func (t *Transport) byHost(bytes int) error {
	t.name = "page-locked memory"
	at, err := driver.HostAlloc(bytes)
	if err != nil {
		return err
	}
	t.staging = unsafe.Slice((*byte)(at), bytes)
	t.hand = func(dst, src cu.DevicePtr, bytes int) (err error) {
		if bytes > len(t.staging) {
			return fmt.Errorf("the page-locked memory has %d bytes", len(t.staging))
		}
		for at := 0; at < bytes && err == nil; at += stagedBytes {
			part := t.staging[at:min(at+stagedBytes, bytes)]
			err = t.stage(part, dst+cu.DevicePtr(at), src+cu.DevicePtr(at))
		}
		return err
	}
	return nil
}

// stage copies to page-locked memory and, when that has ended, on to the other processor.
func (t *Transport) stage(part []byte, dst, src cu.DevicePtr) error {
	host, bytes := unsafe.Pointer(unsafe.SliceData(part)), int64(len(part))
	err := t.from.on(func() error {
		return cmp.Or(cu.MemcpyDtoHAsync(host, src, bytes, t.from.stream), t.from.event.Record(t.from.stream))
	})
	if err != nil {
		return err
	}
	return t.to.on(func() error {
		return cmp.Or(t.to.stream.Wait(t.from.event, 0), cu.MemcpyHtoDAsync(dst, host, bytes, t.to.stream))
	})
}

// byNCCL has NCCL send and receive.
func (t *Transport) byNCCL(c Config) error {
	if c.WithoutNCCL != "" {
		return errors.New(c.WithoutNCCL)
	}
	if _, err := nccl.Load(search(c)); err != nil {
		return err
	}
	t.name = "NCCL " + nccl.Version()
	var pair *nccl.Pair
	open := func() (err error) {
		pair, err = nccl.Open(t.from.ordinal, t.to.ordinal)
		return err
	}
	err := nccl.Alone(func() error {
		return t.within("make communicators of NCCL", func() error { return t.from.on(open) })
	})
	if err != nil {
		return err
	}
	t.pair = pair
	t.hand = func(dst, src cu.DevicePtr, bytes int) error {
		return t.to.on(func() error {
			return t.pair.Copy(uintptr(dst), uintptr(src), bytes, unsafe.Pointer(t.from.stream.C()), unsafe.Pointer(t.to.stream.C()))
		})
	}
	return nil
}

// Name says how it copies.
func (t *Transport) Name() string { return t.name }

// Copy copies src to dst, which are as long, and returns when that has ended. After a failure nothing writes to dst any more, unless the error says that
// a copy has not ended.
func (t *Transport) Copy(dst, src device.Mem) error {
	if dst.Bytes() != src.Bytes() {
		return fmt.Errorf("copy %d bytes to memory of %d", src.Bytes(), dst.Bytes())
	}
	do := func() error {
		ended := make(chan error, 1)
		go func() { ended <- t.copy(address(dst), address(src), src.Bytes()) }()
		return t.await(ended)
	}
	var err error
	if t.pair != nil {
		err = nccl.Alone(do)
	} else {
		err = do()
	}
	if err != nil {
		err = cmp.Or(t.from.failed(t.from.stream), t.to.failed(t.to.stream), err) // by an operation, which fails a copy too
		return fmt.Errorf("copy %d bytes from %v to %v by %s: %w", src.Bytes(), &t.from, &t.to, t.name, err)
	}
	return nil
}

// copy is Copy without a limit.
func (t *Transport) copy(dst, src cu.DevicePtr, bytes int) error {
	err := t.hand(dst, src, bytes)
	return cmp.Or(err, t.from.wait(), t.to.wait())
}

// await waits for the end of a copy, as long as it may take, and looks out for failures of NCCL, after which a copy may never end.
func (t *Transport) await(ended <-chan error) error {
	tick := time.NewTicker(lookout)
	defer tick.Stop()
	for begun := time.Now(); ; {
		select {
		case err := <-ended:
			return err
		case <-tick.C:
		}
		var err error
		if t.pair != nil {
			err = t.pair.Failed()
		}
		if err == nil && time.Since(begun) > limit {
			err = fmt.Errorf("not ended after %v", limit)
		}
		if err != nil {
			return t.giveUp(ended, err)
		}
	}
}

// giveUp ends a copy, where that is possible.
func (t *Transport) giveUp(ended <-chan error, why error) error {
	err := t.within("end the copy", func() error {
		if t.pair != nil {
			t.pair.Abort()
		}
		<-ended //nolint:errcheck // of a copy that was ended
		return nil
	})
	if err != nil {
		return fmt.Errorf("%w; %w", why, err)
	}
	return why
}

// within does something that may never end. Past the limit it is left to itself, and the transport is stuck.
func (t *Transport) within(doing string, do func() error) error {
	ended := make(chan error, 1)
	go func() { ended <- do() }()
	select {
	case err := <-ended:
		return err
	case <-time.After(limit):
		t.stuck = true
		return fmt.Errorf("%s: %w after %v; its streams stay until the process ends", doing, nccl.ErrHung, limit)
	}
}

// Close frees what it has. What is stuck stays until the process ends.
func (t *Transport) Close() (err error) {
	if t.stuck {
		return nil
	}
	if t.pair != nil {
		err = t.free()
	}
	if t.stuck {
		return fmt.Errorf("close the copies from %v to %v by %s: %w", &t.from, &t.to, t.name, err)
	}
	if t.staging != nil {
		err = errors.Join(err, driver.HostFree(unsafe.Pointer(unsafe.SliceData(t.staging))))
	}
	if err = errors.Join(err, t.from.close(), t.to.close()); err != nil {
		return fmt.Errorf("close the copies from %v to %v by %s: %w", &t.from, &t.to, t.name, err)
	}
	return nil
}

// free frees the communicators. Where NCCL is not called any more they stay, which the error of what hung says.
func (t *Transport) free() error {
	err := nccl.Alone(func() error {
		return t.within("destroy the communicators", func() error { return t.from.on(t.pair.Close) })
	})
	if !t.stuck && errors.Is(err, nccl.ErrHung) {
		return nil
	}
	return err
}

// on does something in the processor's context.
func (p *processor) on(do func() error) error {
	err := p.enter()
	defer runtime.UnlockOSThread()
	if err != nil {
		return fmt.Errorf("enter the context: %w", err)
	}
	return do()
}

// String names the processor for people.
func (s *side) String() string { return fmt.Sprintf("GPU %d (%s)", s.ordinal, s.about) }

func (s *side) open() error {
	return s.on(func() (err error) {
		if s.stream, err = cu.MakeStream(cu.NonBlocking); err != nil {
			return fmt.Errorf("make a stream: %w", err)
		}
		if s.event, err = cu.MakeEvent(cu.BlockingSyncEvent | cu.DisableTiming); err != nil {
			return fmt.Errorf("make an event: %w", err)
		}
		return nil
	})
}

// wait waits for the stream.
func (s *side) wait() error {
	return s.on(func() error { return cmp.Or(s.event.Record(s.stream), s.event.Synchronize()) })
}

func (s *side) close() error {
	return s.on(func() (err error) {
		if s.event != (cu.Event{}) {
			err = cu.DestroyEvent(&s.event)
		}
		if s.stream != cu.NoStream {
			err = errors.Join(err, s.stream.Destroy())
		}
		return err
	})
}
