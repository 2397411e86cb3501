package worker

import (
	"bytes"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/avgpipe/avgpipe/internal/worker/control"
)

// loading is what this process has read and computed so far; zeros where the system does not say.
func loading() *control.Loading {
	out := &control.Loading{}
	text, _ := os.ReadFile("/proc/self/io") // as documented
	for line := range bytes.Lines(text) {
		var n uint64
		for _, key := range []string{"rchar: %d", "read_bytes: %d"} { // through calls, and of mapped files
			if got, _ := fmt.Sscanf(string(line), key, &n); got == 1 {
				out.ReadBytes += n
			}
		}
	}
	var used unix.Rusage
	if unix.Getrusage(unix.RUSAGE_SELF, &used) == nil {
		out.CPUSeconds = (time.Duration(used.Utime.Nano()) + time.Duration(used.Stime.Nano())).Seconds()
	}
	return out
}
