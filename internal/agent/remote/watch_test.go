package remote

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/avgpipe/avgpipe/internal/agent"
	"github.com/avgpipe/avgpipe/internal/api"
	"github.com/avgpipe/avgpipe/internal/worker/control"
)

func said(round uint64, state api.State) agent.Event {
	return agent.Event{Status: &control.Status{Final: 100, Progress: api.JobStatus{State: state, Round: round}}}
}

// TestStatusesAreSpacedOut as long as they say nothing that is decided by; whatever else is said comes at once, with the status before it.
func TestStatusesAreSpacedOut(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		var told []string
		tell := func(e agent.Event) {
			what := "exit"
			switch {
			case e.Status != nil:
				what = fmt.Sprintf("%s %d", e.Status.Progress.State, e.Status.Progress.Round)
			case e.Worker != nil:
				what = string(e.Worker.Kind)
			case e.Silent > 0:
				what = "silent"
			}
			told = append(told, fmt.Sprintf("%dms %s", time.Since(began).Milliseconds(), what))
		}
		w := &watch{changed: make(chan struct{})}
		ended := make(chan error)
		go func() { ended <- w.follow(t.Context(), func() time.Duration { return time.Second }, tell) }()
		for _, e := range []agent.Event{
			said(0, api.Starting), said(0, api.Running), // at once: it trains
			said(1, api.Running), said(2, api.Running), said(3, api.Running), // the last of these after a second
			said(4, api.Running),
			{Worker: &control.Event{Kind: control.Shard}}, // at once, with the status before it
			said(5, api.Running),
			{Worker: &control.Event{Kind: control.Finished}},
			said(6, api.Running),
			{Silent: time.Second},
			said(100, api.Running), // at once: it is where training ends
			{Exit: &agent.Exit{}},
		} {
			synctest.Wait()
			w.add(e)
			synctest.Wait()
			time.Sleep(300 * time.Millisecond)
		}
		w.end(nil)
		if err := <-ended; err != nil {
			t.Error(err)
		}
		want := []string{
			"0ms starting 0", "300ms running 0", "1300ms running 3", "1800ms running 4", "1800ms shard", "2400ms running 5", "2400ms finished", "3000ms silent", "3000ms running 6", "3300ms running 100", "3600ms exit",
		}
		if !slices.Equal(told, want) {
			t.Errorf("told %q\nwant %q", told, want)
		}
	})
}

func TestAStatusThatIsKeptBackEndsWithWhoAsked(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := &watch{changed: make(chan struct{})}
		ctx, cancel := context.WithCancelCause(t.Context())
		ended, gone := make(chan error), errors.New("gone")
		go func() { ended <- w.follow(ctx, func() time.Duration { return time.Hour }, func(agent.Event) {}) }()
		w.add(said(1, api.Running))
		synctest.Wait()
		w.add(said(2, api.Running))
		synctest.Wait()
		cancel(gone)
		if err := <-ended; !errors.Is(err, gone) {
			t.Error(err)
		}
	})
}
