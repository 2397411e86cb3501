package raftlog

import (
	"bytes"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"github.com/avgpipe/avgpipe/internal/cluster"
)

// bytesOf encodes a state.
func bytesOf(t *testing.T, s *cluster.State) []byte {
	t.Helper()
	data, err := s.MarshalBinary()
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// TestChangedTellsOfANewState.
func TestChangedTellsOfANewState(t *testing.T) {
	l := openLone(t, t.TempDir())
	before, changed := l.Changed()
	select {
	case <-changed:
		t.Fatal("closed before anything changed")
	default:
	}
	if _, err := l.Apply(t.Context(), &cluster.SubmitJob{Name: "x"}); err != nil {
		t.Fatal(err)
	}
	select {
	case <-changed:
	default:
		t.Fatal("not closed by a change")
	}
	if len(before.Jobs()) != 0 || len(l.State().Jobs()) != 1 {
		t.Errorf("%d jobs before, %d after", len(before.Jobs()), len(l.State().Jobs()))
	}
}

// TestUnknownCommandStopsTheLog: nothing after it is applied, no snapshot covers it, and whoever starts again reads why.
func TestUnknownCommandStopsTheLog(t *testing.T) {
	dir := t.TempDir()
	l := openLone(t, dir)
	if _, err := l.Apply(t.Context(), &cluster.SubmitJob{Name: "kept"}); err != nil {
		t.Fatal(err)
	}
	l.raft.Apply([]byte(`AVGC{"v":1,"kind":"paint_job","by":"v9.9","body":{}}`), time.Minute)
	select {
	case <-l.Failed():
	case <-time.After(time.Minute):
		t.Fatal("it goes on")
	}
	said := func(err error) {
		t.Helper()
		if refused, ok := errors.AsType[*cluster.RefusedError](err); !ok || refused.Index == 0 || !strings.Contains(err.Error(), dir) ||
			!strings.Contains(err.Error(), `"paint_job" of version 1, written by avgpiped v9.9`) || !strings.Contains(err.Error(), "or a newer one") {
			t.Errorf("error %v", err)
		}
	}
	said(l.Err())
	said(l.Ready())
	_, err := l.Apply(t.Context(), &cluster.SubmitJob{Name: "lost"})
	said(err)
	said(l.Snapshot(t.Context()))
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	again, err := Open(Config{Dir: dir, NodeID: "a"})
	if err != nil {
		t.Fatal(err)
	}
	said(again.WaitReady(t.Context()))
	if jobs := again.State().Jobs(); len(jobs) != 1 || jobs[0].Name != "kept" {
		t.Errorf("jobs %v", jobs)
	}
	if err := again.Close(); err != nil {
		t.Error(err)
	}
}

// TestTooLargeIsRefusedWhenProposed, and the log goes on.
func TestTooLargeIsRefusedWhenProposed(t *testing.T) {
	l := openLone(t, t.TempDir())
	large := &cluster.SubmitJob{File: strings.Repeat("x", cluster.MaxCommandBytes)}
	if _, err := l.Apply(t.Context(), large); err == nil || !strings.Contains(err.Error(), "submit_job: too large for the record of jobs") {
		t.Errorf("a large command: %v", err)
	}
	if _, err := l.Apply(t.Context(), &cluster.SubmitJob{Name: "fits"}); err != nil || len(l.State().Jobs()) != 1 {
		t.Errorf("%d jobs, %v", len(l.State().Jobs()), err)
	}
}

// TestSnapshotThatCannotBeWrittenIsSeen until one can: Raft only logs it.
func TestSnapshotThatCannotBeWrittenIsSeen(t *testing.T) {
	l := openLone(t, t.TempDir())
	if _, err := l.Apply(t.Context(), &cluster.SubmitJob{Name: "x"}); err != nil {
		t.Fatal(err)
	}
	dir := l.snapshots.dir
	l.snapshots.dir = dir + "/missing"
	if err := l.Snapshot(t.Context()); err == nil {
		t.Fatal("it was written")
	}
	if err := l.Ready(); err == nil || !strings.Contains(err.Error(), "no snapshot can be written") || !strings.Contains(err.Error(), dir) {
		t.Errorf("ready: %v", err)
	}
	l.snapshots.dir = dir
	if err := errors.Join(l.Snapshot(t.Context()), l.Ready()); err != nil {
		t.Error(err)
	}
}

// TestSnapshotOfANewerProgramIsRefused, and no older one taken in its place.
func TestSnapshotOfANewerProgramIsRefused(t *testing.T) {
	dir := t.TempDir()
	l := openLone(t, dir)
	for range 2 {
		if _, err := l.Apply(t.Context(), &cluster.SubmitJob{Name: "x"}); err != nil {
			t.Fatal(err)
		}
		if err := l.Snapshot(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	metas, err := l.snapshots.List()
	if err != nil || len(metas) != 2 {
		t.Fatalf("%v, %v", metas, err)
	}
	state := bytes.Replace(bytesOf(t, l.State()), []byte(`"version":2`), []byte(`"version":9`), 1)
	sink, err := l.snapshots.Create(raft.SnapshotVersionMax, metas[0].Index, metas[0].Term, metas[0].Configuration, metas[0].ConfigurationIndex, nil)
	if err != nil {
		t.Fatal(err)
	}
	_, err = sink.Write(state)
	if err := errors.Join(err, sink.Close(), l.Close()); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(Config{Dir: dir, NodeID: "a"}); err == nil || !strings.Contains(err.Error(), "version 9, this program reads up to 3") {
		t.Errorf("error %v", err)
	}
}
