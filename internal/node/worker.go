package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/avgpipe/avgpipe/internal/checkpoint"
	"github.com/avgpipe/avgpipe/internal/worker/control"
)

// How a worker is watched.
const (
	pollStatus = 200 * time.Millisecond
	pollExit   = 50 * time.Millisecond  // also after the event stream broke, which is noticed at once
	pollSocket = 10 * time.Millisecond  // until it answers for the first time
	drainGrace = 500 * time.Millisecond // to read a dead worker's last events
)

// worker is a worker process of this node, started or adopted. Its methods may be called concurrently.
type worker struct {
	job        string
	generation uint64
	dir        string
	logFrom    int64 // where the job's log was when it was started or adopted
	process    process
	cmd        *exec.Cmd // nil when it was adopted: then nobody here can wait for it
	oom        oomCount  // of its control group
	client     *workerClient
	sighted    chan struct{} // a reason to look at once whether it has ended
}

// report is something that was seen of a worker. Exactly one of its parts is set.
type report struct {
	worker *worker
	status *control.Status
	event  *control.Event
	exit   *exit
	silent time.Duration // how long a poll took that failed
}

// exit is how a worker ended.
type exit struct {
	code int    // -1: a signal, or unknown
	how  string // "exit status 1", "signal: killed"
}

// startWorker writes the assignment and starts the worker, in its own process group, its output appended to the job's log.
func startWorker(command []string, a control.Assignment) (*worker, error) {
	text, err := json.MarshalIndent(a, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("start worker of job %s: encode the assignment: %w", a.JobID, err)
	}
	if err := os.Remove(control.SocketPath(a.Dir)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("start worker of job %s: remove the socket of the last one: %w", a.JobID, err)
	}
	path := control.AssignmentPath(a.Dir)
	if err := checkpoint.WriteFile(checkpoint.OS, path, append(text, '\n'), 0o600); err != nil {
		return nil, fmt.Errorf("start worker of job %s: %w", a.JobID, err)
	}
	if err := rotateLog(a.Dir, a.LogBytes, a.LogFiles); err != nil {
		return nil, fmt.Errorf("start worker of job %s: %w", a.JobID, err)
	}
	log, err := openLog(a.Dir)
	if err != nil {
		return nil, fmt.Errorf("start worker of job %s: %w", a.JobID, err)
	}
	defer log.Close()                                                                                      //nolint:errcheck // the worker has its own descriptor
	cmd := exec.Command(command[0], append(command[1:len(command):len(command)], assignmentFlag, path)...) //nolint:noctx // it outlives the daemon
	cmd.Dir, cmd.Stdout, cmd.Stderr = a.Dir, log, log
	cmd.Env = workerEnvironment()
	logFrom := logSize(a.Dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start worker of job %s: %w", a.JobID, err)
	}
	start, _, err := readStat(cmd.Process.Pid) // a child that nobody has waited for keeps its number
	if err != nil {
		return nil, errors.Join(fmt.Errorf("start worker of job %s: %w", a.JobID, err), cmd.Process.Kill(), cmd.Wait())
	}
	w := newWorker(a.JobID, a.Generation, a.Dir, process{pid: cmd.Process.Pid, start: start})
	w.cmd, w.logFrom = cmd, logFrom
	return w, nil
}

// newWorker is the account of a running worker.
func newWorker(job string, generation uint64, dir string, p process) *worker {
	return &worker{
		job: job, generation: generation, dir: dir, logFrom: logSize(dir), process: p,
		oom: watchOOM(cgroupRoot, p.pid), client: newWorkerClient(dir), sighted: make(chan struct{}, 1),
	}
}

// workerEnvironment is the daemon's environment without what systemd meant for the daemon alone.
func workerEnvironment() []string {
	var env []string
	for _, v := range os.Environ() {
		name, _, _ := strings.Cut(v, "=")
		switch name {
		case "NOTIFY_SOCKET", "WATCHDOG_PID", "WATCHDOG_USEC", "LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES":
		default:
			env = append(env, v)
		}
	}
	return env
}

// openLog opens a job's log for appending.
func openLog(dir string) (*os.File, error) {
	f, err := os.OpenFile(control.LogPath(dir), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o640)
	if err != nil {
		return nil, fmt.Errorf("open the job's log: %w", err)
	}
	return f, nil
}

// watch reports everything about the worker until it has ended or ctx has. The exit comes last, after every event that could
// still be read. emit may block.
func (w *worker) watch(ctx context.Context, emit func(report)) {
	defer w.client.close()
	alive, ended := context.WithCancel(ctx)
	defer ended()
	var polls, streams sync.WaitGroup
	streaming, cut := context.WithCancel(ctx)
	defer cut()
	polls.Go(func() { w.pollStatus(alive, emit) })
	streams.Go(func() { w.streamEvents(streaming, alive.Done(), emit) })

	end := w.waitExit(ctx)
	ended()
	polls.Wait()
	timer := time.AfterFunc(drainGrace, cut)
	streams.Wait()
	timer.Stop()
	if end != nil {
		emit(report{worker: w, exit: end})
	}
}

// pollStatus reports the worker's status again and again, and how long polls took that failed. A poll and its pause count for no
// longer than they may take: when they took longer, it was this process that did not run.
func (w *worker) pollStatus(ctx context.Context, emit func(report)) {
	answered := false
	for began := time.Now(); ; began = time.Now() {
		pause := pollStatus
		s, err := w.client.status(ctx)
		if err == nil {
			answered = true
			emit(report{worker: w, status: &s})
		} else if !answered {
			pause = pollSocket
		}
		if !sleep(ctx, pause) {
			return
		}
		if err != nil {
			emit(report{worker: w, silent: min(time.Since(began), askTimeout+pause)})
		}
	}
}

// streamEvents reports the worker's events, each once. It follows the stream across breaks until the worker has ended.
func (w *worker) streamEvents(ctx context.Context, ended <-chan struct{}, emit func(report)) {
	var last uint64
	for {
		// A broken stream and a socket that is not there yet look the same and are handled so: try again.
		_ = w.client.events(ctx, last, func(e control.Event) {
			if e.Seq > last {
				last = e.Seq
				emit(report{worker: w, event: &e})
			}
		})
		select {
		case w.sighted <- struct{}{}:
		default:
		}
		select {
		case <-ended:
			return
		case <-ctx.Done():
			return
		case <-time.After(pollSocket):
		}
	}
}

// waitExit waits until the worker has ended and says how; nil when ctx ends first.
func (w *worker) waitExit(ctx context.Context) *exit {
	for w.process.alive() {
		select {
		case <-ctx.Done():
			return nil
		case <-w.sighted:
		case <-time.After(pollExit):
		}
	}
	if w.cmd == nil {
		return &exit{code: -1, how: "it ended, and only the daemon that started it could have learned how"}
	}
	end := exitOf(w.cmd.Wait()) // does not block: the process has ended
	return &end
}

// exitOf reads what waiting for a process gave.
func exitOf(err error) exit {
	var status *exec.ExitError
	switch {
	case err == nil:
		return exit{code: 0, how: "exit status 0"}
	case errors.As(err, &status):
		return exit{code: status.ExitCode(), how: status.String()}
	}
	return exit{code: -1, how: err.Error()}
}

// sleep waits and reports whether ctx still holds.
func sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}
