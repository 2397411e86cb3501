package rig

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"
)

// Supervisor runs a daemon as deploy/avgpiped.service has systemd do it: it starts it again a little after every end but a refused
// configuration.
type Supervisor struct {
	config SupervisorConfig
	stop   context.CancelFunc // after the daemon that runs has ended, there is no other
	joined sync.WaitGroup

	mu   sync.Mutex
	cmd  *exec.Cmd // running; nil: none
	held bool      // it is not to be started
	ends []string  // how daemons ended, in order
}

// SupervisorConfig configures a Supervisor. All is required.
type SupervisorConfig struct {
	Command func() *exec.Cmd // that starts a daemon
	Log     string           // the file that the daemons' output is appended to
	// Bound is how long a daemon may take to end that was told to.
	Bound time.Duration
}

const (
	exitConfig   = 78                     // EX_CONFIG, after which systemd does not start the daemon again
	restartPause = 100 * time.Millisecond // the unit's RestartSec in short
	// InOrder is how a daemon ends that was told to.
	InOrder = "exit status 0"
)

// Supervise starts a daemon, and the next one after each. End ends it.
func Supervise(ctx context.Context, c SupervisorConfig) *Supervisor {
	ctx, stop := context.WithCancel(ctx)
	s := &Supervisor{config: c, stop: stop}
	s.joined.Go(func() {
		for ctx.Err() == nil {
			if err := s.once(); err != nil {
				s.ended("it cannot be started: "+err.Error(), true)
			}
			Pause(ctx, restartPause)
		}
	})
	return s
}

// Pause waits for a time, or until ctx ends.
func Pause(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

// once runs one daemon to its end, unless none is to be started.
func (s *Supervisor) once() error {
	log, err := os.OpenFile(s.config.Log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close() //nolint:errcheck // the daemon has its own descriptor
	cmd := s.config.Command()
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Setpgid = true // SIGINT at the terminal is for the harness
	cmd.Stdout, cmd.Stderr = log, log
	if started, err := s.begin(cmd); err != nil || !started {
		return err
	}
	err = cmd.Wait()
	exit, refused := errors.AsType[*exec.ExitError](err)
	how := InOrder
	if err != nil {
		how = err.Error()
	}
	s.ended(how, refused && exit.ExitCode() == exitConfig)
	return nil
}

func (s *Supervisor) begin(cmd *exec.Cmd) (started bool, err error) {
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

func (s *Supervisor) ended(how string, hold bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cmd, s.ends, s.held = nil, append(s.ends, how), s.held || hold
}

// Now returns the number of the running daemon, 0 without one, and how those before it ended.
func (s *Supervisor) Now() (pid int, ends []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cmd != nil {
		pid = s.cmd.Process.Pid
	}
	return pid, s.ends
}

// PID is that of the running daemon; 0 without one.
func (s *Supervisor) PID() int {
	pid, _ := s.Now()
	return pid
}

// Signal signals the daemon. One that does not run is no error: another fault was faster.
func (s *Supervisor) Signal(sig syscall.Signal) error {
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

// End ends the daemon that runs, if any, with a signal. The next one is started.
func (s *Supervisor) End(ctx context.Context, sig syscall.Signal) error {
	defer s.Release()
	_, err := s.Hold(ctx, sig)
	return err
}

// Hold ends the daemon with a signal and keeps the next one from being started until Release. It returns how it ended, in order where
// none ran.
func (s *Supervisor) Hold(ctx context.Context, sig syscall.Signal) (how string, err error) {
	s.mu.Lock()
	s.held = true
	s.mu.Unlock()
	pid := s.PID()
	if err := s.Signal(sig); err != nil {
		return "", err
	}
	err = Poll(ctx, s.config.Bound, "the end of the daemon on "+sig.String(), func() bool { return s.PID() == 0 })
	if _, ends := s.Now(); pid != 0 && err == nil {
		return ends[len(ends)-1], nil
	}
	return InOrder, err
}

// Release lets the next daemon start.
func (s *Supervisor) Release() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.held = false
}

// Close starts no daemon any more, and waits for the end of the one that runs.
func (s *Supervisor) Close() {
	s.stop()
	s.joined.Wait()
}
