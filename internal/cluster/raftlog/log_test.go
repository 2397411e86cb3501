package raftlog

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/hashicorp/raft"
	"go.uber.org/goleak"

	"github.com/avgpipe/avgpipe/internal/cluster"
)

func TestMain(m *testing.M) {
	// Raft leaves futures unanswered when it stops.
	goleak.VerifyTestMain(m, goleak.IgnoreTopFunction("github.com/hashicorp/raft.(*deferError).Error"))
}

// openLone opens the log of a lone node, ready to use.
func openLone(t testing.TB, dir string) *Log {
	t.Helper()
	l, err := Open(Config{Dir: dir, NodeID: "a"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := l.WaitReady(ctx); err != nil {
		t.Fatal(err)
	}
	return l
}

// Snapshot makes Raft write a snapshot now, as it does by itself every SnapshotThreshold entries.
func (l *Log) Snapshot(ctx context.Context) error {
	return l.wait(ctx, "snapshot", func() error {
		err := l.raft.Snapshot().Error()
		if errors.Is(err, raft.ErrNothingNewToSnapshot) {
			return nil
		}
		return err
	})
}

// TestLogSurvivesReopening: whatever Apply returned for is there after a close and an open, with and without a snapshot.
func TestLogSurvivesReopening(t *testing.T) {
	dir := t.TempDir()
	var last []byte
	for i := range 4 {
		l := openLone(t, dir)
		if got, err := l.State().MarshalBinary(); err != nil || i > 0 && string(got) != string(last) {
			t.Fatalf("opening %d: state\n%s\nexpected\n%s (%v)", i, got, last, err)
		}
		r, err := l.Apply(t.Context(), &cluster.SubmitJob{Name: "x", Submitted: time.Unix(int64(i), 0)})
		if err != nil || r.Job == "" {
			t.Fatalf("submit: %+v, %v", r, err)
		}
		if _, err := l.Apply(t.Context(), &cluster.SetState{Job: r.Job, Generation: 7, State: cluster.Running}); !errors.Is(err, cluster.ErrStaleGeneration) {
			t.Fatalf("stale generation: %v", err)
		}
		if i%2 == 1 {
			if err := l.Snapshot(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		if last, err = l.State().MarshalBinary(); err != nil {
			t.Fatal(err)
		}
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// BenchmarkApply is the time of one command, from the proposal until it is durable and applied.
func BenchmarkApply(b *testing.B) {
	l := openLone(b, b.TempDir())
	if _, err := l.Apply(b.Context(), &cluster.SubmitJob{Name: "x"}); err != nil {
		b.Fatal(err)
	}
	for round := uint64(1); b.Loop(); round++ {
		if _, err := l.Apply(b.Context(), &cluster.BeginCommit{Job: "1", Round: round}); err != nil {
			b.Fatal(err)
		}
	}
}
