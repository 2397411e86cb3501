package agent

import (
	"os"
	"strings"
	"testing"

	"github.com/avgpipe/avgpipe/internal/worker/control"
)

// TestLongLogIsRotatedBeforeAWorkerStarts, and what is read of it afterwards is all of it.
func TestLongLogIsRotatedBeforeAWorkerStarts(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(control.LogPath(dir), []byte("{\"level\":\"error\",\"msg\":\"old\"}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	from := logSize(dir)
	if err := rotateLog(dir, from+1, 2); err != nil || logSize(dir) != from {
		t.Errorf("a short log: %v, %d bytes", err, logSize(dir))
	}
	if err := rotateLog(dir, from, 2); err != nil || logSize(dir) != 0 {
		t.Errorf("a long log: %v, %d bytes", err, logSize(dir))
	}
	if text, err := os.ReadFile(control.RotatedLogPath(dir, 1)); err != nil || !strings.Contains(string(text), "old") {
		t.Errorf("the rotated log: %q, %v", text, err)
	}
	if err := os.WriteFile(control.LogPath(dir), []byte("panic: x\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := logTail(dir, from); got != "panic: x" {
		t.Errorf("the tail of a log that was rotated since: %q", got)
	}
}
