package raftlog

import (
	"errors"
	"io/fs"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
	"golang.org/x/sys/unix"

	"github.com/avgpipe/avgpipe/internal/envtest"
)

// TestFullSegmentIsFollowedByAnother, also where the process ended between the two.
func TestFullSegmentIsFollowedByAnother(t *testing.T) {
	dir := t.TempDir()
	l, err := openLog(dir, hclog.NewNullLogger())
	if err != nil {
		t.Fatal(err)
	}
	next := uint64(0)
	for range 20 {
		next++
		if err := l.StoreLog(&raft.Log{Index: next, Term: 1, Data: make([]byte, segmentBytes/4)}); err != nil {
			t.Fatal(err)
		}
		if err := l.Close(); err != nil { // where the segment is full, before the next one is begun, or right after
			t.Fatal(err)
		}
		if l, err = openLog(dir, hclog.NewNullLogger()); err != nil {
			t.Fatal(err)
		}
		if e, err := l.extent(); err != nil || e.first != 1 || e.last != next {
			t.Fatalf("%+v, expected the last entry to be %d: %v", e, next, err)
		}
	}
	names, err := filepath.Glob(filepath.Join(dir, "*.wal"))
	if err != nil || len(names) < 5 {
		t.Errorf("segments %v: %v", names, err)
	}
	if err := l.DeleteRange(1, 10); err != nil {
		t.Fatal(err)
	}
	if err := l.DeleteRange(15, 20); err != nil { // a new leader overwrites the tail
		t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if l, err = openLog(dir, hclog.NewNullLogger()); err != nil {
		t.Fatal(err)
	}
	if e, err := l.extent(); err != nil || e.first != 11 || e.last != 14 {
		t.Errorf("%+v: %v", e, err)
	}
	if err := l.DeleteRange(11, 14); err != nil { // a snapshot takes the place of all
		t.Fatal(err)
	}
	if err := errors.Join(l.StoreLog(&raft.Log{Index: 40, Term: 2}), l.Close()); err != nil {
		t.Fatal(err)
	}
	left, err := filepath.Glob(filepath.Join(dir, "*.wal"))
	if err != nil || len(left) != 1 {
		t.Fatalf("segments %v: %v", left, err)
	}
	if text, err := entriesOf(t, dir); err != nil || !strings.HasPrefix(text, "40 2 ") {
		t.Errorf("%q: %v", text, err)
	}
}

// TestCheckedLogKeepsWhatItIsGiven as Raft's own stores do.
func TestCheckedLogKeepsWhatItIsGiven(t *testing.T) {
	l, err := openLog(t.TempDir(), hclog.NewNullLogger())
	if err != nil {
		t.Fatal(err)
	}
	data := []byte("abc")
	entries := []*raft.Log{
		{Index: 5, Term: 2, Type: raft.LogNoop},
		{Index: 6, Term: 2, Type: raft.LogCommand, Data: data, Extensions: []byte("ext")},
	}
	if err := l.StoreLogs(entries); err != nil {
		t.Fatal(err)
	}
	if string(data) != "abc" {
		t.Errorf("the caller's data is %q", data)
	}
	var got raft.Log
	if err := l.GetLog(6, &got); err != nil || string(got.Data) != "abc" || string(got.Extensions) != "ext" || got.Type != raft.LogCommand || got.Term != 2 {
		t.Errorf("entry %+v: %v", got, err)
	}
	if err := l.GetLog(7, &got); err != raft.ErrLogNotFound { //nolint:errorlint // Raft compares by identity
		t.Errorf("absent entry: %v", err)
	}
	if v, err := l.Get([]byte("absent")); err != nil || v != nil {
		t.Errorf("absent value: %q, %v", v, err)
	}
	if err := l.DeleteRange(5, 5); err != nil {
		t.Fatal(err)
	}
	if first, err := l.FirstIndex(); err != nil || first != 6 {
		t.Errorf("first is %d: %v", first, err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestLogIsOpenToItsUserOnly.
func TestLogIsOpenToItsUserOnly(t *testing.T) {
	dir := snapshottedLog(t)
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if info, err := e.Info(); err != nil || path != dir && info.Mode().Perm()&0o077 != 0 {
			t.Errorf("%s has the mode %v: %v", path, info.Mode(), err)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestTransientErrorIsNotDamage: nobody is told to restore a log that a full or a read-only disk keeps from opening.
func TestTransientErrorIsNotDamage(t *testing.T) {
	for _, errno := range transient {
		err := damagedLog("state/raft/wal", &fs.PathError{Op: "open", Path: "meta", Err: errno})
		if text := err.Error(); !errors.Is(err, errno) || !strings.Contains(text, "state/raft/wal was not opened") || !strings.Contains(text, "its entries are as they were") || isDamage(err) {
			t.Errorf("%v: %v", errno, err)
		}
	}
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=256k"); err != nil {
		envtest.Missing(t, "no small disk can be mounted here: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	if _, err := Open(Config{Dir: dir, NodeID: "a"}); !errors.Is(err, unix.ENOSPC) || !strings.Contains(err.Error(), "was not opened") || isDamage(err) {
		t.Errorf("on a full disk: %v", err)
	}
	if err := unix.Mount("", dir, "", unix.MS_REMOUNT, "size=16m"); err != nil {
		t.Fatal(err)
	}
	writtenLog(t, dir, 2)
	if err := unix.Mount("", dir, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(Config{Dir: dir, NodeID: "a"}); !errors.Is(err, unix.EROFS) || !strings.Contains(err.Error(), "was not opened") || isDamage(err) {
		t.Errorf("on a read-only disk: %v", err)
	}
}
