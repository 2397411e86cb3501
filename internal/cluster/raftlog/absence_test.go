package raftlog

import (
	"strings"
	"testing"

	"github.com/avgpipe/avgpipe/internal/cluster"
)

// snapshottedLog makes a log whose first entries are only in its snapshots, closed.
func snapshottedLog(t *testing.T) (dir string) {
	t.Helper()
	dir = t.TempDir()
	l, err := Open(Config{Dir: dir, NodeID: "a", SnapshotThreshold: 1})
	if err != nil {
		t.Fatal(err)
	}
	if err := l.WaitReady(t.Context()); err != nil {
		t.Fatal(err)
	}
	for range 5 {
		if _, err := l.Apply(t.Context(), &cluster.SubmitJob{Name: "x"}); err != nil {
			t.Fatal(err)
		}
	}
	if err := l.Snapshot(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Apply(t.Context(), &cluster.RequestCancel{Job: "1"}); err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	return dir
}

// TestLogOfAnotherNodeIsRefused at once: it would wait for a leader for ever.
func TestLogOfAnotherNodeIsRefused(t *testing.T) {
	dir := t.TempDir()
	writtenLog(t, dir, 1)
	_, err := Open(Config{Dir: dir, NodeID: "b"})
	if err == nil || !strings.Contains(err.Error(), "it is the log of node a, and this node is b") {
		t.Errorf("error %v", err)
	}
}
