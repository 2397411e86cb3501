package worker

import (
	"bytes"
	"fmt"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/avgpipe/avgpipe/internal/worker/control"
)

// TestRotatedLogLosesNoLine while a writer holds it open, and keeps no more files than it should.
func TestRotatedLogLosesNoLine(t *testing.T) {
	dir := t.TempDir()
	open := func() *os.File {
		f, err := os.OpenFile(control.LogPath(dir), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o640)
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	log, other := open(), open()
	defer log.Close()
	defer other.Close()
	if err := os.WriteFile(control.LogPath(dir)+".old", []byte("a user's"), 0o600); err != nil {
		t.Fatal(err)
	}
	for i := range 100 {
		if _, err := fmt.Fprintf(log, "line %d\n", i); err != nil {
			t.Fatal(err)
		}
		if err := rotate(dir, 200, 20, []int{int(log.Fd()), int(other.Fd())}); err != nil {
			t.Fatal(err)
		}
	}
	var all bytes.Buffer
	rotated := 0
	for n := 20; n >= 0; n-- {
		path := control.LogPath(dir)
		if n > 0 {
			path = control.RotatedLogPath(dir, n)
		}
		text, err := os.ReadFile(path)
		if err != nil {
			continue
		}
		if n > 0 {
			rotated++
		}
		if len(text) > 210 {
			t.Errorf("%s has %d bytes", path, len(text))
		}
		all.Write(text)
	}
	if got := strings.Count(all.String(), "\n"); got != 100 || !strings.HasSuffix(all.String(), "line 99\n") || rotated < 3 {
		t.Errorf("%d lines in %d rotated logs:\n%s", got, rotated, &all)
	}
	if err := rotate(dir, 1, 2, []int{int(log.Fd())}); err != nil {
		t.Fatal(err)
	}
	for n, want := range map[int]bool{1: true, 2: true, 3: false, 4: false} {
		if _, err := os.Stat(control.RotatedLogPath(dir, n)); (err == nil) != want {
			t.Errorf("rotated log %d: %v", n, err)
		}
	}
	if _, err := os.Stat(control.LogPath(dir) + ".old"); err != nil {
		t.Error("a file of another name is gone")
	}
	if _, err := log.WriteString("after\n"); err != nil {
		t.Fatal(err)
	}
	if text, err := os.ReadFile(control.LogPath(dir)); err != nil || string(text) != "after\n" {
		t.Errorf("the new log is %q, %v", text, err)
	}
}

// TestDescriptorsOfOtherFilesAreLeftAlone: a worker whose output goes elsewhere rotates nothing.
func TestDescriptorsOfOtherFilesAreLeftAlone(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(control.LogPath(dir), make([]byte, 1000), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := rotate(dir, 10, 2, []int{unix.Stdout, unix.Stderr}); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(control.LogPath(dir)); err != nil || info.Size() != 1000 {
		t.Errorf("the log was rotated: %v", err)
	}
}
