package raftlog

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"

	"github.com/avgpipe/avgpipe/internal/cluster"
)

// writtenLog makes a log of a lone node with some jobs in it, closed, and returns the directory of its files.
func writtenLog(t *testing.T, dir string, jobs int) (wal string) {
	t.Helper()
	l := openLone(t, dir)
	for i := range jobs {
		if _, err := l.Apply(t.Context(), &cluster.SubmitJob{Name: strconv.Itoa(i), File: strings.Repeat("x", 50*i), Submitted: time.Unix(0, 0)}); err != nil {
			t.Fatal(err)
		}
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	return filepath.Join(dir, walName)
}

// segmentOf is the one segment file of a small log.
func segmentOf(t *testing.T, wal string) string {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(wal, "*.wal"))
	if err != nil || len(names) != 1 {
		t.Fatalf("segments %v: %v", names, err)
	}
	return names[0]
}

// entriesOf opens a log and reads all entries and Raft's own values.
func entriesOf(t *testing.T, wal string) (text string, err error) {
	t.Helper()
	l, err := openLog(wal, hclog.NewNullLogger())
	if err != nil {
		return "", err
	}
	defer func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	}()
	e, err := l.extent()
	if err != nil {
		return "", err
	}
	var out strings.Builder
	for i := e.first; i <= e.last; i++ {
		var entry raft.Log
		if err := l.GetLog(i, &entry); err != nil {
			return "", err
		}
		fmt.Fprintf(&out, "%d %d %d %x %x\n", entry.Index, entry.Term, entry.Type, entry.Data, entry.Extensions)
	}
	fmt.Fprintf(&out, "values %q\n", l.meta.record.Values)
	return out.String(), nil
}

// TestFlippedLogIsReportedByName: with any bit of a file of the log flipped, opening names the file, or nothing that anybody reads has
// changed (the flip is in padding).
func TestFlippedLogIsReportedByName(t *testing.T) {
	wal := writtenLog(t, t.TempDir(), 12)
	expected, err := entriesOf(t, wal)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name        string
		every       int // of the bytes in use
		reported    int // at least, of 100
		closestName string
	}{{metaName, 3, 100, metaName}, {lastName, 1, 100, lastName}, {filepath.Base(segmentOf(t, wal)), 7, 60, ".wal"}} {
		t.Run(c.name, func(t *testing.T) {
			whole, err := os.ReadFile(filepath.Join(wal, c.name))
			if err != nil {
				t.Fatal(err)
			}
			f, err := os.OpenFile(filepath.Join(wal, c.name), os.O_RDWR, 0)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			put := func(at int, b byte) {
				if _, err := f.WriteAt([]byte{b}, int64(at)); err != nil {
					t.Fatal(err)
				}
			}
			flips, reported := 0, 0
			for i := 0; i < len(bytes.TrimRight(whole, "\x00")); i += c.every {
				put(i, whole[i]^1<<(i%8))
				got, err := entriesOf(t, wal)
				switch {
				case err == nil && got != expected:
					t.Fatalf("byte %d flipped: loaded\n%s\nexpected\n%s", i, got, expected)
				case err != nil && (!strings.Contains(err.Error(), wal) || !strings.Contains(err.Error(), c.closestName) || !isDamage(err)):
					t.Fatalf("byte %d flipped: %v: expected the name of the file, as damage", i, err)
				case err != nil:
					reported++
				}
				flips++
				put(i, whole[i])
			}
			t.Logf("%d of %d flips reported", reported, flips)
			if 100*reported < c.reported*flips {
				t.Errorf("only %d of %d flips reported", reported, flips)
			}
		})
	}
}

