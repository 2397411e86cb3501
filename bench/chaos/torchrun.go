package main

import (
	"bytes"
	"context"
	_ "embed" // the script of the peer
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
	"time"

	"github.com/avgpipe/avgpipe/bench/internal/report"
	"github.com/avgpipe/avgpipe/bench/internal/rig"
)

//go:embed torchrun_peer.py
var peerScript []byte

// monitorInterval is how often the peer's launcher looks at its workers, in seconds. Its default of 5 would add 2.5 to its mean.
const monitorInterval = "0.1"

// peer is a job of two processes under PyTorch's elastic launcher (torchrun), one on each of two hosts.
type peer struct {
	hosts     []*host
	python    string
	dir       string
	launchers []*rig.Supervisor
}

// measureTorchrun kills a worker of ours and one of PyTorch's elastic launcher, in the same namespaces, and compares the pauses.
func measureTorchrun(ctx context.Context, o options) (figures []report.Figure, err error) {
	version, err := exec.CommandContext(ctx, o.python, "-c", "import torch; print(torch.__version__, end='')").Output() //nolint:gosec // a flag
	if err != nil {
		return nil, fmt.Errorf("-python %s: import torch: %w; Debian's package is python3-torch, `make test-deps` installs it", o.python, err)
	}
	w, err := newTestbed(ctx, o, 0)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, w.end(ctx), w.remove(ctx)) }()
	if err := w.start(ctx); err != nil {
		return nil, err
	}
	var ours []float64
	err = w.whileTraining(ctx, func(j *trialJob, p *pulse) (err error) {
		ours, err = w.pauses(ctx, j, p, workerKilled)
		return err
	})
	if err != nil {
		return nil, err
	}
	t := &peer{hosts: w.hosts[:2], python: o.python, dir: w.dir}
	theirs, err := t.pauses(ctx)
	if err != nil {
		return nil, fmt.Errorf("torchrun: %w", err)
	}
	conditions := map[string]any{
		"hosts": o.hosts, "processor": processor(), "torch": string(version), "monitor_interval_s": monitorInterval, "ours_s": ours, "torchrun_s": theirs,
	}
	return []report.Figure{{
		Metric: "pause of torchrun's job after SIGKILL of a worker, over ours", Value: report.Median(theirs) / report.Median(ours), Unit: "times", Bar: 10, Aim: 20,
		Conditions: conditions,
	}}, nil
}

// steps is the file in which the worker of a host notes its steps.
func (t *peer) steps(i int) string { return filepath.Join(t.hosts[i].dir, "torch-steps") }

func (t *peer) script() string { return filepath.Join(t.dir, "torchrun_peer.py") }

// worker is the process of a host's worker. Its launcher's command line has the same words but that one.
func (t *peer) worker(i int) []int { return rig.Processes("\x00-u\x00", "\x00"+t.steps(i)+"\x00") }

// pauses starts the peer, kills a worker several times as that of ours, and ends it.
func (t *peer) pauses(ctx context.Context) (all []float64, err error) {
	if err := os.WriteFile(t.script(), peerScript, 0o600); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, t.end(ctx)) }()
	p := newPulse()
	looking, stop := context.WithCancel(ctx)
	seen := make(chan error, 1)
	for i, h := range t.hosts {
		if err := os.WriteFile(t.steps(i), nil, 0o600); err != nil {
			stop()
			return nil, err
		}
		t.launchers = append(t.launchers, rig.Supervise(ctx, rig.SupervisorConfig{
			Command: func() *exec.Cmd { return t.launcher(i) }, Log: filepath.Join(h.dir, "torchrun.log"), Bound: stopBound,
		}))
	}
	go func() { seen <- t.lookAt(looking, p) }()
	defer func() {
		stop()
		err = errors.Join(err, <-seen)
	}()
	for range repeats {
		if _, err := p.pause(ctx, time.Now()); err != nil { // the start, or a while without trouble
			return nil, err
		}
		rig.Pause(ctx, 2*time.Second) // as ours
		from := time.Now()
		if _, err := kill(t.worker(1)...); err != nil {
			return nil, err
		}
		pause, err := p.pause(ctx, from)
		if err != nil {
			return nil, err
		}
		t.hosts[1].say("pause of torchrun's job: %v", pause)
		all = append(all, pause.Seconds())
	}
	slices.Sort(all)
	return all, nil
}

// launcher is the command of one host's. A launcher tells the others its host's name, which is its address here.
func (t *peer) launcher(i int) *exec.Cmd {
	h := t.hosts[i]
	command := h.on.Command("sh", "-c", `echo "$0" >/proc/sys/kernel/hostname; exec "$@"`, h.on.Address,
		"env", "OMP_NUM_THREADS=1", "GLOO_SOCKET_IFNAME=eth0", t.python, "-m", "torch.distributed.run",
		"--nnodes", strconv.Itoa(len(t.hosts)), "--nproc_per_node", "1", "--max_restarts", "1000", "--monitor_interval", monitorInterval,
		"--rdzv_backend", "c10d", "--rdzv_id", "peer", "--rdzv_endpoint", t.hosts[0].on.Address+":29400", "--rdzv_conf", fmt.Sprintf("is_host=%t", i == 0),
		"--log_dir", filepath.Join(h.dir, "torch-log"), "--redirects", "2", "--tee", "2", // with Python 3.11 it fails on the defaults
		t.script(), "--steps", t.steps(i), "--checkpoint", filepath.Join(t.dir, "torch-checkpoint"))
	command.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWUTS}
	return command
}

// lookAt reads what the workers note all the time.
func (t *peer) lookAt(ctx context.Context, p *pulse) error {
	var files []*os.File
	for i := range t.hosts {
		f, err := os.Open(t.steps(i))
		if err != nil {
			return err
		}
		defer f.Close() //nolint:errcheck // only read
		files = append(files, f)
	}
	for ; ctx.Err() == nil; rig.Pause(ctx, 5*time.Millisecond) {
		for i, f := range files {
			said, err := io.ReadAll(f) // since the last time; the worker writes whole lines
			if err != nil {
				return err
			}
			lines := bytes.Fields(said)
			if len(lines) == 0 {
				continue
			}
			step, err := strconv.ParseUint(string(lines[len(lines)-1]), 10, 64)
			if err != nil {
				return fmt.Errorf("%s: %w", f.Name(), err)
			}
			p.see(i, step)
		}
	}
	return nil
}

// end ends launchers and workers.
func (t *peer) end(ctx context.Context) (err error) {
	ctx = context.WithoutCancel(ctx)
	for _, l := range t.launchers {
		if _, failed := l.Hold(ctx, syscall.SIGTERM); failed != nil {
			err = errors.Join(err, failed, l.Signal(syscall.SIGKILL))
		}
		l.Close()
	}
	for i := range t.hosts {
		err = errors.Join(err, signalAll(t.worker(i), syscall.SIGKILL))
	}
	return err
}
