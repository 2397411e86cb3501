package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"

	"github.com/avgpipe/avgpipe/bench/internal/rig"
	"github.com/avgpipe/avgpipe/internal/api"
)

func kill(pids ...int) (func() error, error) { return nil, signalAll(pids, syscall.SIGKILL) }

func killWorkers(ctx context.Context, w *host) error {
	return w.inARow(ctx, func() error { return signalAll(w.processes(asWorker), syscall.SIGKILL) })
}

// inARow does something three times.
func (w *host) inARow(ctx context.Context, do func() error) error {
	for range 3 {
		if err := do(); err != nil {
			return err
		}
		// The next workers may not be there yet; that is as random as the rest.
		rig.Pause(ctx, time.Duration(w.random.Int64N(int64(300*time.Millisecond))))
	}
	return nil
}

func killDaemon(ctx context.Context, w *host) error { return w.daemon.End(ctx, syscall.SIGKILL) }

func crashDaemon(ctx context.Context, w *host) error { return w.daemon.End(ctx, syscall.SIGABRT) }

// stopDaemon expects that a daemon which answers ends in order.
func stopDaemon(ctx context.Context, w *host) error {
	defer w.daemon.Release()
	if err := w.answers(ctx); err != nil {
		return err
	}
	end, err := w.daemon.Hold(ctx, syscall.SIGTERM)
	if err != nil {
		return err
	}
	if end != rig.InOrder {
		return fmt.Errorf("the daemon ended on SIGTERM with %s", end)
	}
	if left := w.processes(asWorker); len(left) > 0 {
		return fmt.Errorf("workers %v outlive a daemon that ended in order", left)
	}
	return nil
}

// tuning waits for a tuning, for a short time: it may be over.
func (w *host) tuning(ctx context.Context) (pids []int) {
	_ = rig.Poll(ctx, 2*time.Second, "a tuning", func() bool {
		pids = w.processes(asTuning)
		return len(pids) > 0
	})
	return pids
}

func killTuning(ctx context.Context, w *host) error {
	return signalAll(w.tuning(ctx), syscall.SIGKILL)
}

func killTuningDaemon(ctx context.Context, w *host) error {
	w.tuning(ctx)
	return killDaemon(ctx, w)
}

// freeze stops processes; undo lets them go on.
func freeze(pids ...int) (undo func() error, err error) {
	return func() error { return signalAll(pids, syscall.SIGCONT) }, signalAll(pids, syscall.SIGSTOP)
}

func freezeAll(_ context.Context, w *host) (func() error, error) {
	return freeze(w.processes("")...)
}

// freezeDaemon expects that a daemon which was away itself spares its workers. One may end meanwhile by an earlier fault.
func freezeDaemon(ctx context.Context, w *host) error {
	pid := w.daemon.PID()
	if pid == 0 {
		return nil
	}
	before := w.training()
	undo, err := freeze(pid)
	if err != nil {
		return errors.Join(err, undo())
	}
	asleep := responseTimeout/2 + time.Duration(w.random.Int64N(int64(2*responseTimeout)))
	rig.Pause(ctx, asleep)
	if err := undo(); err != nil {
		return err
	}
	rig.Pause(ctx, responseTimeout)
	for id, after := range w.training() {
		if was, known := before[id]; known && was.Generation != after.Generation && strings.Contains(after.Reason, "has not answered for") {
			return fmt.Errorf("job %s went from generation %d to %d when its daemon was frozen for %v: %s", id, was.Generation, after.Generation, asleep, after.Reason)
		}
	}
	return nil
}

// training are the jobs that train.
func (w *host) training() map[string]api.JobStatus {
	all := map[string]api.JobStatus{}
	for _, j := range w.jobs {
		if s := j.status(); s.State == api.Running {
			all[j.id] = s
		}
	}
	return all
}

// limit lowers a process's soft limit; undo raises it again. A process that has ended is no error.
func limit(pid, resource int, to uint64) (undo func() error, err error) {
	var before unix.Rlimit
	if err := unix.Prlimit(pid, resource, nil, &before); err != nil {
		return nil, unlessEnded(err)
	}
	lower := unix.Rlimit{Cur: min(to, before.Max), Max: before.Max}
	undo = func() error { return unlessEnded(unix.Prlimit(pid, resource, &before, nil)) }
	return undo, unlessEnded(unix.Prlimit(pid, resource, &lower, nil))
}

