package raftlog

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/raft"

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

// TestAbsenceIsDamage: what is gone is named, with the repair, and nothing is begun in its place.
func TestAbsenceIsDamage(t *testing.T) {
	older := t.TempDir() // a log of the same node that ends before the snapshots of the other
	writtenLog(t, older, 1)
	for _, c := range []struct {
		name     string
		existing bool
		damage   func(dir string) error
		words    []string
	}{
		{"log gone", false, func(dir string) error { return os.Remove(filepath.Join(dir, "raft.db")) }, []string{"raft.db", "is missing", ".raftsnap is there"}},
		{"log emptied", false, func(dir string) error { return os.Truncate(filepath.Join(dir, "raft.db"), 0) }, []string{"raft.db", "is empty", ".raftsnap is there"}},
		{"log begun anew", false, func(dir string) error { return beginLog(filepath.Join(dir, "raft.db")) }, []string{"raft.db", "holds nothing", ".raftsnap"}},
		{"log of an older backup", false, func(dir string) error {
			return os.Rename(filepath.Join(older, "raft.db"), filepath.Join(dir, "raft.db"))
		}, []string{"raft.db", "ends at entry", "was made of entry"}},
		{"snapshots gone", false, func(dir string) error { return os.RemoveAll(filepath.Join(dir, "snapshots")) }, []string{"entries 1 to", "are missing", "snapshots"}},
		{"all gone", true, os.RemoveAll, []string{"raft.db", "is missing", "was in use"}},
		{"all gone but an empty log", true, func(dir string) error {
			return errors.Join(os.RemoveAll(filepath.Join(dir, "snapshots")), beginLog(filepath.Join(dir, "raft.db")))
		}, []string{"raft.db", "holds nothing", "was in use"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := snapshottedLog(t)
			if err := c.damage(dir); err != nil {
				t.Fatal(err)
			}
			for range 2 { // the first attempt leaves nothing that the second takes for a log
				_, err := Open(Config{Dir: dir, NodeID: "a", Existing: c.existing})
				if err == nil {
					t.Fatal("it was accepted")
				}
				for _, word := range append(c.words, dir, "restore", "avgpiped recover") {
					if !strings.Contains(err.Error(), word) {
						t.Errorf("error %v\ndoes not say %q", err, word)
					}
				}
				if err := Check(dir); err == nil {
					t.Error("Check finds it whole")
				}
			}
		})
	}
	dir := snapshottedLog(t)
	if err := Check(dir); err != nil {
		t.Errorf("a whole one: %v", err)
	}
}

// beginLog makes a log file that holds nothing yet.
func beginLog(path string) error {
	if err := os.Remove(path); err != nil {
		return err
	}
	l, err := openLog(path)
	if err != nil {
		return err
	}
	return l.Close()
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
