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
)

// secondDaemon expects that a second daemon is refused while the first one runs.
func secondDaemon(ctx context.Context, w *testbed) (func() error, error) {
	if w.daemon.pid() == 0 {
		return nil, nil
	}
	text, err := os.ReadFile(w.config())
	if err != nil {
		return nil, err
	}
	config := filepath.Join(w.dir, "second.yaml")
	text = []byte(strings.Replace(string(text), filepath.Join(w.dir, "sock"), filepath.Join(w.dir, "second"), 1))
	if err := os.WriteFile(config, text, 0o600); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, startBound)
	defer cancel()
	said, err := exec.CommandContext(ctx, w.daemon.program, "--config", config).CombinedOutput() //nolint:gosec // the program under test
	if exit, ok := errors.AsType[*exec.ExitError](err); !ok || exit.ExitCode() != 1 || !strings.Contains(string(said), "in use by another daemon") {
		return nil, fmt.Errorf("a second daemon ended with %w, expected exit status 1 and that the directory is in use: %s", err, said)
	}
	return nil, nil
}

// respell kills the daemon and starts it with another spelling of its directory. No job may have two workers then.
func respell(ctx context.Context, w *testbed) (func() error, error) {
	defer w.daemon.release()
	link := filepath.Join(w.dir, "link")
	if err := os.Symlink(w.base, link); err != nil && !errors.Is(err, os.ErrExist) {
		return nil, err
	}
	if err := w.daemon.hold(ctx, syscall.SIGKILL); err != nil {
		return nil, err
	}
	if w.state = link; pick(w, []bool{false, true}) {
		w.state = w.base
	}
	if err := w.configure("info"); err != nil {
		return nil, err
	}
	w.daemon.release()
	if err := w.answers(ctx); err != nil {
		return nil, err
	}
	_ = poll(ctx, 500*time.Millisecond, "nothing", func() bool { return false })
	workers := map[string][]int{}
	for _, pid := range w.processes(asWorker) {
		line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		if err != nil || !runs(pid) {
			continue // it has ended meanwhile
		}
		_, assignment, _ := strings.Cut(string(line), asWorker)
		id := filepath.Base(filepath.Dir(assignment))
		if workers[id] = append(workers[id], pid); len(workers[id]) > 1 {
			return nil, fmt.Errorf("job %s has the workers %v under two spellings of the state directory", id, workers[id])
		}
	}
	return nil, nil
}

// reload reloads a bad configuration, and then the good one.
func reload(ctx context.Context, w *testbed) (func() error, error) {
	if err := os.WriteFile(w.config(), []byte("sockt: /x\n"), 0o600); err != nil {
		return nil, err
	}
	if w.daemon.pid() != 0 && w.answers(ctx) == nil {
		if err := w.daemon.signal(syscall.SIGHUP); err != nil {
			return nil, err
		}
		_ = poll(ctx, 100*time.Millisecond, "nothing", func() bool { return false })
	}
	return nil, errors.Join(w.configure("debug"), w.daemon.signal(syscall.SIGHUP))
}
