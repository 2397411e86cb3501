package pipeline

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/avgpipe/avgpipe/schedule"
	"github.com/avgpipe/avgpipe/stage"
	"github.com/avgpipe/avgpipe/stage/device"
	"github.com/avgpipe/avgpipe/stage/device/cuda"
	"github.com/avgpipe/avgpipe/stage/stagetest"
)

// far is a device that shares memory with no other, and whose boundaries are copied.
type far struct{ *stagetest.Late }

func farApart() device.Device { return far{stagetest.NewLate()} }

// copied reports whether boundaries between two devices are copied from memory to memory.
func copied(a, b device.Device) bool {
	_, one := a.(far)
	_, other := b.(far)
	return one && other && a != b || cuda.Apart(a, b)
}

// fakeTransport copies between far devices, through the host. It may be slow, and fail from a copy on.
type fakeTransport struct {
	name     string
	from, to device.Device
	slow     time.Duration
	fails    int64 // the first copy that fails, from 1; 0: none
	copies   atomic.Int64
	closed   atomic.Bool
	leaks    error // of Close
}

func (f *fakeTransport) Name() string { return f.name }

func (f *fakeTransport) Copy(dst, src device.Mem) error {
	if f.closed.Load() {
		return errors.New("copied after Close")
	}
	if n := f.copies.Add(1); f.fails > 0 && n >= f.fails {
		return fmt.Errorf("copy %d bytes by %s: the wire is cut", src.Bytes(), f.name)
	}
	time.Sleep(f.slow)
	if f.from == nil {
		return nil
	}
	host := make([]byte, src.Bytes())
	f.from.Download(host, src)
	if err := f.from.Record().Wait(); err != nil {
		return err
	}
	f.to.Upload(dst, host)
	return f.to.Record().Wait()
}

func (f *fakeTransport) Close() error {
	if f.closed.Swap(true) {
		return errors.New("closed twice")
	}
	return f.leaks
}

// between opens a transport for devices that are copied between.
func between(from, to device.Device) []Transport {
	return []Transport{&fakeTransport{name: "plain", from: from, to: to}}
}

// trainApart trains on devices whose boundaries are copied by transports, and returns what it says, and how many boundaries crossed in device memory
// and in host memory.
func trainApart(
	t *testing.T, open func() device.Device, transports func(from, to device.Device, bytes int) []Transport, grid schedule.Plan, pipelines int, told func(RouteReport),
) (numbers []float64, inDevice, inHost int64, err error) {
	t.Helper()
	var log modelLog
	var onDevice, onHost atomic.Int64
	var devices []device.Device
	c := modelConfig(t, func() device.Device {
		devices = append(devices, open())
		return devices[len(devices)-1]
	}, grid, pipelines, device.F32, &log)
	c.Transports = func(from, to, bytes int) []Transport { return transports(devices[from], devices[to], bytes) }
	c.Events.OnRoute = told
	for i := range c.Stages {
		build := c.Stages[i].Build
		c.Stages[i].Build = func(p int) (stage.Stage, error) {
			s, err := build(p)
			if err != nil {
				return nil, err
			}
			return handing{s.(*stage.Computed), &onDevice, &onHost}, nil
		}
	}
	g, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	err = g.Run(t.Context())
	return log.numbers(pipelines), onDevice.Load(), onHost.Load(), err
}

// TestBoundariesAreCopiedFromDeviceToDevice trains by every schedule on devices that share nothing, to the bits of one device.
func TestBoundariesAreCopiedFromDeviceToDevice(t *testing.T) {
	for _, pipelines := range someIfRaced([]int{1, 2}, 2) {
		want := trainModel(t, plan(t, "gpipe", 1, modelMicros), pipelines)
		for _, devices := range someIfRaced([]int{2, 3}, 3) {
			for _, name := range schedule.Names() {
				if _, updates := asynchronous[name]; updates {
					continue
				}
				t.Run(fmt.Sprintf("N%d_%s_K%d", pipelines, name, devices), func(t *testing.T) {
					t.Parallel()
					grid := plan(t, name, devices, modelMicros)
					got, inDevice, inHost, err := trainApart(t, farApart, func(from, to device.Device, _ int) []Transport { return between(from, to) }, grid, pipelines, nil)
					if err != nil {
						t.Fatal(err)
					}
					if !slices.Equal(got, want) {
						t.Errorf("losses, norms and evaluations\n%v, want\n%v", got, want)
					}
					crossings := 0
					for k, row := range grid.Placement()[1:] {
						if row != grid.Placement()[k] {
							crossings += 2 * modelMicros * pipelines * 6
						}
					}
					if inDevice < int64(crossings) || inHost != 0 {
						t.Errorf("%d boundaries crossed in device memory and %d in host memory, want at least %d and 0", inDevice, inHost, crossings)
					}
				})
			}
		}
	}
}

