package agent

import (
	"os"
	"strings"
	"testing"

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
