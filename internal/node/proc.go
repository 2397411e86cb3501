package node

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/avgpipe/avgpipe/internal/worker/control"
)

// How the command line of a worker names its assignment, and that of a tune process its request. They also tell ours from other
// processes.
const (
	assignmentFlag = "--assignment"
	requestFlag    = "--request"
)

// process is a process of this boot: a number may be used again, the pair is not.
type process struct {
	pid   int
	start uint64 // clock ticks since boot; field 22 of /proc/PID/stat
}

// lookupProcess returns the process that now has a number. One that has ended and waits for its parent is gone.
func lookupProcess(pid int) (process, bool) {
	start, state, err := readStat(pid)
	return process{pid: pid, start: start}, err == nil && state != 'Z' && state != 'X'
}

// alive reports whether the process still runs.
func (p process) alive() bool {
	now, ok := lookupProcess(p.pid)
	return ok && now == p
}

// kill ends the process and its group (workers lead one) at once. One that is gone is no error.
func (p process) kill() error {
	if !p.alive() {
		return nil
	}
	err := syscall.Kill(-p.pid, syscall.SIGKILL)
	if errors.Is(err, syscall.ESRCH) { // it does not lead a group, or is gone
		err = syscall.Kill(p.pid, syscall.SIGKILL)
	}
	if err != nil && !errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("kill process %d: %w", p.pid, err)
	}
	return nil
}

// readStat reads a process's start time and state (proc_pid_stat(5)).
func readStat(pid int) (start uint64, state byte, err error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, 0, err
	}
	// The second field is the command's name in parentheses and may hold anything, so count from the last one.
	fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
	if len(fields) < 20 {
		return 0, 0, fmt.Errorf("/proc/%d/stat: %d fields after the name, expected at least 20", pid, len(fields))
	}
	start, err = strconv.ParseUint(fields[19], 10, 64)
	if err != nil {
		return 0, 0, fmt.Errorf("/proc/%d/stat: start time: %w", pid, err)
	}
	return start, fields[0][0], nil
}

// findProcesses returns the running workers and tune processes whose assignment or request lies in a directory of root, by that
// directory.
func findProcesses(root string) (map[string][]process, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, fmt.Errorf("look for processes: %w", err)
	}
	found := map[string][]process{}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		text, err := os.ReadFile(filepath.Join("/proc", e.Name(), "cmdline"))
		if err != nil {
			if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) || errors.Is(err, syscall.ESRCH) {
				continue // it ended meanwhile, or is another user's
			}
			return nil, fmt.Errorf("look for processes: %w", err)
		}
		dir, ok := workDir(text)
		if !ok {
			continue
		}
		// A process is told by the directory that it works in, however that was spelt when it was started.
		dir = filepath.Join(root, filepath.Base(dir))
		if !sameDir(filepath.Join("/proc", e.Name(), "cwd"), dir) {
			continue
		}
		if p, ok := lookupProcess(pid); ok {
			found[dir] = append(found[dir], p)
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

// workDir returns the directory of the assignment or the request that a command line names.
func workDir(cmdline []byte) (string, bool) {
	args := strings.Split(string(cmdline), "\x00")
	for i := range args[:len(args)-1] {
		dir := filepath.Dir(args[i+1])
		switch args[i] {
		case assignmentFlag:
			return dir, control.AssignmentPath(dir) == args[i+1]
		case requestFlag:
			return dir, control.TuneRequestPath(dir) == args[i+1]
		}
	}
	return "", false
}