// TestATrainingGoesOnWhenATransportFails by the one that it falls back to, and says so once for each direction. Without another it ends.
func TestATrainingGoesOnWhenATransportFails(t *testing.T) {
	want := trainModel(t, plan(t, "gpipe", 1, modelMicros), 1)
	var mu sync.Mutex
	var told []RouteReport
	tell := func(r RouteReport) {
		mu.Lock()
		defer mu.Unlock()
		told = append(told, r)
	}
	const broken = trials + 10
	got, _, _, err := trainApart(t, farApart, func(from, to device.Device, _ int) []Transport {
		plain := between(from, to)
		plain[0].(*fakeTransport).slow = 20 * time.Millisecond
		return append(plain, &fakeTransport{name: "fast", from: from, to: to, fails: broken})
	}, plan(t, "1f1b", 2, modelMicros), 1, tell)
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("losses, norms and evaluations\n%v (%v), want\n%v", got, err, want)
	}
	failed := 0
	for _, r := range told {
		if r.Failed != nil {
			failed++
			if r.Transport != "plain" || !strings.Contains(r.Failed.Error(), "by fast: the wire is cut") {
				t.Errorf("told %+v", r)
			}
		} else if r.Transport != "fast" || r.BytesPerSecond <= 0 || len(r.Measured) != 2 || r.Bytes == 0 {
			t.Errorf("told %+v, expected the fast one", r)
		}
	}
	if failed != 2 || len(told) != 4 {
		t.Errorf("told %d times, %d of them of failures, expected 4 and 2", len(told), failed)
	}
	_, _, _, err = trainApart(t, farApart, func(from, to device.Device, _ int) []Transport {
		return []Transport{&fakeTransport{name: "only", from: from, to: to, fails: broken}}
	}, plan(t, "1f1b", 2, modelMicros), 1, nil)
	if err == nil || !strings.Contains(err.Error(), "by only: the wire is cut") {
		t.Errorf("the training ended with %v, expected why no boundary crosses", err)
	}
}

// TestARouteTakesTheFastestTransport that works, keeps the first to fall back to, and closes the rest.
func TestARouteTakesTheFastestTransport(t *testing.T) { synctest.Test(t, takesTheFastestTransport) }

func takesTheFastestTransport(t *testing.T) {
	first := &fakeTransport{name: "first", slow: 20 * time.Millisecond}
	slow := &fakeTransport{name: "slow", slow: 40 * time.Millisecond, leaks: errors.New("a stream stays")}
	fast, broken := &fakeTransport{name: "fast"}, &fakeTransport{name: "broken", fails: 1}
	m := device.NewSymbol(device.F32, 100)
	r, err := newRoute(RouteReport{From: 1, To: 2, Bytes: 400}, nil, []Transport{first, slow, fast, broken}, m, m)
	if err != nil {
		t.Fatal(err)
	}
	var order []string
	for _, m := range r.report.Measured {
		order = append(order, m.Transport)
	}
	if r.report.Transport != "fast" || !slices.Equal(order, []string{"fast", "first", "slow", "broken"}) || r.report.Measured[3].Failed == nil || r.report.Measured[2].Failed == nil {
		t.Errorf("the route is %+v", r.report)
	}
	if !slow.closed.Load() || !broken.closed.Load() || first.closed.Load() || fast.closed.Load() {
		t.Error("other transports are open than the fastest and the first")
	}
	if err := r.close(); err != nil || !first.closed.Load() || !fast.closed.Load() {
		t.Errorf("close: %v", err)
	}
	_, err = newRoute(RouteReport{From: 1, To: 2, Bytes: 400}, nil, []Transport{&fakeTransport{name: "broken", fails: 1}}, m, m)
	if err == nil || !strings.Contains(err.Error(), "boundaries of 400 bytes from the device of stage 1 to that of stage 2") || !strings.Contains(err.Error(), "cut") {
		t.Errorf("a route without transports: %v", err)
	}
}

// A transport hands work to a device that its owner waits for meanwhile. The race detector watches.
func TestALateDeviceIsHandedWorkWhileItsOwnerWaits(t *testing.T) {
	d := stagetest.NewLate()
	m, err := d.Alloc(device.F32, 1)
	if err != nil {
		t.Fatal(err)
	}
	var transport sync.WaitGroup
	got := []float32{0}
	transport.Go(func() {
		for i := range 1000 {
			d.Upload(m, device.FloatBytes([]float32{float32(i)}))
		}
		d.Download(device.FloatBytes(got), m)
	})
	for range 1000 {
		if err := d.Synchronize(); err != nil {
			t.Error(err)
		}
	}
	transport.Wait()
	if err := d.Close(); err != nil {
		t.Error(err)
	}
	if got[0] != 999 {
		t.Errorf("read %v, want 999, the last one sent", got[0])
	}
}
