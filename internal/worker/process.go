package worker

import (
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"

	"github.com/avgpipe/avgpipe/internal/worker/control"
)

// loading is what this process and those that it started, the interpreters of a user's modules, have read and computed so far; zeros where the system
// does not say.
func loading() *control.Loading {
	out := &control.Loading{}
	if self, err := procfs.Self(); err == nil {
		out.ReadBytes = readBy(self)
	}
	for _, who := range []int{unix.RUSAGE_SELF, unix.RUSAGE_CHILDREN} { // of children, those that have ended
		var used unix.Rusage
		if unix.Getrusage(who, &used) == nil {
			out.CPUSeconds += (time.Duration(used.Utime.Nano()) + time.Duration(used.Stime.Nano())).Seconds()
		}
	}
	all, err := procfs.AllProcs()
	if err != nil {
		return out
	}
	for _, p := range all {
		if stat, err := p.Stat(); err == nil && stat.PPID == os.Getpid() {
			out.CPUSeconds += stat.CPUTime()
			out.ReadBytes += readBy(p)
		}
	}
	return out
}

// readBy is the bytes that a process has read, through calls and of mapped files.
func readBy(p procfs.Proc) uint64 {
	io, err := p.IO()
	if err != nil {
		return 0
	}
	return io.RChar + io.ReadBytes
}

// resetPeakRSS begins a new peak of the process's resident memory (proc_pid_clear_refs(5)). Where it may not, the peak goes on
// from the start of the process.
func resetPeakRSS() { _ = os.WriteFile("/proc/self/clear_refs", []byte("5"), 0) }

// peakRSS is the most resident memory since the reset, in bytes; 0 where the system does not say.
func peakRSS() int64 {
	self, err := procfs.Self()
	if err != nil {
		return 0
	}
	status, err := self.NewStatus()
	if err != nil {
		return 0
	}
	return int64(status.VmHWM)
}

// errBusy says that another worker trains in the job's directory.
var errBusy = errors.New("worker: another worker trains in the job's directory")

// lockDir makes a job's directory this worker's own until the file is closed. The kernel frees the lock when the process dies.
func lockDir(dir string) (*os.File, error) {
	path := control.LockPath(dir)
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("worker: lock the job's directory: %w", err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		if errors.Is(err, unix.EWOULDBLOCK) {
			err = fmt.Errorf("%w: it holds %s; it must end first", errBusy, path)
		}
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}
