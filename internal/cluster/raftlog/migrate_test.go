package raftlog

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/avgpipe/avgpipe/internal/cluster"
)

// boltDir copies testdata/boltdir: the directory of a program before raft-wal, with a snapshot of entry 15 and the state after all entries.
func boltDir(t *testing.T) (dir string, state []byte) {
	t.Helper()
	dir = t.TempDir()
	if err := os.CopyFS(dir, os.DirFS("testdata/boltdir")); err != nil {
		t.Fatal(err)
	}
	state, err := os.ReadFile(filepath.Join(dir, "state"))
	if err != nil {
		t.Fatal(err)
	}
	return dir, state
}

// migrated opens such a directory and checks that its state is whole.
func migrated(t *testing.T, dir string, state []byte) {
	t.Helper()
	expected, err := cluster.ReadState(bytes.NewReader(state))
	if err != nil {
		t.Fatal(err)
	}
	l := openLone(t, dir)
	got := l.State()
	got.Index = expected.Index // an election adds entries
	if !bytes.Equal(bytesOf(t, got), state) {
		t.Errorf("state\n%s\nexpected\n%s", bytesOf(t, got), state)
	}
	if _, err := l.Apply(t.Context(), &cluster.SubmitJob{Name: "new"}); err != nil {
		t.Error(err)
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	for name, expected := range map[string]bool{boltName: false, boltName + ".migrated": true, walName: true, walName + ".tmp": false} {
		if _, err := os.Stat(filepath.Join(dir, name)); (err == nil) != expected {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestMigrationSurvivesInterruption after each of its steps, and in the middle of the copy.
func TestMigrationSurvivesInterruption(t *testing.T) {
	dir, state := boltDir(t)
	migrated(t, dir, state)
	migratedAgain := openLone(t, dir).State()
	if n := len(migratedAgain.Jobs()); n != 4 {
		t.Errorf("%d jobs when it is opened again", n)
	}
	stop := errors.New("stop")
	for n := 1; n <= 5; n++ {
		dir, state := boltDir(t)
		steps := 0
		_, err := Open(Config{Dir: dir, NodeID: "a", interrupt: func() error {
			if steps++; steps == n {
				return stop
			}
			return nil
		}})
		if !errors.Is(err, stop) {
			t.Fatalf("step %d: %v", n, err)
		}
		if n < 5 {
			if err := Check(dir); err != nil {
				t.Errorf("interrupted after step %d: Check: %v", n, err)
			}
		}
		if n == 2 { // half of a copy
			if err := os.Truncate(filepath.Join(dir, walName+".tmp", metaName), 7); err != nil {
				t.Fatal(err)
			}
		}
		migrated(t, dir, state)
	}
}

// TestOldLogBesideANewerOneIsRefused: as where somebody restores it from a backup.
func TestOldLogBesideANewerOneIsRefused(t *testing.T) {
	dir, state := boltDir(t)
	migrated(t, dir, state)
	if err := os.Rename(filepath.Join(dir, boltName+".migrated"), filepath.Join(dir, boltName)); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(Config{Dir: dir, NodeID: "a"}); err == nil || !strings.Contains(err.Error(), "move the older one away") {
		t.Errorf("error %v", err)
	}
}

// TestDamagedOldLogIsReportedByName: with any bit flipped, and wherever it is cut, it is not migrated, or nothing that anybody reads
// has changed.
func TestDamagedOldLogIsReportedByName(t *testing.T) {
	dir, _ := boltDir(t)
	path := filepath.Join(dir, boltName)
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	describe := func() (string, error) {
		b, err := readBolt(path)
		if err != nil {
			return "", err
		}
		lines := []string{fmt.Sprintf("%q", b.values)}
		for _, e := range b.entries {
			lines = append(lines, fmt.Sprintf("%d %d %d %x", e.Index, e.Term, e.Type, e.Data))
		}
		return strings.Join(lines, "\n"), nil
	}
	expected, err := describe()
	if err != nil {
		t.Fatal(err)
	}
	reported := 0
	try := func(what string, data []byte) {
		t.Helper()
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
		got, err := describe()
		switch {
		case err == nil && got != expected:
			t.Fatalf("%s: loaded\n%s\nexpected\n%s", what, got, expected)
		case err != nil && !strings.Contains(err.Error(), path):
			t.Fatalf("%s: %v: expected the name of the file", what, err)
		case err != nil:
			reported++
		}
	}
	for i, b := range whole {
		if inHeader := i%4096 < 64; inHeader || b != 0 && i%17 == 0 {
			flipped := bytes.Clone(whole)
			flipped[i] ^= 1 << (i % 8)
			try(fmt.Sprintf("byte %d of page %d flipped", i%4096, i/4096), flipped)
		}
	}
	if reported < 200 {
		t.Errorf("only %d flips reported", reported)
	}
	for n := 1; n < len(whole); n += 1021 {
		try(fmt.Sprintf("cut to %d", n), whole[:n])
	}
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(Config{Dir: dir, NodeID: "a"}); err == nil || !strings.Contains(err.Error(), path+" is empty") {
		t.Errorf("emptied: %v", err)
	}
}

// FuzzCheckBolt: no file may crash the check.
func FuzzCheckBolt(f *testing.F) {
	data, err := os.ReadFile("testdata/boltdir/raft.db")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(data, 100, byte(1))
	f.Fuzz(func(_ *testing.T, data []byte, at int, flip byte) {
		if len(data) > 0 {
			data = bytes.Clone(data)
			data[uint(at)%uint(len(data))] ^= flip
		}
		_ = checkBolt(data) // whatever it says
	})
}
