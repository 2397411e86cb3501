package raftlog

import (
	"bytes"
	"errors"
	"slices"
	"testing"

	"github.com/hashicorp/raft"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/avgpipe/avgpipe/internal/cluster"
)

// TestBackupIsRestored, on a lone node: after Restore the jobs of the backup are back, and after reopening too.
func TestBackupIsRestored(t *testing.T) {
	dir := t.TempDir()
	l := openLone(t, dir)
	apply := func(c cluster.Command) {
		t.Helper()
		if _, err := l.Apply(t.Context(), c); err != nil {
			t.Fatal(err)
		}
	}
	apply(&cluster.SubmitJob{Name: "kept"})
	apply(&cluster.CancelJob{Job: "1"})
	var file bytes.Buffer
	about, err := l.Backup(t.Context(), &file)
	if err != nil || about.Jobs != 1 || about.Node != "a" {
		t.Fatalf("backup %+v: %v", about, err)
	}
	apply(&cluster.SubmitJob{Name: "later"})
	before := bytesOf(t, l.State())
	if _, err := l.Restore(t.Context(), bytes.NewReader(file.Bytes())); !errors.Is(err, cluster.ErrWorking) {
		t.Fatalf("restored over a job that works: %v", err)
	}
	damaged := bytes.Clone(file.Bytes())
	damaged[len(damaged)/2]++
	if _, err := l.Restore(t.Context(), bytes.NewReader(damaged)); !errors.Is(err, ErrBackup) {
		t.Fatal("a damaged backup was restored")
	}
	if !bytes.Equal(before, bytesOf(t, l.State())) {
		t.Fatal("what was refused changed the state")
	}
	apply(&cluster.CancelJob{Job: "2"})
	apply(&cluster.RemoveJob{Job: "1"})
	if got, err := l.Restore(t.Context(), &file); err != nil || got.Backup != about || !slices.Equal(got.Back, []string{"1"}) {
		t.Fatalf("restored %+v: %v", got, err)
	}
	apply(&cluster.SubmitJob{Name: "after"})
	want := bytesOf(t, l.State())
	if _, err := l.State().Job("3"); err != nil || len(l.State().Jobs()) != 3 {
		t.Fatalf("state %s: %v", want, err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if got := bytesOf(t, openLone(t, dir).State()); !bytes.Equal(got, want) {
		t.Errorf("after reopening\n%s\nexpected\n%s", got, want)
	}
}

// TestBackupIsRestoredOnAllNodes: followers get it too, those who do not lead refuse, and nothing is logged that somebody should look at.
func TestBackupIsRestoredOnAllNodes(t *testing.T) {
	core, lines := observer.New(zapcore.ErrorLevel)
	defer func() {
		for _, l := range lines.All() {
			t.Errorf("%s: %s %v", l.Level, l.Message, l.ContextMap())
		}
	}()
	c := newLoggedGroup(t, zap.New(core))
	c.apply(t, &cluster.SubmitJob{Name: "kept"})
	c.apply(t, &cluster.CancelJob{Job: "1"})
	// As long as the lead may change between the two calls, whoever leads is asked again.
	atLeader := func(what string, f func(l *Log) error) {
		t.Helper()
		for t.Context().Err() == nil {
			leader := c.refusing(t)
			err := f(c.logs[leader])
			if err == nil {
				return
			}
			if !errors.Is(err, ErrNotLeader) {
				t.Fatalf("%s: %v", what, err)
			}
		}
	}
	var file bytes.Buffer
	atLeader("backup", func(l *Log) error {
		file.Reset()
		_, err := l.Backup(t.Context(), &file)
		return err
	})
	for range 3 {
		c.apply(t, &cluster.SubmitJob{Name: "later"})
	}
	for _, id := range []string{"2", "3", "4"} {
		c.apply(t, &cluster.CancelJob{Job: id})
	}
	c.apply(t, &cluster.RemoveJob{Job: "1"})
	atLeader("restore", func(l *Log) error {
		_, err := l.Restore(t.Context(), bytes.NewReader(file.Bytes()))
		return err
	})
	c.apply(t, &cluster.SubmitJob{Name: "after"})
	for id, l := range c.logs {
		waitFor(t, l, id+" to have the restored state", func(s *cluster.State) bool {
			jobs := s.Jobs()
			return len(jobs) == 5 && jobs[0].Name == "kept" && jobs[4].Name == "after"
		})
	}
}

// FuzzReadBackup: no file may crash the reader.
func FuzzReadBackup(f *testing.F) {
	state := []byte(`{"version":2,"index":0,"next_job":1,"unknown":0,"jobs":[]}`)
	whole := sealFile(backupMagic, backupVersion, []byte(`{"node":"a","taken":"2026-01-02T03:04:05Z","index":0,"jobs":0}`), state)
	f.Add(whole)
	f.Add(whole[:len(whole)-1])
	f.Add(sealFile(backupMagic, backupVersion, []byte(`{"jobs":7}`), state))
	f.Add(sealFile(backupMagic, 2, nil, nil))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, data []byte) {
		about, s, err := ReadBackup(bytes.NewReader(data))
		if err == nil && about.Jobs != len(s.Jobs()) {
			t.Errorf("%+v with %d jobs", about, len(s.Jobs()))
		}
	})
}

// keepingStore keeps its entries when told to delete them, once its writes fail.
type keepingStore struct{ *faultyStore }

func (s keepingStore) DeleteRange(from, to uint64) error {
	return s.write(func() error { return s.faultyStore.DeleteRange(from, to) })
}

// TestRestoreThatACrashCutsOff, after the state was written and before the log was emptied, or before the first entry behind it, opens with the
// restored state and goes on.
func TestRestoreThatACrashCutsOff(t *testing.T) {
	for _, keeps := range []bool{true, false} {
		dir := t.TempDir()
		store := &faultyStore{}
		l, err := Open(Config{Dir: dir, NodeID: "a", wrap: func(s raftStore) raftStore {
			store.raftStore = s
			if keeps {
				return keepingStore{store}
			}
			return store
		}})
		if err != nil {
			t.Fatal(err)
		}
		if err = l.WaitReady(t.Context()); err == nil {
			_, err = l.Apply(t.Context(), &cluster.SubmitJob{Name: "later"})
		}
		if err != nil {
			t.Fatal(err)
		}
		body := bytesOf(t, cluster.NewState())
		store.writes.Store(true)
		meta := &raft.SnapshotMeta{Version: raft.SnapshotVersionMax, Size: int64(len(body))}
		if err := l.raft.Restore(meta, bytes.NewReader(body), restoreTimeout); err == nil {
			t.Fatal("the store does not fail")
		}
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		again := openLone(t, dir)
		if jobs := again.State().Jobs(); len(jobs) != 0 {
			t.Errorf("keeps %v: %d jobs after the restore", keeps, len(jobs))
		}
		if _, err := again.Apply(t.Context(), &cluster.SubmitJob{Name: "after"}); err != nil {
			t.Errorf("keeps %v: %v", keeps, err)
		}
	}
}
