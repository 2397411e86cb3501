package gpu

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// told keeps what a monitor tells. It is read when the monitor waits.
type told []string

func (l *told) events() Events {
	return Events{
		Health: func(g GPU, before Health) {
			*l = append(*l, fmt.Sprintf("%s: %s -> %s", g.UUID, before.Level, g.Health))
		},
		XID: func(g GPU, x XID) { *l = append(*l, fmt.Sprintf("%s: XID %d, %d", g.UUID, x.Code, x.Count)) },
		Faults: func(all Faults) {
			for _, uuid := range slices.Sorted(maps.Keys(all)) {
				*l = append(*l, fmt.Sprintf("keep %s: %v, asked %t", uuid, all[uuid].XIDs[0].Code, all[uuid].Asked))
			}
			if len(all) == 0 {
				*l = append(*l, "keep nothing")
			}
		},
		Failure: func(f Failure) { *l = append(*l, fmt.Sprintf("%s: %v", f.Call, f.Err)) },
	}
}

func (l *told) want(t *testing.T, lines ...string) {
	t.Helper()
	if !slices.EqualFunc(*l, lines, strings.HasPrefix) {
		t.Errorf("told was\n  %s\nwant\n  %s", strings.Join(*l, "\n  "), strings.Join(lines, "\n  "))
	}
	*l = nil
}

// watch runs do beside a monitor of a source.
func watch(t *testing.T, f *fake, s Selection, do func(m *Monitor, l *told)) {
	t.Helper()
	watchFrom(t, f, s, nil, do)
}

// watchFrom is watch with what an earlier monitor has kept.
func watchFrom(t *testing.T, f *fake, s Selection, kept Faults, do func(m *Monitor, l *told)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		var l told
		f.xids = make(chan XID) // of this bubble
		m, err := Start(t.Context(), Config{Open: func() (Source, error) { return f, nil }, Select: s, Events: l.events(), Faults: kept})
		if err != nil {
			t.Fatal(err)
		}
		ctx, end := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { m.Run(ctx); close(done) }()
		synctest.Wait()
		do(m, &l)
		end()
		<-done
	})
	if !f.closed {
		t.Error("the source is not closed")
	}
}

// later lets the monitor sample so many times.
func later(samples int) {
	time.Sleep(time.Duration(samples)*10*time.Second + time.Second)
	synctest.Wait()
}

func TestHealthFollowsReadingsAndIsToldOnChange(t *testing.T) {
	f := newFake(2)
	watch(t, f, Selection{}, func(m *Monitor, l *told) {
		l.want(t)
		later(3)
		l.want(t)
		f.set(func() { f.found[1].Readings.Rows = &Rows{Failed: true} })
		later(2)
		l.want(t, "GPU-1: healthy -> sick: a bad row of its memory could not be remapped")
		if usable := Usable(m.GPUs()); len(usable) != 1 || usable[0].UUID != "GPU-0" {
			t.Errorf("usable are %v", usable)
		}
		f.set(func() { f.found[1].Readings.Rows.Failed = false })
		later(1)
		l.want(t, "GPU-1: sick -> healthy")
	})
}

func TestAnXIDIsToldAndJudgedAtOnce(t *testing.T) {
	f := newFake(2)
	watch(t, f, Selection{Wanted: []string{"1"}}, func(m *Monitor, l *told) {
		for _, x := range []XID{{GPU: "GPU-1", Code: 31}, {GPU: "GPU-0", Code: 79}, {GPU: "GPU-1", Code: 31}, {GPU: "GPU-1", Code: 79}} {
			f.xids <- x
			synctest.Wait()
		}
		l.want(t, "GPU-1: XID 31, 1", "GPU-1: XID 31, 2", "GPU-1: XID 79, 1", "GPU-1: healthy -> sick: XID 79: it has fallen off the bus", "keep GPU-1: 79")
		s := m.Status()
		if len(s) != 1 || len(s[0].XIDs) != 2 || s[0].XIDs[0].Count != 2 || s[0].XIDs[0].At.IsZero() {
			t.Errorf("status is %+v", s)
		}
	})
}

func TestAnXIDOfADividedProcessorIsOneOfEachInstance(t *testing.T) {
	f := newFake(0)
	for _, g := range found() {
		f.found = append(f.found, Sample{GPU: g})
	}
	watch(t, f, Selection{}, func(m *Monitor, _ *told) {
		f.xids <- XID{GPU: "GPU-bb", Code: 95}
		synctest.Wait()
		if usable := Usable(m.GPUs()); len(usable) != 2 || usable[0].UUID != "GPU-aa11" || usable[1].UUID != "GPU-cc11" {
			t.Errorf("usable are %v", usable)
		}
	})
}

