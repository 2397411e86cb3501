package foreign

import (
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"
)

// What a process that does not answer has to begin to write where its threads stand, and then to write it: it may be one of many on busy cores.
const (
	beginTimeout  = 5 * time.Second
	stacksTimeout = time.Second
)

// A stack in the form of Python's faulthandler: a head, and the calls, the innermost first.
var (
	stackHead = regexp.MustCompile(`hread 0x[0-9a-f]+.*\(most recent call first\):$`)
	stackCall = regexp.MustCompile(`^  File "(.+)", line ([0-9]+) in `)
)

// wantStacks keeps stacks from now on, and makes room for them, whatever the process has written before. The channel is closed when there is one.
func (l *log) wantStacks() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.of[stderr].free = burst
	l.begun = make(chan struct{})
	return l.begun
}

// seeStack keeps a line of a stack.
func (l *log) seeStack(line string) {
	if stackHead.MatchString(line) && len(l.stacks) == 0 {
		close(l.begun)
	}
	if stackHead.MatchString(line) || stackCall.MatchString(line) && len(l.stacks) > 0 {
		l.stacks = append(l.stacks, line)
	}
}

// seen are the stacks that were written; none if the process wrote none.
func (l *log) seen() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.stacks
}

// hung ends a process that does not answer, after it wrote where its threads stand.
func (p *Process) hung(err *HangError) error {
	err.Stopped = stopped(p.cmd.Process.Pid)
	begun := p.log.wantStacks()
	pid := p.cmd.Process.Pid
	_ = unix.Tgkill(pid, pid, unix.SIGUSR1)   // to the thread that runs the program, which so stands still while it writes
	_ = p.cmd.Process.Signal(syscall.SIGCONT) // one that is stopped writes them too
	if !p.comes(begun, beginTimeout/2) {
		_ = p.cmd.Process.Signal(syscall.SIGUSR1) // that thread may not take it
		p.comes(begun, beginTimeout/2)
	}
	_, unended := p.end(stacksTimeout)
	stacks := p.log.seen()
	err.File, err.Line = p.stands(stacks)
	err.Logged = len(stacks) > 0 && p.config.Log != nil
	p.failure = errors.Join(err, unended)
	return p.failure
}

// comes waits until there is a stack, for so long at most, or until the process has ended, and reports whether it did not wait in vain.
func (p *Process) comes(begun <-chan struct{}, most time.Duration) bool {
	select {
	case <-begun:
	case <-p.ended:
	case <-time.After(most):
		return false
	}
	return true
}

// stopped reports whether a signal has stopped a process.
func stopped(pid int) bool {
	found, err := procfs.NewProc(pid)
	if err != nil {
		return false
	}
	stat, err := found.Stat()
	return err == nil && stat.State == "T"
}

// stands is the innermost call in the user's own files, which lie beside the program and in no installed package.
func (p *Process) stands(stacks []string) (file string, line int) {
	path, err := filepath.Abs(filepath.Join(p.config.Dir, p.program))
	if filepath.IsAbs(p.program) {
		path, err = p.program, nil
	}
	if err != nil || p.program == "" {
		return "", 0
	}
	for _, text := range stacks {
		call := stackCall.FindStringSubmatch(text)
		if call == nil || !strings.HasPrefix(call[1], filepath.Dir(path)+string(os.PathSeparator)) || strings.Contains(call[1], "site-packages") || strings.Contains(call[1], "dist-packages") {
			continue
		}
		if n, err := strconv.Atoi(call[2]); err == nil {
			return call[1], n
		}
	}
	return "", 0
}
