package raftlog

import (
	"context"
	"net"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/avgpipe/avgpipe/internal/cluster"
)

// overTCP opens a new log whose node is reached over TCP.
func overTCP(t *testing.T, name string, joins bool) *Log {
	t.Helper()
	return openTCP(t, Config{Dir: filepath.Join(t.TempDir(), name), NodeID: name, Joins: joins})
}

// openTCP opens a log whose node is reached over TCP, at a port of its own.
func openTCP(t *testing.T, config Config) *Log {
	t.Helper()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	dial := func(ctx context.Context, address string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "tcp", address)
	}
	config.HeartbeatTimeout = 300 * time.Millisecond
	config.Transport = NewTransport(listener, listener.Addr().String(), dial, zap.NewNop())
	l, err := Open(config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	return l
}

func address(l *Log) string { return string(l.config.Transport.LocalAddr()) }

func TestNodesJoinVoteAndTakeOver(t *testing.T) {
	t.Parallel()
	a := overTCP(t, "a", false)
	if err := a.WaitReady(t.Context()); err != nil {
		t.Fatal(err)
	}
	if !<-a.Leadership() {
		t.Fatal("the first node does not lead")
	}
	logs := map[string]*Log{"b": overTCP(t, "b", true), "c": overTCP(t, "c", true)}
	for _, name := range []string{"b", "c"} {
		if err := a.AddNode(t.Context(), name, address(logs[name]), false); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := a.Apply(t.Context(), &cluster.SubmitJob{Name: "first"}); err != nil {
		t.Fatal(err)
	}
	members, err := a.Members()
	if err != nil || len(members) != 3 || !slices.Equal(Voters(members), []string{"a"}) {
		t.Fatalf("members %+v, %v", members, err)
	}
	for name, l := range logs {
		waitFor(t, l, "the first job", func(s *cluster.State) bool { return len(s.Jobs()) == 1 })
		if l.Age() > time.Minute || l.Leader() != "a" {
			t.Errorf("%s: age %v, leader %q", name, l.Age(), l.Leader())
		}
		if err := a.AddNode(t.Context(), name, address(l), true); err != nil {
			t.Fatal(err)
		}
	}
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	var next *Log
	select {
	case <-logs["b"].Leadership():
		next = logs["b"]
	case <-logs["c"].Leadership():
		next = logs["c"]
	case <-t.Context().Done():
		t.Fatal("nobody leads")
	}
	if err := next.Leading(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := next.Apply(t.Context(), &cluster.SubmitJob{Name: "second"}); err != nil {
		t.Fatal(err)
	}
}