func unlessEnded(err error) error {
	if err == nil || errors.Is(err, unix.ESRCH) {
		return nil
	}
	return fmt.Errorf("limit a process: %w", err)
}

// limitMemory makes the next request of a worker for memory fail. The worker that comes after it has no limit.
func limitMemory(pids ...int) (func() error, error) {
	_, err := limit(pids[0], unix.RLIMIT_AS, 1<<20)
	return nil, err
}

// limitFiles lets a process open no file more.
func limitFiles(pids ...int) (func() error, error) {
	p, err := procfs.NewProc(pids[0])
	if err != nil {
		return nil, nil //nolint:nilerr // it has ended
	}
	open, err := p.FileDescriptorsLen()
	if err != nil {
		return nil, nil //nolint:nilerr // as above
	}
	return limit(p.PID, unix.RLIMIT_NOFILE, uint64(open)) //nolint:gosec // a count
}

// limitDaemonFiles spares a daemon that is just starting: the Go runtime itself needs a descriptor then.
func limitDaemonFiles(ctx context.Context, w *host) (func() error, error) {
	if pid := w.daemon.PID(); pid != 0 && w.answered(ctx) {
		return limitFiles(pid)
	}
	return nil, nil
}

// secondDaemon expects that a second daemon is refused while the first one runs, which has its directory once it answers.
func secondDaemon(ctx context.Context, w *host) error {
	if err := w.answers(ctx); err != nil {
		return err
	}
	text, err := os.ReadFile(w.config())
	if err != nil {
		return err
	}
	config := filepath.Join(w.dir, "second.yaml")
	text = []byte(strings.Replace(string(text), filepath.Join(w.dir, "sock"), filepath.Join(w.dir, "second"), 1))
	if err := os.WriteFile(config, text, 0o600); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, startBound)
	defer cancel()
	said, err := exec.CommandContext(ctx, w.program, "--config", config).CombinedOutput() //nolint:gosec // the program under test
	if exit, ok := errors.AsType[*exec.ExitError](err); !ok || exit.ExitCode() != 1 || !strings.Contains(string(said), "in use by another daemon") {
		return fmt.Errorf("a second daemon ended with %w, expected exit status 1 and that the directory is in use: %s", err, said)
	}
	return nil
}

// respell kills the daemon and starts it with another spelling of its directory. No job may have two workers then.
func respell(ctx context.Context, w *host) error {
	defer w.daemon.Release()
	link := filepath.Join(w.dir, "link")
	if err := os.Symlink(w.base, link); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	if _, err := w.daemon.Hold(ctx, syscall.SIGKILL); err != nil {
		return err
	}
	w.state = pick(w, []string{w.base, link})
	if err := w.configure("info"); err != nil {
		return err
	}
	w.daemon.Release()
	if err := w.answers(ctx); err != nil {
		return err
	}
	rig.Pause(ctx, 500*time.Millisecond)
	workers := map[string]int{}
	for _, pid := range w.processes(asWorker) {
		line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		if err != nil || len(line) == 0 {
			continue // it has ended meanwhile
		}
		_, assignment, _ := strings.Cut(string(line), asWorker)
		id := filepath.Base(filepath.Dir(assignment))
		if other, two := workers[id]; two {
			return fmt.Errorf("job %s has the workers %d and %d under two spellings of the state directory", id, other, pid)
		}
		workers[id] = pid
	}
	return nil
}

// reload reloads a bad configuration, and then the good one. A daemon that is just starting would refuse the bad one, and systemd would leave it at that.
func reload(ctx context.Context, w *host) error {
	if err := w.answers(ctx); err != nil {
		return err
	}
	if err := os.WriteFile(w.config(), []byte("sockt: /x\n"), 0o600); err != nil {
		return err
	}
	err := w.daemon.Signal(syscall.SIGHUP)
	rig.Pause(ctx, 100*time.Millisecond)
	return errors.Join(err, w.configure("debug"), w.daemon.Signal(syscall.SIGHUP))
}
