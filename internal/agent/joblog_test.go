package agent

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/avgpipe/avgpipe/internal/api"
	"github.com/avgpipe/avgpipe/internal/worker/control"
)

func TestLogTailSaysWhatWentWrong(t *testing.T) {
	const before = `{"level":"error","msg":"of an earlier worker"}` + "\n"
	for name, c := range map[string]struct{ log, want string }{
		"nothing":  {"", ""},
		"no news":  {`{"level":"info","msg":"training"}` + "\n", ""},
		"an error": {`{"level":"info","msg":"a"}` + "\n" + `{"level":"error","msg":"b","error":"c"}` + "\n", "b: c"},
		"text":     {"one\ntwo\nthree\nfour\n", "two | three | four"},
		"a panic":  {"panic: index out of range\n\ngoroutine 1 [running]:\nmain.main()\n", "panic: index out of range"},
		"a fault":  {strings.Repeat("noise\n", 10) + "SIGSEGV: segmentation violation\nPC=0x1\ngs     0x0\n", "SIGSEGV: segmentation violation"},
		"too long": {strings.Repeat("x", 2*tailWidth), strings.Repeat("x", tailWidth)},
		"not text": {"\xff\xfeoops\n", "oops"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			if err := os.WriteFile(control.LogPath(dir), []byte(before+c.log), 0o600); err != nil {
				t.Fatal(err)
			}
			if got := logTail(dir, int64(len(before))); got != c.want {
				t.Errorf("%q, want %q", got, c.want)
			}
		})
	}
	if got := logTail(t.TempDir(), 0); got != "" {
		t.Errorf("a log that is not there says %q", got)
	}
}

// TestAPipeForALogBlocksNobody: it is refused at once, by name, to read and to write, and the agent ends.
func TestAPipeForALogBlocksNobody(t *testing.T) {
	state := t.TempDir()
	path := control.LogPath(JobDir(state, "1"))
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o750), syscall.Mkfifo(path, 0o640)); err != nil {
		t.Fatal(err)
	}
	said, lines := observer.New(zap.WarnLevel)
	l, err := Open(Config{StateDir: state, Log: zap.New(said), Limits: func() Limits { return Limits{QuarantineFor: time.Hour} }})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := OpenLog(path, api.LogRequest{}); err == nil || !strings.Contains(err.Error(), "worker.log is a pipe, not a file") {
		t.Errorf("opened to read: %v", err)
	}
	if text := logTail(filepath.Dir(path), 0); text != "" {
		t.Errorf("its end is %q", text)
	}
	l.Log("1", zap.InfoLevel, "placed")
	l.Close()
	if got := lines.All(); len(got) != 1 || got[0].Message != "write to the job's log" {
		t.Errorf("the daemon's log has %v", got)
	}
}

// TestCloseIsBounded: a system call on a disk that hangs holds the daemon's end up for a while and not for ever.
func TestCloseIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, err := Open(Config{StateDir: t.TempDir(), Log: zap.NewNop(), Limits: func() Limits { return Limits{QuarantineFor: time.Hour} }})
		if err != nil {
			t.Fatal(err)
		}
		hung, began := make(chan struct{}), time.Now()
		l.tasks.Go(func() { <-hung })
		l.Close()
		if took := time.Since(began); took != closeTimeout {
			t.Errorf("closed after %v, want %v", took, closeTimeout)
		}
		close(hung)
	})
}