func TestAProcessorThatIsListedNoMoreIsSick(t *testing.T) {
	f := newFake(2)
	watch(t, f, Selection{}, func(_ *Monitor, l *told) {
		f.set(func() { f.found = f.found[1:] })
		later(1)
		l.want(t, "GPU-0: healthy -> sick: the driver lists it no more")
	})
}

// A source that lists processors and reads nothing leaves them usable, but does not make them healthy.
func TestAProcessorThatNobodyReadsIsNotCalledHealthy(t *testing.T) {
	f := newFake(2)
	for i := range f.found {
		f.found[i].Readings.Unread = "no library"
	}
	watchFrom(t, f, Selection{}, Faults{"GPU-1": fault(79)}, func(m *Monitor, l *told) {
		l.want(t, "GPU-0: healthy -> unknown: nothing is known of its health: no library", "GPU-1: healthy -> sick: XID 79")
		if usable := Usable(m.GPUs()); len(usable) != 1 || usable[0].UUID != "GPU-0" {
			t.Errorf("usable are %v", usable)
		}
	})
}

func TestAFailureIsToldOnce(t *testing.T) {
	f := newFake(1)
	watch(t, f, Selection{}, func(m *Monitor, l *told) {
		f.set(func() { f.failures = []Failure{{"power of GPU 0", errors.New("unknown")}} })
		later(5)
		l.want(t, "power of GPU 0: unknown")
		f.set(func() { f.failures, f.err = nil, errors.New("no more") })
		later(6)
		l.want(t, "sample the processors: no more", "GPU-0: healthy -> degraded: the driver does not answer")
		f.set(func() { f.err = nil })
		later(1)
		l.want(t, "GPU-0: degraded -> healthy")
		if n := len(Usable(m.GPUs())); n != 1 {
			t.Errorf("%d are usable", n)
		}
	})
}

func TestADriverThatHangsIsToldAndLeftBehind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, hang := newFake(1), make(chan struct{})
		var l told
		m, err := Start(t.Context(), Config{Open: func() (Source, error) { return f, nil }, Events: l.events()})
		if err != nil {
			t.Fatal(err)
		}
		ctx, end := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { m.Run(ctx); close(done) }()
		f.set(func() { f.hang = hang })
		later(10)
		l.want(t, "GPU-0: healthy -> degraded: the driver does not answer")
		end()
		<-done
		l.want(t, "wait for the driver's last answer: there was none")
		if f.closed {
			t.Error("a driver is closed while a call is in it")
		}
		close(hang)
	})
}

func TestStartWithoutADriver(t *testing.T) {
	for _, c := range []struct {
		wanted []string
		err    string
		told   []string
	}{
		{nil, "", []string{"open the driver: no graphics processors: no library"}},
		{[]string{"all"}, "", []string{"open the driver: no graphics processors: no library"}},
		{[]string{"none"}, "", nil},
		{[]string{"0"}, "the GPUs that are asked for cannot be used: no graphics processors: no library", nil},
	} {
		var l told
		open := func() (Source, error) { return nil, fmt.Errorf("%w: no library", ErrNone) }
		m, err := Start(t.Context(), Config{Open: open, Select: Selection{Wanted: c.wanted}, Events: l.events()})
		if (err == nil) != (c.err == "") || err != nil && err.Error() != c.err {
			t.Errorf("%v: error is %v, want %q", c.wanted, err, c.err)
			continue
		}
		l.want(t, c.told...)
		if err == nil {
			ended, end := context.WithCancel(t.Context())
			end()
			m.Run(ended)
			if len(m.GPUs()) != 0 || m.Status() == nil {
				t.Errorf("%v: processors are %v", c.wanted, m.Status())
			}
		}
	}
}

func TestStartRefusesProcessorsThatAreNotThere(t *testing.T) {
	f := newFake(2)
	var l told
	_, err := Start(t.Context(), Config{Open: func() (Source, error) { return f, nil }, Select: Selection{Wanted: []string{"5"}}, Events: l.events()})
	if err == nil || err.Error() != "the GPUs that are asked for cannot be used: there is no GPU 5; found: 0 (A100, GPU-0), 1 (A100, GPU-1)" || !f.closed {
		t.Errorf("error is %v", err)
	}
}

func TestStartDoesNotWaitForADriverThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hang := make(chan struct{})
		open := func() (Source, error) { <-hang; return nil, ErrNone }
		var l told
		m, err := Start(t.Context(), Config{Open: open, Events: l.events()})
		if err != nil || len(m.GPUs()) != 0 {
			t.Errorf("%v, error %v", m.GPUs(), err)
		}
		l.want(t, "open the driver: the driver has not answered for 30s")
		if _, err := Start(t.Context(), Config{Open: open, Select: Selection{Wanted: []string{"0"}}, Events: l.events()}); err == nil {
			t.Error("processors that are asked for are not there")
		}
		close(hang)
	})
}
