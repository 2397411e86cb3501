//go:build ucx && cgo && linux

package ucx_test

import (
	"errors"
	"fmt"
	"os"
	"testing"

	"go.uber.org/goleak"

	"github.com/avgpipe/avgpipe/internal/wire"
	"github.com/avgpipe/avgpipe/internal/wire/ucx"
	"github.com/avgpipe/avgpipe/internal/wire/wiretest"
)

func TestMain(m *testing.M) {
	if os.Getenv(childVariable) == "" {
		goleak.VerifyTestMain(m)
		return
	}
	if err := child(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func transport(t testing.TB, devices string) *ucx.Transport {
	t.Helper()
	u, err := ucx.New(devices)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := u.Close(); err != nil {
			t.Error(err)
		}
	})
	return u
}

func TestUCX(t *testing.T) {
	u := transport(t, "lo")
	wiretest.Conform(t, func(t *testing.T, s wire.Spec) (wire.End, wire.End) {
		return connect(t, s, wire.Config{Job: "j", Paths: &wire.Paths{Transport: u, Always: true}})
	})
}

var link = wire.Link{Purpose: wire.Training, Pipeline: 1, Lower: 0, Upper: 1}

// connect makes a link whose frames UCX carries.
func connect(t testing.TB, s wire.Spec, c wire.Config) (lower, upper wire.End) {
	t.Helper()
	l, err := wire.Listen(t.Context(), "127.0.0.1:0", s.Generation, c)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	s.Watch = &wire.Watch{}
	accepted, failed := make(chan wire.End, 1), make(chan error, 1)
	go func() {
		e, err := l.Accept(t.Context(), link, s)
		accepted <- e
		failed <- err
	}()
	own := s
	own.Watch = &wire.Watch{}
	lower, err = wire.Dial(t.Context(), l.Address(), link, own, c)
	upper = <-accepted
	if err := errors.Join(err, <-failed); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, e := range []wire.End{lower, upper} {
			if err := e.Close(errors.New("test over")); err != nil {
				t.Error(err)
			}
		}
	})
	for _, w := range []*wire.Watch{s.Watch, own.Watch} {
		if o, _ := w.Observation(); o.Choice.Over != "ucx" {
			t.Fatalf("frames go by %+v, expected UCX", o.Choice)
		}
	}
	return lower, upper
}
