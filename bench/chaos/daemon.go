package main

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"

	"github.com/avgpipe/avgpipe/bench/internal/rig"
)

// supervisor runs the daemon as deploy/avgpiped.service has systemd do it: it starts it again a little after every end but a refused
// configuration.
type supervisor struct {
	w      *testbed
	stop   context.CancelFunc // after the daemon that runs has ended, there is no other
	joined sync.WaitGroup

	mu   sync.Mutex
	cmd  *exec.Cmd // running; nil: none
	held bool      // it is not to be started
	ends []string  // how daemons ended, in order
}

const (
	exitConfig   = 78                     // EX_CONFIG, after which systemd does not start the daemon again
	restartPause = 100 * time.Millisecond // the unit's RestartSec in short
	inOrder      = "exit status 0"        // how a daemon ends that was told to
)

func supervise(ctx context.Context, w *testbed) *supervisor {
	ctx, stop := context.WithCancel(ctx)
	s := &supervisor{w: w, stop: stop}
	s.joined.Go(func() {
		for ctx.Err() == nil {
			if err := s.once(); err != nil {
				s.ended("it cannot be started: "+err.Error(), true)
			}
			pause(ctx, restartPause)
		}
	})
	return s
}

// once runs one daemon to its end, unless none is to be started.
func (s *supervisor) once() error {
	log, err := os.OpenFile(s.w.log(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()                                          //nolint:errcheck // the daemon has its own descriptor
	cmd := exec.Command(s.w.program, "--config", s.w.config()) //nolint:noctx // it is ended by signals alone
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}      // SIGINT at the terminal is for the harness
	cmd.Stdout, cmd.Stderr = log, log
	if started, err := s.begin(cmd); err != nil || !started {
		return err
	}
	err = cmd.Wait()
	exit, refused := errors.AsType[*exec.ExitError](err)
	how := inOrder
	if err != nil {
		how = err.Error()
	}
	s.ended(how, refused && exit.ExitCode() == exitConfig)
	return nil
}

func (s *supervisor) begin(cmd *exec.Cmd) (started bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.held {
		return false, nil
	}
	if err := cmd.Start(); err != nil {
		return false, err
	}
	s.cmd = cmd
	return true, nil
}

func (s *supervisor) ended(how string, hold bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cmd, s.ends, s.held = nil, append(s.ends, how), s.held || hold
}

// now returns the number of the running daemon, 0 without one, and how those before it ended.
func (s *supervisor) now() (pid int, ends []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cmd != nil {
		pid = s.cmd.Process.Pid
	}
	return pid, s.ends
}

func (s *supervisor) pid() int {
	pid, _ := s.now()
	return pid
}

// signal signals the daemon. One that does not run is no error: another fault was faster.
func (s *supervisor) signal(sig syscall.Signal) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cmd == nil {
		return nil
	}
	err := s.cmd.Process.Signal(sig)
	if errors.Is(err, os.ErrProcessDone) {
		return nil
	}
	return err
}

// end ends the daemon that runs, if any, with a signal. The next one is started.
func (s *supervisor) end(ctx context.Context, sig syscall.Signal) error {
	defer s.release()
	_, err := s.hold(ctx, sig)
	return err
}

// hold ends the daemon with a signal and keeps the next one from being started until release. It returns how it ended, in order where
// none ran.
func (s *supervisor) hold(ctx context.Context, sig syscall.Signal) (how string, err error) {
	s.mu.Lock()
	s.held = true
	s.mu.Unlock()
	pid := s.pid()
	if err := s.signal(sig); err != nil {
		return "", err
	}
	err = rig.Poll(ctx, startBound, "the end of the daemon on "+sig.String(), func() bool { return s.pid() == 0 })
	if _, ends := s.now(); pid != 0 && err == nil {
		return ends[len(ends)-1], nil
	}
	return inOrder, err
}

func (s *supervisor) release() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.held = false
}
