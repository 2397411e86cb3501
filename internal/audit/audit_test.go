package audit_test

import (
	"bufio"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"go.uber.org/goleak"
	"go.uber.org/zap"

	"github.com/avgpipe/avgpipe/internal/audit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// read returns the records of a file; bad counts lines that are none.
func read(t *testing.T, path string) (all []audit.Record, bad int) {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		var r audit.Record
		if json.Unmarshal(lines.Bytes(), &r) != nil {
			bad++
			continue
		}
		all = append(all, r)
	}
	return all, bad
}

func open(t *testing.T, c audit.Config) *audit.Log {
	t.Helper()
	c.Log = zap.NewNop()
	l, err := audit.Open(c)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func closeLog(t *testing.T, l *audit.Log) {
	t.Helper()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestRecordsOutliveARestartAndATornLine(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "audit.log")
	l := open(t, audit.Config{Path: path})
	l.Write(audit.Record{User: "ada", UID: new(uint32(7)), Operation: "cancel", Status: 202})
	closeLog(t, l)
	f, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteString(`{"time":"20`); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	l = open(t, audit.Config{Path: path})
	l.Write(audit.Record{User: "eve", Operation: "remove", Status: 403, Error: "no"})
	closeLog(t, l)
	l.Write(audit.Record{Operation: "after Close"}) // is lost, and no panic
	all, bad := read(t, path)
	if len(all) != 2 || bad != 1 || all[0].User != "ada" || *all[0].UID != 7 || all[1].Error != "no" || all[1].Time.IsZero() {
		t.Errorf("%d lines are no records; the others are %+v", bad, all)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v; want 0600: it names users", info.Mode(), err)
	}
}

func TestFilesAreRotated(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "audit.log")
	l := open(t, audit.Config{Path: path, Bytes: 2000, Files: 2})
	var writers sync.WaitGroup
	for range 4 {
		writers.Go(func() {
			for range 50 {
				l.Write(audit.Record{Operation: "submit", Error: strings.Repeat("x", 100)})
			}
		})
	}
	writers.Wait()
	closeLog(t, l)
	names, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil || len(names) != 3 {
		t.Fatalf("files %v, %v; want the file and 2 rotated ones", names, err)
	}
	for _, name := range names {
		info, err := os.Stat(name)
		if err != nil || info.Size() > 2000 {
			t.Errorf("%s has %d bytes, %v; at most 2000", name, info.Size(), err)
		}
		if all, bad := read(t, name); len(all) == 0 || bad > 0 {
			t.Errorf("%s: %d records and %d bad lines", name, len(all), bad)
		}
	}
}

func TestAPipeIsNoAuditLog(t *testing.T) {
	t.Parallel()
	if _, err := audit.Open(audit.Config{Path: t.TempDir(), Log: zap.NewNop()}); err == nil {
		t.Error("a directory was opened")
	}
	if _, err := audit.Open(audit.Config{Path: "x"}); err == nil {
		t.Error("a log without a logger was opened")
	}
}
