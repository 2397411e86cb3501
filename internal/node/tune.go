package node

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/avgpipe/avgpipe/internal/api"
	"github.com/avgpipe/avgpipe/internal/checkpoint"
	"github.com/avgpipe/avgpipe/internal/obstacle"
	"github.com/avgpipe/avgpipe/internal/worker/control"
	"github.com/avgpipe/avgpipe/tuner"
)

// How a tune process is bounded. One message is a step of work, so steps that have been seen tell how long the next may take.
const (
	leastSilence   = 5 * time.Minute // that any step is allowed, since the first ones read the data
	silenceFactor  = 10              // times the longest step yet
	maxTuneMessage = 64 << 20        // bytes of one line
)

// tuneRun is a tune process of this node. It is a child: another daemon does not adopt it but begins anew.
type tuneRun struct {
	dir     string // where its log is
	logFrom int64  // where the log was when it was started
	process process
	cmd     *exec.Cmd
	out     io.ReadCloser
}

// tuneReport is something that was seen of a job's tune process. Exactly one of the pointers is set.
type tuneReport struct {
	job     string
	run     *tuneRun
	message *control.TuneMessage
	exit    *exit
}

// plansDir is where chosen plans are cached.
func plansDir(state string) string { return filepath.Join(state, "plans") }

// startTune writes the request below dir and starts the process, in its own process group, its messages to the log there.
func startTune(command []string, dir string, r control.TuneRequest) (*tuneRun, error) {
	text, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("start tuning: encode the request: %w", err)
	}
	if err := os.MkdirAll(r.Dir, 0o750); err != nil {
		return nil, fmt.Errorf("start tuning: %w", err)
	}
	path := control.TuneRequestPath(dir)
	if err := checkpoint.WriteFile(checkpoint.OS, path, append(text, '\n'), 0o600); err != nil {
		return nil, fmt.Errorf("start tuning: %w", err)
	}
	log, err := openLog(dir)
	if err != nil {
		return nil, fmt.Errorf("start tuning: %w", err)
	}
	defer log.Close()                                                                                   //nolint:errcheck // the process has its own descriptor
	cmd := exec.Command(command[0], append(command[1:len(command):len(command)], requestFlag, path)...) //nolint:noctx // watch ends it
	cmd.Dir, cmd.Stderr, cmd.Env = dir, log, workerEnvironment()
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("start tuning: %w", err)
	}
	if _, err := cmd.StdinPipe(); err != nil { // nothing is written: it ends with this process at the latest, and the tuning with it
		return nil, fmt.Errorf("start tuning: %w", err)
	}
	t := &tuneRun{dir: dir, logFrom: logSize(dir), cmd: cmd, out: out}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start tuning: %w", err)
	}
	start, _, err := readStat(cmd.Process.Pid)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("start tuning: %w", err), cmd.Process.Kill(), cmd.Wait())
	}
	t.process = process{pid: cmd.Process.Pid, start: start}
	return t, nil
}

// watch passes on every message until the process has ended, and says how it did. It kills the process when ctx ends.
func (t *tuneRun) watch(ctx context.Context, emit func(control.TuneMessage)) *exit {
	var killer sync.WaitGroup
	done := make(chan struct{})
	killer.Go(func() {
		select {
		case <-ctx.Done():
			_ = t.process.kill() // it has ended then, or was never ours to kill
		case <-done:
		}
	})
	unreadable := t.read(emit)
	if unreadable != nil {
		_ = t.process.kill()              // what it says is of no use
		_, _ = io.Copy(io.Discard, t.out) // until it is gone
	}
	err := t.cmd.Wait()
	close(done)
	killer.Wait()
	end := exitOf(err)
	if unreadable != nil {
		end.how = unreadable.Error()
	}
	return &end
}

// read passes on every message.
func (t *tuneRun) read(emit func(control.TuneMessage)) error {
	lines := bufio.NewScanner(t.out)
	lines.Buffer(nil, maxTuneMessage)
	for lines.Scan() {
		var m control.TuneMessage
		if err := json.Unmarshal(lines.Bytes(), &m); err != nil {
			return fmt.Errorf("what it printed is no message of a tuning, %q: %w", clip(lines.Text(), 80), err)
		}
		emit(m)
	}
	if err := lines.Err(); err != nil {
		return fmt.Errorf("read what it printed: %w", err)
	}
	return nil
}

// clip shortens a text for a message.
func clip(text string, bytes int) string { return text[:min(len(text), bytes)] }

// tuning is what was seen of a tune process.
type tuning struct {
	run      *tuneRun // nil: it could not be started
	cores    []int
	live     bool
	began    time.Time
	silent   time.Duration // since the last message; time in which this daemon was stopped does not count
	heard    time.Time
	longest  time.Duration // between two messages
	progress control.TuneProgress
	report   *tuner.Report
	failure  string             // what it said at last instead of a report, of the job
	trouble  string             // the same, of the host
	obstacle *obstacle.Obstacle // and what of the host it was; nil: unknown
	cause    string             // why it ended without a report or a failure
	killed   string             // why it was killed here
}

func newTuning(run *tuneRun, cores []int, now time.Time) *tuning {
	return &tuning{run: run, cores: cores, live: true, began: now, heard: now}
}

// tunes reports whether a tune process of the job lives.
func (o *observed) tunes() bool { return o.tuning != nil && o.tuning.live }

// take notes a message. It reports whether a new step of work has begun.
func (t *tuning) take(m *control.TuneMessage, now time.Time) (step bool) {
	t.longest = max(t.longest, now.Sub(t.heard))
	t.heard, t.silent = now, 0
	switch {
	case m.Progress != nil:
		step = m.Progress.Text != t.progress.Text
		t.progress = *m.Progress
	case m.Report != nil:
		t.report = m.Report
	case m.Permanent:
		t.failure = m.Error
	case m.Error != "":
		t.trouble, t.obstacle = m.Error, m.Obstacle
	}
	return step
}

// end notes how the process ended.
func (t *tuning) end(e *exit) {
	t.live = false
	if t.report != nil && e.code != 0 && t.killed == "" {
		t.report = nil // it did not end as one does that has said all
	}
	switch {
	case t.report != nil || t.failure != "":
	case t.killed != "":
		t.cause = t.killed
	case t.trouble != "":
		t.cause = t.trouble
	default:
		t.cause = fmt.Sprintf("the tuning (process %d) ended: %s", t.run.process.pid, e.how)
		if tail := logTail(t.run.dir, t.run.logFrom); tail != "" {
			t.cause += "; the end of its log: " + tail
		}
	}
}

// silence is how long the process may say nothing.
func (t *tuning) silence() time.Duration { return max(leastSilence, silenceFactor*t.longest) }

// show is how far it is, for the API.
func (t *tuning) show() *api.TuneProgress {
	return &api.TuneProgress{Done: t.progress.Done, Total: t.progress.Total, Text: t.progress.Text, ElapsedS: t.heard.Sub(t.began).Seconds()}
}

// text says how far it is, for people.
func (t *tuning) text() string {
	if t.progress.Total == 0 {
		return "tuning: starting"
	}
	return fmt.Sprintf("tuning, step %d of %d: %s", min(t.progress.Done+1, t.progress.Total), t.progress.Total, t.progress.Text)
}
