//go:build cuda && cgo && linux && amd64

package cuda_test

import (
	"testing"

	"github.com/avgpipe/avgpipe/stage/device"
	"github.com/avgpipe/avgpipe/stage/device/cuda/cudatest"
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
