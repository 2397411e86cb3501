package emulated

import (
	"testing"
	"time"

	"github.com/avgpipe/avgpipe/stage/device"
)

const ms = time.Millisecond

// host is a machine on which time passes only where a device waits, where arithmetic takes it, and where the test says so.
type host struct {
	nothing
	now        time.Time
	arithmetic time.Duration // of an operation
}

func (h *host) Do(device.Op) { h.now = h.now.Add(h.arithmetic) }

// on is a device on a machine whose arithmetic takes so long.
func on(t *testing.T, c Config, arithmetic time.Duration) (*Device, *host) {
	t.Helper()
	h := &host{now: time.Now(), arithmetic: arithmetic}
	d, err := Over(c, h)
	if err != nil {
		t.Fatal(err)
	}
	d.clock.now = func() time.Time { return h.now }
	d.clock.wait = func(until time.Time) {
		if until.After(h.now) {
			h.now = until
		}
	}
	return d, h
}

// takes is how long f takes on the machine.
func (h *host) takes(f func()) time.Duration {
	begin := h.now
	f()
	return h.now.Sub(begin)
}

var passes = Config{Stages: []Times{{Forward: 20 * ms, Backward: 40 * ms, Step: ms}}}

func synchronize(t *testing.T, d *Device) {
	t.Helper()
	if err := d.Synchronize(); err != nil {
		t.Error(err)
	}
}

// pass runs a pass of one operation.
func (d *Device) pass(kind device.WorkKind) {
	d.Begin(device.Work{Kind: kind})
	d.Do(&device.Scale{})
	d.Record()
}

func TestArithmeticThatIsFasterThanDictatedChangesNoTime(t *testing.T) {
	for _, arithmetic := range []time.Duration{0, ms, 20 * ms} {
		d, h := on(t, passes, arithmetic)
		took := h.takes(func() {
			d.pass(device.ForwardWork)
			d.pass(device.BackwardWork)
			h.now = h.now.Add(5 * ms) // idle
			d.pass(device.ForwardWork)
		})
		if took != 85*ms || d.Lag() != 0 {
			t.Errorf("with arithmetic of %v passes of 20, 40 and 20 ms and 5 ms between them took %v, lag %v", arithmetic, took, d.Lag())
		}
	}
}

// What ends late ends when the arithmetic has, and is late by as much as that took longer; the next begins then.
func TestArithmeticThatIsSlowerThanDictatedIsLag(t *testing.T) {
	d, h := on(t, passes, 27*ms)
	if took := h.takes(func() { d.pass(device.ForwardWork) }); took != 27*ms || d.Lag() != 7*ms {
		t.Errorf("a forward of 20 ms took %v, lag %v, want 27ms and 7ms", took, d.Lag())
	}
	if took := h.takes(func() { d.pass(device.BackwardWork) }); took != 40*ms || d.Lag() != 7*ms {
		t.Errorf("a backward of 40 ms took %v, lag %v, want 40ms and 7ms", took, d.Lag())
	}
	h.now = h.now.Add(time.Hour)
	synchronize(t, d)
	if d.Lag() != 7*ms {
		t.Errorf("with nothing to do the lag became %v, want 7ms", d.Lag())
	}
	if took := h.takes(func() { d.pass(device.ForwardWork) }); took != 27*ms || d.Lag() != 14*ms {
		t.Errorf("a forward of 20 ms took %v, lag %v, want 27ms and 14ms", took, d.Lag())
	}
}

// Other work runs beside forwards and backwards while they wait, and takes none of their time; where it takes longer than they do, that is lag.
func TestOtherWorkRunsBesidePasses(t *testing.T) {
	d, h := on(t, passes, 0)
	served, takes := 0, time.Duration(0)
	d.WhileWaiting(func() {
		served++
		d.Do(&device.Scale{})
		d.Record()
		h.now = h.now.Add(takes)
	})
	for kind, want := range map[device.WorkKind]time.Duration{device.ForwardWork: 20 * ms, device.BackwardWork: 40 * ms, device.UpdateWork: ms} {
		served = 0
		if took := h.takes(func() { d.pass(kind) }); took != want || d.Lag() != 0 || (served > 0) != (kind != device.UpdateWork) {
			t.Errorf("a pass of kind %d took %v, lag %v, want %v; other work was done %d times", kind, took, d.Lag(), want, served)
		}
	}
	takes = 50 * ms
	if took := h.takes(func() { d.pass(device.ForwardWork) }); took < 50*ms || d.Lag() != took-20*ms {
		t.Errorf("a forward of 20 ms beside other work of 50 ms took %v, lag %v", took, d.Lag())
	}
}

// Delays that the next pass makes up for count once, however many passes show them.
func TestWhatIsMadeUpForCountsOnce(t *testing.T) {
	d, h := on(t, passes, 20*ms+40*time.Microsecond)
	d.pass(device.ForwardWork)
	h.arithmetic = 0
	took := h.takes(func() { d.pass(device.BackwardWork) })
	if want := 40*ms - 40*time.Microsecond; took != want || d.Lag() != 40*time.Microsecond {
		t.Errorf("a backward after a forward that was 40us late took %v, lag %v, want %v", took, d.Lag(), want)
	}
	h.arithmetic = 20*ms + 30*time.Microsecond
	for range 3 { // 30us, 60us, 90us late: each begins when the one before should have ended
		d.pass(device.ForwardWork)
	}
	if want := 130 * time.Microsecond; d.Lag() != want {
		t.Errorf("lag %v, want %v", d.Lag(), want)
	}
}

// Operations take what they cost one after the other, and the machine is late only where it is behind at the end.
func TestOperationsAreLateTogether(t *testing.T) {
	d, h := on(t, Config{Launch: 2 * ms}, 3*ms)
	took := h.takes(func() {
		for range 4 {
			d.Do(&device.Scale{})
		}
		d.Record()
	})
	if took != 12*ms || d.Lag() != 4*ms {
		t.Errorf("4 operations of 2 ms took %v, lag %v, want 12ms and 4ms", took, d.Lag())
	}
	h.arithmetic = 5 * ms
	took = h.takes(func() {
		d.Do(&device.Scale{})
		h.arithmetic = 0
		for range 3 {
			d.Do(&device.Scale{})
		}
		d.Record()
	})
	if took != 8*ms || d.Lag() != 4*ms {
		t.Errorf("4 operations of 2 ms took %v, lag %v, want 8ms and 4ms", took, d.Lag())
	}
}

// Averaging takes no time where nobody dictates one. Its arithmetic is hidden by a pass that follows at once, and lag before a pause.
func TestWorkBetweenPassesIsHiddenOrLag(t *testing.T) {
	d, h := on(t, passes, 3*ms)
	took := h.takes(func() {
		d.Do(&device.Scale{})
		d.pass(device.ForwardWork)
	})
	if took != 20*ms || d.Lag() != 0 {
		t.Errorf("an operation of no time and a forward of 20 ms took %v, lag %v", took, d.Lag())
	}
	d.Do(&device.Scale{})
	h.now = h.now.Add(time.Hour)
	synchronize(t, d)
	if d.Lag() != 3*ms {
		t.Errorf("an operation of no time was late by %v when somebody waited for it an hour later, want 3ms", d.Lag())
	}
	if took = h.takes(func() { d.pass(device.ForwardWork) }); took != 20*ms || d.Lag() != 3*ms {
		t.Errorf("a forward of 20 ms after an hour took %v, lag %v, want 20ms and 3ms", took, d.Lag())
	}
}
