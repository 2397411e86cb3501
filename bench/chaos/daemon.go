package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"
)

// supervisor runs the daemon as deploy/avgpiped.service has systemd do it: it starts it again a little after every end but a refused
// configuration.
type supervisor struct {
	program string
	config  string
	log     string

	mu     sync.Mutex
	cmd    *exec.Cmd // running; nil: none
	held   bool      // it is not to be started
	ends   []string  // how daemons ended, in order
	failed error     // it cannot be run at all

	changed chan struct{} // closed at each change of what is above
	joined  sync.WaitGroup
}

// exitConfig is EX_CONFIG, after which systemd does not start the daemon again.
const exitConfig = 78

// restartPause is the unit's RestartSec in short.
const restartPause = 100 * time.Millisecond

func supervise(ctx context.Context, program, config, log string) *supervisor {
	s := &supervisor{program: program, config: config, log: log, changed: make(chan struct{})}
	s.joined.Go(func() { s.run(ctx) })
	return s
}

// change changes what mu guards and wakes who waits for it.
func (s *supervisor) change(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
	close(s.changed)
	s.changed = make(chan struct{})
}

// until waits until something holds of what mu guards.
func (s *supervisor) until(ctx context.Context, what string, holds func() bool) error {
	ctx, cancel := context.WithTimeout(ctx, startBound)
	defer cancel()
	for {
		s.mu.Lock()
		ok, changed, failed := holds(), s.changed, s.failed
		s.mu.Unlock()
		if ok || failed != nil {
			return failed
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("%s: not within %v", what, startBound)
		}
	}
}

// run starts daemons until ctx ends, and then waits for the last one.
func (s *supervisor) run(ctx context.Context) {
	for ctx.Err() == nil {
		s.mu.Lock()
		held, changed := s.held, s.changed
		s.mu.Unlock()
		if held {
			select {
			case <-changed:
			case <-ctx.Done():
			}
			continue
		}
		if err := s.once(); err != nil {
			s.change(func() { s.failed = err })
			return
		}
		select {
		case <-time.After(restartPause):
		case <-ctx.Done():
		}
	}
}

// once runs one daemon to its end.
func (s *supervisor) once() error {
	log, err := os.OpenFile(s.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()                                     //nolint:errcheck // the daemon has its own descriptor
	cmd := exec.Command(s.program, "--config", s.config)  //nolint:noctx // it is ended by signals alone
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // SIGINT at the terminal is for the harness
	cmd.Stdout, cmd.Stderr = log, log
	started := false
	s.change(func() {
		if s.held {
			return
		}
		if err = cmd.Start(); err == nil {
			s.cmd, started = cmd, true
		}
	})
	if !started {
		return err
	}
	err = cmd.Wait()
	s.change(func() {
		s.cmd = nil
		s.ends = append(s.ends, endOf(err))
		if exit, ok := errors.AsType[*exec.ExitError](err); ok && exit.ExitCode() == exitConfig {
			s.held = true
		}
	})
	return nil
}

// inOrder is how a daemon ends that was told to.
const inOrder = "exit status 0"

func endOf(err error) string {
	if err == nil {
		return inOrder
	}
	return err.Error()
}

// pid is the running daemon's; 0 without one.
func (s *supervisor) pid() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cmd == nil {
		return 0
	}
	return s.cmd.Process.Pid
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

// end ends the daemon that runs, if any, with a signal.
func (s *supervisor) end(ctx context.Context, sig syscall.Signal) error {
	s.mu.Lock()
	ends, running := len(s.ends), s.cmd != nil
	s.mu.Unlock()
	if !running {
		return nil
	}
	if err := s.signal(sig); err != nil {
		return err
	}
	return s.until(ctx, "the end of the daemon on "+sig.String(), func() bool { return len(s.ends) > ends })
}

// hold ends the daemon with a signal and keeps the next one from being started until release.
func (s *supervisor) hold(ctx context.Context, sig syscall.Signal) error {
	s.change(func() { s.held = true })
	if err := s.signal(sig); err != nil {
		return err
	}
	return s.until(ctx, "the end of the daemon on "+sig.String(), func() bool { return s.cmd == nil })
}

func (s *supervisor) release() { s.change(func() { s.held = false }) }

// endsSoFar is how many daemons have ended.
func (s *supervisor) endsSoFar() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.ends)
}

// lastEnd is how the last daemon ended.
func (s *supervisor) lastEnd() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.ends) == 0 {
		return "none has ended"
	}
	return s.ends[len(s.ends)-1]
}
