package admission

import (
	"fmt"
	"os"
	"runtime"
	"runtime/debug"

	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"

	"github.com/avgpipe/avgpipe/internal/access"
)

// confine bounds what this process may allocate, and takes a user's rights if it may: that of root. It computes on one core: there
// is then one file at a time that it reads, and trainings have the others.
func confine(user access.User) error {
	runtime.GOMAXPROCS(1)
	debug.SetMemoryLimit(inspectBytes * 3 / 4) // collect before the bound is met
	// The kernel takes this process first when memory runs out. Where it may not be told, the bound below holds.
	_ = os.WriteFile("/proc/self/oom_score_adj", []byte("1000"), 0)
	held, err := dataBytes()
	if err != nil {
		return err
	}
	// The bounds can be lifted for an interpreter that runs the user's own program: see unbound.
	for which, most := range map[int]uint64{unix.RLIMIT_DATA: held + inspectBytes, unix.RLIMIT_CORE: 0, unix.RLIMIT_FSIZE: 0} {
		var limit unix.Rlimit
		err := unix.Getrlimit(which, &limit)
		if limit.Cur = min(most, limit.Max); err == nil {
			err = unix.Setrlimit(which, &limit)
		}
		if err != nil {
			return fmt.Errorf("bound what it takes and writes: %w", err)
		}
	}
	if os.Geteuid() != 0 || user.UID == 0 {
		return nil
	}
	return user.Become()
}

// dataBytes is what this process has of memory that RLIMIT_DATA counts (getrlimit(2)): some has been reserved at the start, more
// under the race detector.
func dataBytes() (uint64, error) {
	self, err := procfs.Self()
	if err != nil {
		return 0, err
	}
	status, err := self.NewStatus()
	return status.VmData, err
}