// TestShortenedLogIsReportedByName: each file cut anywhere, emptied, zeroed or deleted.
func TestShortenedLogIsReportedByName(t *testing.T) {
	dir := t.TempDir()
	wal := writtenLog(t, dir, 12)
	for _, path := range []string{filepath.Join(wal, metaName), filepath.Join(wal, lastName), segmentOf(t, wal)} {
		whole, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		used := len(bytes.TrimRight(whole, "\x00"))
		damages := map[string][]byte{"deleted": nil, "emptied": {}, "zeroed": make([]byte, len(whole))}
		for n := 1; n < used; n += 1 + used/40 {
			damages[fmt.Sprintf("cut to %d of %d bytes", n, used)] = whole[:n]
			damages[fmt.Sprintf("zeroed from %d of %d bytes", n, used)] = append(bytes.Clone(whole[:n]), make([]byte, used-n)...)
		}
		for what, data := range damages {
			err := os.RemoveAll(path)
			if err == nil && data != nil {
				err = os.WriteFile(path, data, 0o600)
			}
			if err != nil {
				t.Fatal(err)
			}
			_, openErr := Open(Config{Dir: dir, NodeID: "a"})
			for _, err := range []error{openErr, Check(dir)} {
				if err == nil || !strings.Contains(err.Error(), path) || !isDamage(err) {
					t.Fatalf("%s %s: error %v", path, what, err)
				}
			}
		}
		if err := os.WriteFile(path, whole, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if n := len(openLone(t, dir).State().Jobs()); n != 12 {
		t.Errorf("repaired: %d jobs", n)
	}
}

// TestTornAppendIsNoDamage: what a crash of the machine leaves of an append that nobody was told of is dropped, and the log goes on.
func TestTornAppendIsNoDamage(t *testing.T) {
	dir := t.TempDir()
	wal := writtenLog(t, dir, 3)
	read := func(name string) []byte {
		data, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		return data
	}
	segment, last := segmentOf(t, wal), filepath.Join(wal, lastName)
	before, acknowledged := len(bytes.TrimRight(read(segment), "\x00")), read(last)
	l := openLone(t, dir)
	jobs := len(l.State().Jobs())
	if _, err := l.Apply(t.Context(), &cluster.SubmitJob{Name: strings.Repeat("torn", 500)}); err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	whole := read(segment)
	after := len(bytes.TrimRight(whole, "\x00"))
	for at := before; at < after; at += (after - before) / 20 {
		torn := bytes.Clone(whole)
		clear(torn[at:])
		if err := errors.Join(os.WriteFile(segment, torn, 0o600), os.WriteFile(last, acknowledged, 0o600)); err != nil {
			t.Fatal(err)
		}
		l := openLone(t, dir)
		if n := len(l.State().Jobs()); n != jobs {
			t.Errorf("torn at %d of %d: %d jobs, expected %d", at, after, n, jobs)
		}
		if _, err := l.Apply(t.Context(), &cluster.RequestCancel{Job: "1"}); err != nil {
			t.Error(err)
		}
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	}
}

// Garbage that reads as the index at the end of a full segment, and as nothing behind it, changes no file.
func TestGarbageThatReadsAsAFullSegmentIsDamage(t *testing.T) {
	wal := writtenLog(t, t.TempDir(), 3)
	const firstFrame, frameIndex = 32, 2
	f, err := os.OpenFile(segmentOf(t, wal), os.O_RDWR, 0)
	if err == nil {
		_, err = f.WriteAt(append([]byte{frameIndex}, make([]byte, 15)...), firstFrame) // an index of no entries, then no frame
		err = errors.Join(err, f.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
	meta := filepath.Join(wal, metaName)
	before, err := os.ReadFile(meta)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := entriesOf(t, wal); err == nil || !strings.Contains(err.Error(), segmentOf(t, wal)) {
		t.Errorf("the error is %v; want it to name the segment", err)
	}
	if after, err := os.ReadFile(meta); err != nil || !bytes.Equal(before, after) {
		t.Errorf("a log that was refused changed its metadata (%v)", err)
	}
}

// TestSegmentOfAnotherLogIsRefused and not deleted: raft-wal deletes what its metadata does not name.
func TestSegmentOfAnotherLogIsRefused(t *testing.T) {
	wal := writtenLog(t, t.TempDir(), 2)
	stray := filepath.Join(wal, "00000000000000000009-0000000000000007.wal")
	if err := os.WriteFile(stray, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := entriesOf(t, wal); err == nil || !strings.Contains(err.Error(), "segment 7, from entry 9, is newer than meta") {
		t.Errorf("error %v", err)
	}
	if _, err := os.Stat(stray); err != nil {
		t.Error(err)
	}
}

// TestDamagedSnapshotIsReportedByName: Raft does not go on from an older one.
func TestDamagedSnapshotIsReportedByName(t *testing.T) {
	dir := t.TempDir()
	l := openLone(t, dir)
	for range 3 {
		if _, err := l.Apply(t.Context(), &cluster.SubmitJob{Name: "x"}); err != nil {
			t.Fatal(err)
		}
		if err := l.Snapshot(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	snapshots, err := filepath.Glob(filepath.Join(dir, "snapshots", "*"+snapSuffix))
	if err != nil || len(snapshots) != 2 {
		t.Fatalf("snapshots %v, expected the newest two: %v", snapshots, err)
	}
	newest := snapshots[1]
	whole, err := os.ReadFile(newest)
	if err != nil {
		t.Fatal(err)
	}
	damages := [][]byte{whole[:len(whole)/2], whole[:3], append(bytes.Clone(whole), 0)}
	for i := 0; i < len(whole); i += 5 {
		flipped := bytes.Clone(whole)
		flipped[i] ^= 2
		damages = append(damages, flipped)
	}
	for i, data := range damages {
		if err := os.WriteFile(newest, data, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := Open(Config{Dir: dir, NodeID: "a"}); err == nil || !strings.Contains(err.Error(), newest) {
			t.Fatalf("damage %d: %v: expected %s", i, err, newest)
		}
	}
	if err := os.WriteFile(newest, whole, 0o600); err != nil {
		t.Fatal(err)
	}
	if n := len(openLone(t, dir).State().Jobs()); n != 3 {
		t.Errorf("repaired: %d jobs, expected 3", n)
	}
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
		{"log gone", false, func(dir string) error { return os.RemoveAll(filepath.Join(dir, walName)) }, []string{"wal/meta", "is missing", ".raftsnap is there"}},
		{"log emptied", false, func(dir string) error { return os.Truncate(filepath.Join(dir, walName, metaName), 0) }, []string{"wal/meta", "is empty", ".raftsnap is there"}},
		{"log begun anew", false, beginLog, []string{walName, "holds nothing", ".raftsnap"}},
		{"log of an older backup", false, func(dir string) error {
			return errors.Join(os.RemoveAll(filepath.Join(dir, walName)), os.CopyFS(filepath.Join(dir, walName), os.DirFS(filepath.Join(older, walName))))
		}, []string{walName, "ends at entry", "was made of entry"}},
		{"snapshots gone", false, func(dir string) error { return os.RemoveAll(filepath.Join(dir, "snapshots")) }, []string{"entries 1 to", "are missing", "snapshots"}},
		{"all gone", true, os.RemoveAll, []string{"wal/meta", "is missing", "was in use"}},
		{"all gone but an empty log", true, func(dir string) error {
			return errors.Join(os.RemoveAll(filepath.Join(dir, "snapshots")), beginLog(dir))
		}, []string{walName, "holds nothing", "was in use"}},
		{"all gone but the segments", false, func(dir string) error {
			return errors.Join(os.RemoveAll(filepath.Join(dir, "snapshots")), os.Remove(filepath.Join(dir, walName, metaName)))
		}, []string{"wal/meta", "is missing", ".wal is there"}},
		{"all gone but the log of an older program", false, func(dir string) error {
			return errors.Join(os.RemoveAll(dir), os.Mkdir(dir, 0o700), os.WriteFile(filepath.Join(dir, boltName), []byte("bolt"), 0o600))
		}, []string{"raft.db", "older avgpiped"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := snapshottedLog(t)
			if err := c.damage(dir); err != nil {
				t.Fatal(err)
			}
			for range 2 { // the first attempt leaves nothing that the second takes for a log
				_, err := Open(Config{Dir: dir, NodeID: "a", Existing: c.existing})
				if !isDamage(err) {
					t.Fatalf("it was accepted, or is no damage: %v", err)
				}
				for _, word := range append(c.words, dir) {
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

// beginLog makes a log that holds nothing yet.
func beginLog(dir string) error {
	if err := os.RemoveAll(filepath.Join(dir, walName)); err != nil {
		return err
	}
	l, err := openLog(filepath.Join(dir, walName), hclog.NewNullLogger())
	if err != nil {
		return err
	}
	return l.Close()
}

// TestLogWithoutChecksumsIsRefused: one that another program wrote.
func TestLogWithoutChecksumsIsRefused(t *testing.T) {
	dir := t.TempDir()
	l, err := openLog(dir, hclog.NewNullLogger())
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(l.WAL.StoreLog(&raft.Log{Index: 1, Term: 1, Data: []byte("plain")}), l.Close()); err != nil {
		t.Fatal(err)
	}
	if _, err = entriesOf(t, dir); err == nil || !strings.Contains(err.Error(), dir) || !strings.Contains(err.Error(), `entry 1: starts with "plai", expected "AVGE"`) {
		t.Errorf("error %v", err)
	}
}

// FuzzParseSnapshot: no file may crash the reader.
func FuzzParseSnapshot(f *testing.F) {
	store, err := openSnapStore(f.TempDir())
	if err != nil {
		f.Fatal(err)
	}
	sink, err := store.Create(raft.SnapshotVersionMax, 7, 2, raft.Configuration{}, 1, nil)
	if err != nil {
		f.Fatal(err)
	}
	if _, err := sink.Write([]byte("state")); err != nil {
		f.Fatal(err)
	}
	if err := sink.Close(); err != nil {
		f.Fatal(err)
	}
	data, err := os.ReadFile(store.path(sink.ID()))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(data)
	f.Fuzz(func(t *testing.T, data []byte) {
		meta, state, err := parseSnapshot(data)
		if err == nil && (meta == nil || int(meta.Size) != len(state)) {
			t.Errorf("meta %+v for %d bytes of state", meta, len(state))
		}
	})
}

// isDamage reports whether an error says that files are damaged.
func isDamage(err error) bool {
	_, is := errors.AsType[*DamageError](err)
	return is
}
