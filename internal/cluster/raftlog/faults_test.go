package raftlog

import (
	"context"
	"errors"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"github.com/avgpipe/avgpipe/internal/cluster"
)

// faultyStore fails its writes, and its reads of entries, when told to.
type faultyStore struct {
	raftStore
	writes, reads atomic.Bool
}

var errBroken = &os.PathError{Op: "write", Path: "raft.db", Err: syscall.EROFS}

func (s *faultyStore) write(f func() error) error {
	if s.writes.Load() {
		return errBroken
	}
	return f()
}

func (s *faultyStore) StoreLogs(entries []*raft.Log) error {
	return s.write(func() error { return s.raftStore.StoreLogs(entries) })
}

func (s *faultyStore) SetUint64(key []byte, value uint64) error {
	return s.write(func() error { return s.raftStore.SetUint64(key, value) })
}

func (s *faultyStore) Set(key, value []byte) error {
	return s.write(func() error { return s.raftStore.Set(key, value) })
}

func (s *faultyStore) GetLog(index uint64, entry *raft.Log) error {
	if s.reads.Load() {
		return errBroken
	}
	return s.raftStore.GetLog(index, entry)
}

// TestFailingStoreEndsTheLogInOrder: Raft, which panics when it cannot write its term, is kept from it; the log says what failed,
// closes, and what was applied before is there afterwards.
func TestFailingStoreEndsTheLogInOrder(t *testing.T) {
	dir := t.TempDir()
	store := &faultyStore{}
	l, err := Open(Config{Dir: dir, NodeID: "a", wrap: func(s raftStore) raftStore {
		store.raftStore = s
		return store
	}})
	if err != nil {
		t.Fatal(err)
	}
	if err := l.WaitReady(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Apply(t.Context(), &cluster.SubmitJob{Name: "kept"}); err != nil {
		t.Fatal(err)
	}
	store.writes.Store(true)
	if _, err := l.Apply(t.Context(), &cluster.SubmitJob{Name: "lost"}); !errors.Is(err, syscall.EROFS) {
		t.Errorf("apply: %v", err)
	}
	select {
	case <-l.Failed():
	case <-time.After(time.Minute):
		t.Fatal("the failure is not reported")
	}
	if !errors.Is(l.Err(), syscall.EROFS) {
		t.Errorf("the reason is %v", l.Err())
	}
	if err := l.explain("submit_job", errors.New("unable to store logs")); !errors.Is(err, syscall.EROFS) { // whichever of both is heard first
		t.Errorf("what the library says becomes %v", err)
	}
	// Raft no longer leads, and stands for election: it writes its term. Whoever waits is let go by his context.
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if _, err := l.Apply(ctx, &cluster.SubmitJob{Name: "lost"}); err == nil {
		t.Error("a command was applied")
	}
	if err := l.Close(); err != nil {
		t.Errorf("close: %v", err)
	}
	if jobs := openLone(t, dir).State().Jobs(); len(jobs) != 1 || jobs[0].Name != "kept" {
		t.Errorf("jobs afterwards: %v", jobs)
	}
}

// TestStoreThatFailsAtTheStartIsAnError and no panic.
func TestStoreThatFailsAtTheStartIsAnError(t *testing.T) {
	for _, fail := range []func(s *faultyStore){func(s *faultyStore) { s.writes.Store(true) }, func(s *faultyStore) { s.reads.Store(true) }} {
		dir := t.TempDir()
		writtenLog(t, dir, 2)
		_, err := Open(Config{Dir: dir, NodeID: "a", wrap: func(s raftStore) raftStore {
			store := &faultyStore{raftStore: s}
			fail(store)
			return store
		}})
		if !errors.Is(err, syscall.EROFS) || !strings.Contains(err.Error(), dir) {
			t.Errorf("error %v", err)
		}
		if len(openLone(t, dir).State().Jobs()) != 2 {
			t.Error("jobs were lost")
		}
	}
}
