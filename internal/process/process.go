package process

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"
)

// ID is a process of this boot.
type ID struct {
	PID   int
	Start uint64 // clock ticks since boot; field 22 of /proc/PID/stat
}

// Lookup returns the process that now has a number. One that has ended and waits for its parent is gone.
func Lookup(pid int) (ID, bool) {
	start, state, err := readStat(pid)
	return ID{PID: pid, Start: start}, err == nil && state != "Z" && state != "X"
}

// Host are the processes of this host.
type Host struct {
	// WorkDir says from a command line which directory its process works in; "" is none.
	WorkDir func(args []string) string
}

// Alive reports whether a process still runs.
func (Host) Alive(p ID) bool {
	now, ok := Lookup(p.PID)
	return ok && now == p
}

// Kill ends a process and its group, if it leads one, at once. One that is gone is no error.
func (h Host) Kill(p ID) error {
	if !h.Alive(p) {
		return nil
	}
	err := syscall.Kill(-p.PID, syscall.SIGKILL)
	if errors.Is(err, syscall.ESRCH) { // it does not lead a group, or is gone
		err = syscall.Kill(p.PID, syscall.SIGKILL)
	}
	if err != nil && !errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("kill process %d: %w", p.PID, err)
	}
	return nil
}

// readStat reads a process's start time and state (proc_pid_stat(5)).
func readStat(pid int) (start uint64, state string, err error) {
	p, err := procfs.NewProc(pid)
	if err != nil {
		return 0, "", err
	}
	stat, err := p.Stat()
	return stat.Starttime, stat.State, err
}

// Isolate has cmd start in a process group of its own, with the environment of this process but for what systemd meant for this
// process alone. Where cmd has a context, the end of that kills the whole group.
func Isolate(cmd *exec.Cmd) {
	forDaemon := []string{"NOTIFY_SOCKET", "WATCHDOG_PID", "WATCHDOG_USEC", "LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES"}
	cmd.Env = slices.DeleteFunc(os.Environ(), func(v string) bool {
		name, _, _ := strings.Cut(v, "=")
		return slices.Contains(forDaemon, name)
	})
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if cmd.Cancel != nil {
		cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	}
}

// FirstInherited is the number of the first descriptor of exec.Cmd.ExtraFiles in the process that is started: after standard input, output and error.
const FirstInherited = 3

// Start starts cmd isolated. The caller waits for it: Wait of the ID, then cmd.Wait.
func Start(cmd *exec.Cmd) (ID, error) {
	Isolate(cmd)
	if err := cmd.Start(); err != nil {
		return ID{}, err
	}
	start, _, err := readStat(cmd.Process.Pid) // a child that nobody has waited for keeps its number
	if err != nil {
		return ID{}, errors.Join(err, cmd.Process.Kill(), cmd.Wait())
	}
	return ID{PID: cmd.Process.Pid, Start: start}, nil
}

// open returns a descriptor that is readable once a process has ended.
func open(pid int) (*os.File, error) {
	fd, err := unix.PidfdOpen(pid, 0)
	if err == nil {
		err = unix.SetNonblock(fd, true) // then Go's poller waits for it, without a thread
	}
	if err != nil {
		return nil, fmt.Errorf("wait for process %d: pidfd_open, which needs Linux 5.3: %w", pid, err)
	}
	return os.NewFile(uintptr(fd), "pidfd"), nil
}

// CheckWait reports why this system does not let anybody wait for processes.
func CheckWait() error {
	file, err := open(os.Getpid())
	if err != nil {
		return err
	}
	return file.Close()
}

// Wait waits until a process has ended, a child or not, or ctx has. A child that has ended is still to be reaped.
func (h Host) Wait(ctx context.Context, p ID) error {
	file, err := open(p.PID)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil {
		return err
	}
	defer file.Close() //nolint:errcheck // nothing was written
	if !h.Alive(p) {   // looked at after the descriptor was opened, which then is of this process
		return nil
	}
	conn, err := file.SyscallConn()
	if err != nil {
		return fmt.Errorf("wait for process %d: %w", p.PID, err)
	}
	stop := context.AfterFunc(ctx, func() { _ = file.SetReadDeadline(time.Unix(1, 0)) }) // it fails once Wait has returned
	defer stop()
	err = conn.Read(func(fd uintptr) bool {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0) //nolint:gosec // a descriptor
		return n > 0 && err == nil
	})
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if err != nil {
		return fmt.Errorf("wait for process %d: %w", p.PID, err)
	}
	return nil
}

// Find returns the running processes that work in a directory of root, by that directory.
func (h Host) Find(root string) (map[string][]ID, error) {
	all, err := procfs.AllProcs()
	if err != nil {
		return nil, fmt.Errorf("look for processes: %w", err)
	}
	found := map[string][]ID{}
	for _, p := range all {
		if p.PID == os.Getpid() {
			continue
		}
		args, err := p.CmdLine()
		if err != nil {
			if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) || errors.Is(err, syscall.ESRCH) {
				continue // it ended meanwhile, or is another user's
			}
			return nil, fmt.Errorf("look for processes: %w", err)
		}
		dir := ""
		if len(args) > 0 { // else it is the kernel's
			dir = h.WorkDir(args)
		}
		if dir == "" {
			continue
		}
		// A process is told by the directory that it works in, however that was spelt when it was started.
		dir = filepath.Join(root, filepath.Base(dir))
		if !sameDir(fmt.Sprintf("/proc/%d/cwd", p.PID), dir) {
			continue
		}
		if id, ok := Lookup(p.PID); ok {
			found[dir] = append(found[dir], id)
		}
	}
	return found, nil
}

// sameDir reports whether two paths lead to one directory.
func sameDir(a, b string) bool {
	one, errOne := os.Stat(a)
	other, errOther := os.Stat(b)
	return errOne == nil && errOther == nil && os.SameFile(one, other)
}
