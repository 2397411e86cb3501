// Package rig runs jobs through a daemon of its own for benchmarks: the real avgpiped with real workers, its state in a
// temporary directory that goes when the benchmark ends.
package rig

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"syscall"
	"time"

	"github.com/avgpipe/avgpipe/internal/api"
)

// The bounds of waits for the daemon itself; those for jobs are the callers'.
const (
	startBound = 30 * time.Second
	stopBound  = 30 * time.Second
)

// Daemon is a running avgpiped --dev.
type Daemon struct {
	client *api.Client
	cmd    *exec.Cmd
	log    string
	env    map[string]string
}

// socket finds the socket's path in the daemon's first lines.
var socket = regexp.MustCompile(`/[^ "]*\.sock`)

// Start starts the program and returns when it answers. Its log goes to a file in dir. env is what paths in job files may name.
func Start(ctx context.Context, program, dir string, env map[string]string) (*Daemon, error) {
	path := filepath.Join(dir, "avgpiped.log")
	log, err := os.Create(path)
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", program, err)
	}
	defer log.Close() //nolint:errcheck // the daemon has its own descriptor
	d := &Daemon{cmd: exec.CommandContext(ctx, program, "--dev"), log: path, env: env}
	d.cmd.Stdout, d.cmd.Stderr = log, log
	d.cmd.Cancel = func() error { return d.cmd.Process.Signal(syscall.SIGTERM) }
	d.cmd.WaitDelay = stopBound
	if err := d.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", program, err)
	}
	if err := d.connect(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("start %s: %w; its log is %s", program, err, path), d.Stop())
	}
	return d, nil
}

// connect waits until the daemon answers on the socket that it prints.
func (d *Daemon) connect(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startBound)
	defer cancel()
	for {
		if path, err := d.socket(); err != nil {
			return err
		} else if path != "" {
			client := api.NewClient(path)
			if _, err := client.Version(ctx); err == nil {
				d.client = client
				return nil
			}
			client.Close()
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
			return fmt.Errorf("no answer within %s", startBound)
		}
	}
}

// socket reads the path of the socket from the log; "" while it is not there.
func (d *Daemon) socket() (path string, err error) {
	f, err := os.Open(d.log)
	if err != nil {
		return "", err
	}
	defer f.Close() //nolint:errcheck // only read
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		if found := socket.FindString(lines.Text()); found != "" {
			return found, nil
		}
	}
	return "", lines.Err()
}

// Stop ends the daemon in order.
func (d *Daemon) Stop() error {
	if d.client != nil {
		d.client.Close()
	}
	if err := d.cmd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("stop the daemon: %w", err)
	}
	timer := time.AfterFunc(stopBound, func() { _ = d.cmd.Process.Kill() })
	defer timer.Stop()
	if err := d.cmd.Wait(); err != nil {
		return fmt.Errorf("the daemon ended: %w; its log is %s", err, d.log)
	}
	return nil
}

// Run submits a job file with overrides, waits until the job has ended, and returns its last status. each, unless nil, sees every
// status on the way. A job that is not done is an error.
func (d *Daemon) Run(ctx context.Context, file string, set []string, each func(api.JobStatus)) (api.JobStatus, error) {
	id, err := d.Submit(ctx, file, set)
	if err != nil {
		return api.JobStatus{}, err
	}
	if each == nil {
		each = func(api.JobStatus) {}
	}
	last, err := d.client.Watch(ctx, id, each)
	if err == nil && last.State != api.Done {
		err = fmt.Errorf("job %s is %s: %s", id, last.State, last.Reason)
	}
	return last, err
}

// Submit submits a job file with overrides.
func (d *Daemon) Submit(ctx context.Context, file string, set []string) (id string, err error) {
	source, err := os.ReadFile(file)
	if err != nil {
		return "", err
	}
	base, err := filepath.Abs(filepath.Dir(file))
	if err != nil {
		return "", err
	}
	answer, err := d.client.Submit(ctx, api.SubmitRequest{File: file, Source: string(source), Set: set, Base: base, Env: d.env})
	if err != nil {
		return "", fmt.Errorf("submit %s %v: %w", file, set, err)
	}
	return answer.ID, nil
}

// Client speaks to the daemon.
func (d *Daemon) Client() *api.Client { return d.client }
