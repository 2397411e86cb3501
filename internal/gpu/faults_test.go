package gpu

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

func fault(codes ...uint64) (f Fault) {
	for _, code := range codes {
		f.XIDs = append(f.XIDs, XID{Code: code, Count: 1, At: time.Unix(1000, 0)})
	}
	return f
}

func TestAnXIDIsKeptOverARestart(t *testing.T) {
	f := newFake(2)
	var kept Faults
	watch(t, f, Selection{}, func(m *Monitor, l *told) {
		f.xids <- XID{GPU: "GPU-1", Code: 31} // of the application
		synctest.Wait()
		l.want(t, "GPU-1: XID 31")
		for range 2 { // the second says no more than the first
			f.xids <- XID{GPU: "GPU-1", Code: 79}
			synctest.Wait()
		}
		l.want(t, "GPU-1: XID 79", "GPU-1: healthy -> sick: XID 79", "keep GPU-1: 79, asked false", "GPU-1: XID 79")
		kept = m.kept
	})
	watchFrom(t, f, Selection{}, kept, func(m *Monitor, l *told) {
		l.want(t, "GPU-1: healthy -> sick: XID 79")
		if s := m.Status()[1]; len(s.XIDs) != 1 || s.XIDs[0].Code != 79 {
			t.Errorf("XIDs are %+v", s.XIDs)
		}
	})
}

func TestAFaultEndsWithTheResetThatTheDriverAskedFor(t *testing.T) {
	f := newFake(1)
	watchFrom(t, f, Selection{}, Faults{"GPU-0": fault(119)}, func(_ *Monitor, l *told) {
		f.set(func() { f.found[0].Readings.Recovery = RecoverNone }) // it may never have asked
		later(1)
		l.want(t, "GPU-0: healthy -> sick: XID 119")
		f.set(func() { f.found[0].Readings.Recovery = RecoverReset })
		later(1)
		l.want(t, "GPU-0: sick -> sick: XID 119", "keep GPU-0: 119, asked true")
	})
	asked := fault(119)
	asked.Asked = true
	f.set(func() { f.found[0].Readings.Recovery = RecoverNone })
	watchFrom(t, f, Selection{}, Faults{"GPU-0": asked}, func(_ *Monitor, l *told) { l.want(t, "keep nothing") })
	f.set(func() { f.found[0].Readings.Recovery = "" }) // a driver that does not say
	watchFrom(t, f, Selection{}, Faults{"GPU-0": asked}, func(_ *Monitor, l *told) { l.want(t, "GPU-0: healthy -> sick: XID 119") })
}

func TestAPersonClearsAFault(t *testing.T) {
	f := newFake(2)
	kept := Faults{"GPU-0": fault(79), "GPU-1": fault(48, 79), "GPU-gone": fault(79)}
	watchFrom(t, f, Selection{}, kept, func(m *Monitor, l *told) {
		l.want(t, "GPU-0: healthy -> sick: XID 79", "GPU-1: healthy -> sick: XID 48")
		f.set(func() { f.found[1].Readings.Rows = &Rows{Pending: true} })
		later(1)
		l.want(t, "GPU-1: sick -> sick: XID 48")
		if err := m.Clear(context.WithoutCancel(t.Context()), "1"); err != nil {
			t.Error(err)
		}
		l.want(t, "GPU-1: sick -> degraded: a bad row", "keep GPU-0: 79, asked false", "keep GPU-gone: 79, asked false")
		if err := m.Clear(context.WithoutCancel(t.Context()), "GPU-gone"); err != nil {
			t.Error(err)
		}
		l.want(t, "keep GPU-0: 79, asked false")
		refused := func(word, want string) {
			err := m.Clear(context.WithoutCancel(t.Context()), word)
			if !errors.Is(err, ErrNoFault) || err.Error() != "no errors to clear: "+want {
				t.Errorf("clear GPU %s: %v, want %q", word, err, want)
			}
		}
		refused("1", "nothing is kept of GPU 1 (A100, GPU-1); errors are kept of: GPU-0")
		refused("7", "there is no GPU 7; jobs may use: 0 (A100, GPU-0), 1 (A100, GPU-1); errors are kept of: GPU-0")
		if err := m.Clear(context.WithoutCancel(t.Context()), "0"); err != nil {
			t.Error(err)
		}
		l.want(t, "GPU-0: sick -> healthy", "keep nothing")
		refused("0", "nothing is kept of GPU 0 (A100, GPU-0); errors are kept of: none")
	})
	if len(kept) != 3 {
		t.Errorf("what it began with is %v now", kept)
	}
}

// Where there is no driver, what was kept stays, and can be cleared.
func TestFaultsOutliveAnAbsentDriver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l told
		open := func() (Source, error) { return nil, ErrNone }
		m, err := Start(t.Context(), Config{Open: open, Events: l.events(), Faults: Faults{"GPU-0": fault(79), "GPU-1": fault(79)}})
		if err != nil {
			t.Fatal(err)
		}
		l.want(t, "open the driver")
		ctx, end := context.WithCancel(t.Context())
		defer synctest.Wait()
		defer end()
		go m.Run(ctx)
		if err := m.Clear(context.WithoutCancel(t.Context()), "GPU-1"); err != nil {
			t.Error(err)
		}
		l.want(t, "keep GPU-0: 79, asked false")
	})
}
