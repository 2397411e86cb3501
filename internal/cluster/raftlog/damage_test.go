package raftlog

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"github.com/avgpipe/avgpipe/internal/cluster"

	raftboltdb "github.com/hashicorp/raft-boltdb/v2"

	"github.com/avgpipe/avgpipe/internal/checkpoint"
)

// writtenLog makes a log of a lone node with some jobs in it, closed, and returns its file and state.
func writtenLog(t *testing.T, dir string, jobs int) (file []byte, state []byte) {
	t.Helper()
	l := openLone(t, dir)
	for i := range jobs {
		if _, err := l.Apply(t.Context(), &cluster.SubmitJob{Name: strconv.Itoa(i), Source: strings.Repeat("x", 50*i), Submitted: time.Unix(0, 0)}); err != nil {
			t.Fatal(err)
		}
	}
	state = bytesOf(t, l.State())
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	file, err := os.ReadFile(filepath.Join(dir, "raft.db"))
	if err != nil {
		t.Fatal(err)
	}
	return file, state
}

// entriesOf opens a log file and reads all entries and Raft's own values.
func entriesOf(t *testing.T, path string) (text string, err error) {
	t.Helper()
	l, err := openLog(path)
	if err != nil {
		return "", err
	}
	defer func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	}()
	first, err := l.FirstIndex()
	if err != nil {
		return "", err
	}
	last, err := l.LastIndex()
	if err != nil {
		return "", err
	}
	var out strings.Builder
	for i := first; i <= last; i++ {
		var entry raft.Log
		if err := l.GetLog(i, &entry); err != nil {
			return "", err
		}
		fmt.Fprintf(&out, "%d %d %d %x %x\n", entry.Index, entry.Term, entry.Type, entry.Data, entry.Extensions)
	}
	term, err := l.GetUint64([]byte("CurrentTerm"))
	if err != nil {
		return "", err
	}
	vote, err := l.Get([]byte("LastVoteCand"))
	if err != nil {
		return "", err
	}
	fmt.Fprintf(&out, "term %d vote %s\n", term, vote)
	return out.String(), nil
}

// TestFlippedLogIsReportedByName: with any bit of the log file flipped, opening names the file, or nothing that anybody reads has
// changed (the flip is in unused space).
func TestFlippedLogIsReportedByName(t *testing.T) {
	file, _ := writtenLog(t, t.TempDir(), 12)
	path := filepath.Join(t.TempDir(), "raft.db")
	put := func(data []byte) {
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	put(file)
	expected, err := entriesOf(t, path)
	if err != nil {
		t.Fatal(err)
	}
	reported, harmless := 0, 0
	for i := range file {
		inHeader := i%4096 < 64
		if !inHeader && (file[i] == 0 || i%31 != 0) { // headers in full, a sample of the rest
			continue
		}
		flipped := bytes.Clone(file)
		flipped[i] ^= 1 << (i % 8)
		put(flipped)
		got, err := entriesOf(t, path)
		switch {
		case err == nil && got == expected:
			harmless++
		case err == nil:
			t.Fatalf("byte %d of page %d flipped: loaded\n%s\nexpected\n%s", i%4096, i/4096, got, expected)
		case !strings.Contains(err.Error(), path):
			t.Fatalf("byte %d flipped: %v: expected the file's name", i, err)
		default:
			reported++
		}
	}
	t.Logf("%d flips reported, %d harmless", reported, harmless)
	if reported < 200 {
		t.Errorf("only %d flips reported", reported)
	}
}

// TestTruncatedLogIsReportedByName, wherever it is cut: except to nothing at all, which is a log that was never begun.
func TestTruncatedLogIsReportedByName(t *testing.T) {
	dir := t.TempDir()
	file, _ := writtenLog(t, dir, 12)
	path := filepath.Join(dir, "raft.db")
	for n := 1; n < len(file); n += 1021 {
		if err := os.WriteFile(path, file[:n], 0o600); err != nil {
			t.Fatal(err)
		}
		got, err := entriesOf(t, path)
		if err == nil {
			if used := usedBytes(t, file); n < used { // bolt makes the file larger than it needs
				t.Errorf("cut to %d of %d bytes, %d used: loaded\n%s", n, len(file), used, got)
			}
			continue
		}
		if !strings.Contains(err.Error(), path) {
			t.Errorf("cut to %d bytes: %v: expected the file's name", n, err)
		}
		if _, err := Open(Config{Dir: dir, NodeID: "a"}); err == nil || !strings.Contains(err.Error(), path) {
			t.Errorf("cut to %d bytes: Open: %v", n, err)
		}
	}
}

// usedBytes is where the last page in use ends, by the newer meta record.
func usedBytes(t *testing.T, file []byte) int {
	t.Helper()
	used := uint64(0)
	for _, offset := range []uint64{0, 4096} {
		m, err := readBoltMeta(file, offset)
		if err != nil {
			t.Fatal(err)
		}
		used = max(used, m.high*m.pageSize)
	}
	return int(used)
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

// TestMissingSnapshotIsReported: the log alone begins too late.
func TestMissingSnapshotIsReported(t *testing.T) {
	dir := t.TempDir()
	open := func() (*Log, error) { return Open(Config{Dir: dir, NodeID: "a", SnapshotThreshold: 1}) }
	l, err := open()
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
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(filepath.Join(dir, "snapshots")); err != nil {
		t.Fatal(err)
	}
	if _, err := open(); err == nil || !strings.Contains(err.Error(), "are missing") || !strings.Contains(err.Error(), dir) {
		t.Errorf("error %v", err)
	}
}

// TestLogWithoutChecksumsIsRefused: one that another program wrote.
func TestLogWithoutChecksumsIsRefused(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "raft.db")
	bolt, err := raftboltdb.NewBoltStore(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := bolt.StoreLog(&raft.Log{Index: 1, Term: 1, Data: []byte("plain")}); err != nil {
		t.Fatal(err)
	}
	if err := bolt.Close(); err != nil {
		t.Fatal(err)
	}
	_, err = Open(Config{Dir: dir, NodeID: "a"})
	if err == nil || !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), `entry 1: starts with "plai", expected "AVGE"`) {
		t.Errorf("error %v", err)
	}
}

