package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/avgpipe/avgpipe/bench/internal/hosts"
	"github.com/avgpipe/avgpipe/bench/internal/rig"
	"github.com/avgpipe/avgpipe/internal/api"
)

// host is one of a trial's: a daemon with a directory of its own.
type host struct {
	*testbed
	name   string
	on     *hosts.Host // nil: this machine
	own    string      // the program of its daemon; empty: that of all
	dir    string      // all of it
	base   string      // the state directory
	disk   *hosts.Disk // nil: it is never slow
	state  string      // the same, as the configuration spells it
	daemon *rig.Supervisor
	client *api.Client
}

// newHost makes a host's directory and configuration. Nothing runs on it yet.
func newHost(w *testbed, dir, name string, on *hosts.Host) (*host, error) {
	h := &host{testbed: w, name: name, on: on, dir: dir, base: filepath.Join(dir, "state"), state: filepath.Join(dir, "state")}
	h.client = api.NewClient(h.socket())
	h.client.OnAge(func(time.Duration, string) { w.old.Add(1) })
	err := errors.Join(os.MkdirAll(h.base, 0o750), h.configure("info"))
	if err == nil && w.mounts {
		err = mountSmall(h.base, stateBytes)
	}
	return h, err
}

func (h *host) socket() string { return filepath.Join(h.dir, "sock") }
func (h *host) config() string { return filepath.Join(h.dir, "avgpiped.yaml") }

// log is where the daemons print.
func (h *host) log() string { return filepath.Join(h.dir, "daemon.log") }

// jobDir is the directory of a job.
func (h *host) jobDir(j *trialJob) string { return filepath.Join(h.base, "jobs", j.id) }

// configure writes the daemon's configuration.
func (h *host) configure(level string) error {
	text := fmt.Sprintf("state_dir: %s\nsocket: %s\nlog_level: %s\nresponse_timeout: %v\nretry_first: 50ms\nretry_longest: 500ms\n"+
		"retry_limit: 20\norphan_after: 1m\n", h.state, h.socket(), level, h.response)
	if h.scarce {
		text += "cores: 1\nresplit_after: 1s\n"
	}
	if h.on != nil {
		text += fmt.Sprintf("node: %s\nlisten: %s\n", h.name, h.on.Address+rig.Port)
	}
	return os.WriteFile(h.config(), []byte(text), 0o600)
}

// command is the daemon's program with arguments, on the host.
func (h *host) command(arguments ...string) *exec.Cmd {
	program := cmp.Or(h.own, h.program)
	if h.disk != nil {
		program, arguments = h.disk.Command(program, arguments...)
	}
	if h.on != nil {
		return h.on.Command(program, arguments...)
	}
	return exec.Command(program, arguments...) //nolint:noctx,gosec // the program under test, which is ended by signals alone
}

// start starts the daemon, and again after each end.
func (h *host) start(ctx context.Context) {
	h.daemon = rig.Supervise(ctx, rig.SupervisorConfig{
		Command: func() *exec.Cmd { return h.command("--config", h.config()) }, Log: h.log(), Bound: startBound,
	})
}

// logText is what the daemons have printed.
func (h *host) logText() string {
	text, err := os.ReadFile(h.log())
	if err != nil {
		return err.Error()
	}
	return string(text)
}

// answers waits until the daemon answers.
func (h *host) answers(ctx context.Context) error {
	return rig.Poll(ctx, startBound, "an answer of the daemon"+h.of(), func() bool { return h.answered(ctx) })
}

// of names the host where there are several.
func (h *host) of() string {
	if h.on == nil {
		return ""
	}
	return " on " + h.name
}

// answered asks the daemon once.
func (h *host) answered(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, responseTimeout)
	defer cancel()
	_, err := h.client.Version(ctx)
	return err == nil
}

// processes returns the running processes whose command line names something in the host's directory, and holds what.
func (h *host) processes(what string) []int { return rig.Processes(what, h.dir+"/") }

// halt ends the daemon and all workers at once and keeps them away until the daemon is released.
func (h *host) halt(ctx context.Context) error {
	if _, err := h.daemon.Hold(ctx, syscall.SIGKILL); err != nil {
		return err
	}
	return rig.Poll(ctx, stopBound, "the end of all processes"+h.of(), func() bool {
		left := h.processes("")
		_ = signalAll(left, syscall.SIGKILL)
		return len(left) == 0
	})
}

// end ends the daemon in order and checks that nothing is left.
func (h *host) end(ctx context.Context) error {
	how, err := h.daemon.Hold(ctx, syscall.SIGTERM)
	switch {
	case err != nil:
		err = errors.Join(err, h.daemon.Signal(syscall.SIGKILL))
	case how != rig.InOrder:
		err = fmt.Errorf("the daemon%s ended on SIGTERM with %s", h.of(), how)
	}
	h.daemon.Close()
	return err
}

// unmountAll takes away what may be mounted over the state directory.
func (h *host) unmountAll() {
	for err := error(nil); h.mounts && err == nil; { // faults mount over it
		err = unix.Unmount(h.base, unix.MNT_DETACH)
	}
}

const (
	// joinBound is how long it may take to make a host a member of a cluster.
	joinBound = 30 * time.Second
	// voteBound is how long it may take until that votes.
	voteBound = 60 * time.Second
)
