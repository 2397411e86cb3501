package agent

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/avgpipe/avgpipe/internal/api"
)

// shownLog is an entry as a reader of the API sees it.
type shownLog struct{ Time, Level, Msg, Output, Cursor string }

func logLine(second int, level, msg string) string {
	return fmt.Sprintf(`{"time":"2026-01-02T03:04:%02d.000Z","level":%q,"msg":%q}`+"\n", second, level, msg)
}

func addLog(t *testing.T, path, text string) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteString(text); err != nil {
		t.Fatal(err)
	}
}

func openedLog(t *testing.T, path string, r api.LogRequest) *LogFile {
	t.Helper()
	reader, err := OpenLog(path, r)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { reader.Close() })
	return reader
}

// readLog reads what there is now.
func readLog(t *testing.T, r *LogFile, ended bool) (messages string, all []shownLog) {
	t.Helper()
	var said []string
	for {
		text, err := r.Next(ended)
		if errors.Is(err, io.EOF) {
			return strings.Join(said, ","), all
		}
		var e shownLog
		if err := errors.Join(err, json.Unmarshal(text, &e)); err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		said, all = append(said, e.Msg), append(all, e)
	}
}

func TestLogFileFollowsAcrossRotations(t *testing.T) {
	path := filepath.Join(t.TempDir(), "worker.log")
	r := openedLog(t, path, api.LogRequest{})
	if got, _ := readLog(t, r, false); got != "" {
		t.Errorf("a log that is not there yet says %s", got)
	}
	addLog(t, path, logLine(1, "info", "a")+logLine(2, "info", "b")+`{"time":"2026`)
	if got, _ := readLog(t, r, false); got != "a,b" {
		t.Errorf("read %s; half a line is none", got)
	}
	addLog(t, path, `-01-02T03:04:03Z","level":"info","msg":"c"}`+"\n")
	for i, msg := range []string{"d", "e"} { // rotated twice before anybody looked
		addLog(t, path, logLine(4+i, "info", "last of "+msg))
		if err := errors.Join(rename(path+".1", path+".2"), os.Rename(path, path+".1")); err != nil {
			t.Fatal(err)
		}
		addLog(t, path, logLine(5+i, "info", "first after "+msg))
	}
	if got, _ := readLog(t, r, false); got != "c,last of d,first after d,last of e,first after e" {
		t.Errorf("across rotations: %s", got)
	}
	if got, _ := readLog(t, openedLog(t, path, api.LogRequest{}), false); got != "a,b,c,last of d,first after d,last of e,first after e" {
		t.Errorf("from the beginning: %s", got)
	}
}

func rename(from, to string) error {
	if err := os.Rename(from, to); !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// Whoever goes on after the cursor of any entry gets exactly the entries after it, rotated or not.
func TestLogFileGoesOnAfterEveryEntry(t *testing.T) {
	path := filepath.Join(t.TempDir(), "worker.log")
	addLog(t, path, logLine(1, "info", "a")+"panic: x\ngoroutine 1\n"+logLine(2, "info", "b"))
	if err := os.Rename(path, path+".1"); err != nil {
		t.Fatal(err)
	}
	addLog(t, path, "fatal error: y\n"+logLine(3, "info", "c")+"no end of line")
	whole, entries := readLog(t, openedLog(t, path, api.LogRequest{}), true)
	if whole != "a,panic: x,b,fatal error: y,c,no end of line" {
		t.Fatalf("the log is %s", whole)
	}
	if p := entries[1]; p.Level != "error" || p.Output != "panic: x\ngoroutine 1" || p.Time != entries[0].Time {
		t.Errorf("a panic is %+v", p)
	}
	for i, e := range entries {
		rest, _ := readLog(t, openedLog(t, path, api.LogRequest{After: e.Cursor}), true)
		var want []string
		for _, later := range entries[i+1:] {
			want = append(want, later.Msg)
		}
		if rest != strings.Join(want, ",") {
			t.Errorf("after %q: %s, want %s", e.Msg, rest, strings.Join(want, ","))
		}
	}
	if err := os.Remove(path + ".1"); err != nil {
		t.Fatal(err)
	}
	if rest, _ := readLog(t, openedLog(t, path, api.LogRequest{After: entries[0].Cursor}), true); rest != "fatal error: y,c,no end of line" {
		t.Errorf("after an entry whose file is gone: %s", rest)
	}
	if _, err := OpenLog(path, api.LogRequest{After: "yesterday"}); err == nil {
		t.Error("no cursor was taken for one")
	}
}

func TestLogFileSelects(t *testing.T) {
	path := filepath.Join(t.TempDir(), "worker.log")
	addLog(t, path, `{"time":"1970-01-01T00:00:01.500Z","level":"info","msg":"before"}`+"\n"+logLine(1, "debug", "a")+logLine(2, "warn", "b")+logLine(3, "error", "c"))
	for _, c := range []struct {
		request api.LogRequest
		want    string
	}{
		{api.LogRequest{Level: "warn"}, "b,c"},
		{api.LogRequest{Level: "error"}, "c"},
		{api.LogRequest{Level: "debug"}, "before,a,b,c"},
		{api.LogRequest{Since: time.Date(2026, 1, 2, 3, 4, 2, 0, time.UTC)}, "b,c"},
	} {
		if got, _ := readLog(t, openedLog(t, path, c.request), true); got != c.want {
			t.Errorf("%+v: %s, want %s", c.request, got, c.want)
		}
	}
}

func TestLogFileGoesOnWhenTheFileWasEmptied(t *testing.T) {
	path := filepath.Join(t.TempDir(), "worker.log")
	addLog(t, path, logLine(1, "info", "a")+logLine(2, "info", "b"))
	r := openedLog(t, path, api.LogRequest{})
	readLog(t, r, false)
	if err := os.Truncate(path, 0); err != nil {
		t.Fatal(err)
	}
	addLog(t, path, logLine(3, "info", "c"))
	if got, _ := readLog(t, r, false); got != "c" {
		t.Errorf("read %s, want c", got)
	}
}
