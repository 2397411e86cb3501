package coordinator

import (
	"errors"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"
)

// clocked is a host whose clock the test sets.
type clocked struct {
	host
	at time.Time
}

func (c *clocked) now() time.Time { return c.at }

// TestWhatFailsForAMinuteIsAnError, once, and what fails for less is none: a worker that is killed while it is asked for a commit is found dead in the next moment.
func TestWhatFailsForAMinuteIsAnError(t *testing.T) {
	core, lines := observer.New(zapcore.DebugLevel)
	clock := &clocked{at: time.Now()}
	c := &Coordinator{host: clock, log: zap.New(core), jobs: map[string]*observed{}}
	after := func(d time.Duration, err error, want ...zapcore.Level) {
		t.Helper()
		clock.at = clock.at.Add(d)
		c.conclude("1", true, nil, err)
		said := lines.TakeAll()
		if len(said) != len(want) || len(want) == 1 && said[0].Level != want[0] {
			t.Errorf("after %v with %v: %+v, expected lines at levels %v", d, err, said, want)
		}
	}
	gone := errors.New("commit round 7 on b: connection refused")
	after(0, gone, zapcore.WarnLevel)
	after(time.Second, nil)
	after(2*time.Minute, gone, zapcore.WarnLevel)
	after(59*time.Second, gone, zapcore.WarnLevel)
	after(time.Second, gone, zapcore.ErrorLevel)
	after(time.Second, gone, zapcore.WarnLevel)
	after(time.Second, nil)
	after(time.Second, gone, zapcore.WarnLevel)
}