// TestLogInUseIsReported: a second process is told so.
func TestLogInUseIsReported(t *testing.T) {
	dir := t.TempDir()
	openLone(t, dir)
	_, err := Open(Config{Dir: dir, NodeID: "a"})
	if err == nil || !strings.Contains(err.Error(), "another process has it open") || !strings.Contains(err.Error(), dir) {
		t.Errorf("error %v", err)
	}
}

// TestCheckedLogKeepsWhatItIsGiven as Raft's own stores do.
func TestCheckedLogKeepsWhatItIsGiven(t *testing.T) {
	l, err := openLog(filepath.Join(t.TempDir(), "raft.db"))
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
	if _, err := l.Get([]byte("absent")); err == nil || err.Error() != "not found" { // Raft compares the text
		t.Errorf("absent value: %v", err)
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

// TestCheckAcceptsWhateverBoltWrites: appending, deleting and overwriting in all sizes, and transactions that were interrupted
// before their meta record was written.
func TestCheckAcceptsWhateverBoltWrites(t *testing.T) {
	path := filepath.Join(t.TempDir(), "raft.db")
	l, err := openLog(path)
	if err != nil {
		t.Fatal(err)
	}
	snapshot := func() []byte {
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		return data
	}
	random := rand.New(rand.NewPCG(1, 2))
	first, next := uint64(1), uint64(1)
	before := snapshot()
	for step := range 250 {
		switch kind := random.IntN(10); {
		case kind < 7:
			var entries []*raft.Log
			for range 1 + random.IntN(20) {
				entries = append(entries, &raft.Log{Index: next, Term: 1, Data: make([]byte, 1<<random.IntN(15))})
				next++
			}
			err = l.StoreLogs(entries)
		case kind < 8 && next > first:
			to := first + random.Uint64N(next-first) // now and then all of them
			err = l.DeleteRange(first, to)
			first = to + 1
		case kind < 9 && next > first+1:
			from := next - 1 - random.Uint64N(min(5, next-first-1)) // a new leader overwrites the tail
			err = l.DeleteRange(from, next-1)
			next = from
		default:
			err = l.SetUint64([]byte("CurrentTerm"), random.Uint64())
		}
		if err != nil {
			t.Fatal(err)
		}
		after := snapshot()
		if err := checkBoltFile(after); err != nil {
			t.Fatalf("step %d, entries %d to %d: %v", step, first, next-1, err)
		}
		interrupted := append(bytes.Clone(before[:2*4096]), after[2*4096:]...)
		if err := checkBoltFile(interrupted); err != nil {
			t.Fatalf("step %d, interrupted: %v", step, err)
		}
		before = after
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := entriesOf(t, path); err != nil && !strings.Contains(err.Error(), "not found") { // no vote was stored
		t.Error(err)
	}
}

// FuzzCheckBoltFile: no file may crash the check.
func FuzzCheckBoltFile(f *testing.F) {
	path := filepath.Join(f.TempDir(), "raft.db")
	l, err := openLog(path)
	if err != nil {
		f.Fatal(err)
	}
	for i := range uint64(40) {
		if err := l.StoreLog(&raft.Log{Index: i + 1, Term: 1, Data: bytes.Repeat([]byte("x"), 200)}); err != nil {
			f.Fatal(err)
		}
	}
	if err := l.Close(); err != nil {
		f.Fatal(err)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		f.Fatal(err)
	}
	if err := checkBoltFile(data); err != nil {
		f.Fatal(err)
	}
	f.Add(data, 100, byte(1))
	f.Fuzz(func(_ *testing.T, data []byte, at int, flip byte) {
		if len(data) > 0 {
			data = bytes.Clone(data)
			data[uint(at)%uint(len(data))] ^= flip
		}
		_ = checkBoltFile(data) // whatever it says
	})
}

// FuzzParseSnapshot: no file may crash the reader.
func FuzzParseSnapshot(f *testing.F) {
	store, err := openSnapStore(checkpoint.OS, f.TempDir())
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
