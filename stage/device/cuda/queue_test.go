//go:build cuda && cgo && linux && amd64

package cuda_test

import (
	"slices"
	"testing"

	"github.com/avgpipe/avgpipe/stage/device"
	"github.com/avgpipe/avgpipe/stage/device/cuda/cudatest"
	"github.com/avgpipe/avgpipe/stage/device/ref"
)

// pending is a download, and the event after it.
type pending struct {
	got   []float32
	want  float32
	event device.Event
}

// A goroutine waits for results while the device's hands over more, as executors do; events come again every 64.
func TestResultsAreThereWhenTheirEventsPass(t *testing.T) {
	d := open(t, cudatest.Library(t))
	const n, turns = 3000, 300
	x, sent := alloc(t, d, n), make([]float32, n)
	results, done := make(chan pending, 3), make(chan struct{})
	go func() {
		defer close(done)
		for p := range results {
			if err := p.event.Wait(); err != nil {
				t.Error(err)
			}
			if p.got[0] != p.want || p.got[n-1] != p.want {
				t.Errorf("%v and %v came, want %v", p.got[0], p.got[n-1], p.want)
			}
		}
	}()
	for i := range turns {
		for j := range sent {
			sent[j] = float32(i)
		}
		d.Upload(x, device.FloatBytes(sent))
		d.Do(&device.Scale{X: x, A: 2})
		p := pending{got: make([]float32, n), want: float32(2 * i)}
		d.Download(device.FloatBytes(p.got), x)
		p.event = d.Record()
		results <- p
	}
	close(results)
	<-done
	if err := d.Close(); err != nil {
		t.Error(err)
	}
}

// What is larger than the page-locked ring goes through it in parts.
func TestMoreThanTheRingHolds(t *testing.T) {
	d := open(t, cudatest.Library(t))
	const n = 25 << 20
	x, sent, got := alloc(t, d, n), make([]float32, n), make([]float32, n)
	for i := range sent {
		sent[i] = float32(i)
	}
	d.Upload(x, device.FloatBytes(sent))
	clear(sent[:n/2]) // an upload has taken what it copies
	if err := device.Read(d, device.FloatBytes(got), x); err != nil {
		t.Fatal(err)
	}
	for i, v := range got {
		if v != float32(i) {
			t.Fatalf("element %d is %v", i, v)
		}
	}
	if err := d.Close(); err != nil {
		t.Error(err)
	}
}

// What a queue is given after Follow runs after the event.
func TestAQueueFollowsAnother(t *testing.T) {
	library := cudatest.Library(t)
	d := device.NewQueues([]device.Queue{open(t, library), open(t, library), open(t, library)})
	d.Use(1)
	x := alloc(t, d, 1000)
	d.Use(0)
	y := alloc(t, d, 1000)
	for range 100 { // more than a ring of events
		d.Use(1)
		d.Upload(x, device.FloatBytes(slices.Repeat([]float32{3}, 1000)))
		d.Use(0)
		d.Do(&device.Copy{Y: y, X: x})
		d.Use(2)
		d.Do(&device.Axpy{Y: y, A: 2, X: x})
		d.Use(0)
		d.Do(&device.Zero{X: x})
		d.Use(1)
		got := make([]float32, 1000)
		if err := device.Read(d, device.FloatBytes(got), y); err != nil || got[0] != 9 || got[999] != 9 {
			t.Fatalf("found %v and %v, %v, want 9", got[0], got[999], err)
		}
	}
	if calls := library.Calls("cuStreamWaitEvent"); calls < 300 {
		t.Errorf("%d waits for events", calls)
	}
	if err := d.Close(); err != nil {
		t.Error(err)
	}
}

// Page-locked memory is copied as it is when the queue comes to it, without a ring between.
func TestHostMemoryOfADeviceIsCopiedInPlace(t *testing.T) {
	d := open(t, cudatest.Library(t))
	x, sent, got := alloc(t, d, 1000), d.AllocHost(4000), d.AllocHost(4000)
	if len(sent) != 4000 || len(got) != 4000 {
		t.Fatalf("%d and %d bytes", len(sent), len(got))
	}
	d.Upload(x, sent)
	d.Download(got, x)
	device.Values[float32](sent)[999] = 5 // what an upload has not taken yet
	if err := d.Record().Wait(); err != nil || device.Values[float32](got)[999] != 5 {
		t.Errorf("found %v, %v, want 5", device.Values[float32](got)[999], err)
	}
	if err := d.Close(); err != nil {
		t.Error(err)
	}
}

// Two devices on one processor share its kernels and its memory, and each has a queue of its own.
func TestDevicesShareAProcessor(t *testing.T) {
	library := cudatest.Library(t)
	one, other := open(t, library), open(t, library)
	if got := library.Calls("cuModuleLoadData"); got != 1 {
		t.Errorf("the driver compiled the kernels %d times, want once", got)
	}
	if !one.Shares(other) || !one.Shares(one) || one.Shares(ref.New()) {
		t.Error("the devices share no memory, or one shares that of package ref")
	}
	x, y, sum, got := alloc(t, one, 3000), alloc(t, other, 3000), alloc(t, other, 2).As(device.F64, 1), [1]float64{}
	one.Upload(x, device.FloatBytes(slices.Repeat([]float32{2}, 3000)))
	if err := one.Record().Wait(); err != nil {
		t.Fatal(err)
	}
	other.Do(&device.Axpy{Y: y, A: 2, X: x})
	other.Do(&device.SquaredNorm{Sum: sum, X: y})
	if err := one.Close(); err != nil { // x is freed when nobody uses it any more
		t.Error(err)
	}
	if err := device.Read(other, device.DoubleBytes(got[:]), sum); err != nil || got[0] != 16*3000 {
		t.Errorf("the sum of squares is %v: %v", got[0], err)
	}
	if err := other.Close(); err != nil {
		t.Error(err)
	}
	if held := library.Held(); held != 0 {
		t.Errorf("closed devices hold %d bytes", held)
	}
}
