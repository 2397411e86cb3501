package agent

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/avgpipe/avgpipe/internal/checkpoint"
	"github.com/avgpipe/avgpipe/internal/obstacle"
	"github.com/avgpipe/avgpipe/internal/process"
	"github.com/avgpipe/avgpipe/internal/worker/control"
)

// How a process is watched.
const (
	// PollStatus is how often a worker is asked for its status.
	PollStatus = 200 * time.Millisecond

	pollSocket = 10 * time.Millisecond  // until it answers for the first time
	drainGrace = 500 * time.Millisecond // to read what a process that has ended had said
	maxMessage = 64 << 20               // bytes of one message of a tuning
)

// child is a process that a Local watches.
type child struct {
	process   Process
	dir       string
	logFrom   int64 // where the job's log was when it was started or found
	oom       process.OOM
	client    control.Client
	processes Processes
	inherit   []*os.File // that it is started with
	refused   func(job, from, reason string)
	started   Started // zero: another daemon has started it
	scratch   string  // of a tuning; goes when it has ended well
	temporary string  // of a tuning of no job; goes when it has ended

	ended chan struct{}
	exit  Exit // once ended is closed
}

// start writes what the process is to do to path and starts it; its messages go to the job's log.
func (c *child) start(command []string, flag, path string, todo any) error {
	text, err := json.MarshalIndent(todo, "", "  ")
	if err != nil {
		return err
	}
	if err := checkpoint.WriteFile(path, append(text, '\n'), 0o600); err != nil {
		return err
	}
	log, err := openLog(c.dir)
	if err != nil {
		return err
	}
	defer log.Close() //nolint:errcheck // the process has its own descriptor
	c.logFrom = logSize(c.dir)
	c.started, err = c.processes.Start(Program{
		Command: append(slices.Clip(command), flag, path), Dir: c.dir, Log: log, Reports: flag == requestFlag, Inherit: c.inherit,
	})
	if err != nil {
		return err
	}
	c.process.ID = c.started.ID
	c.oom = process.WatchOOM(c.process.ID.PID)
	return nil
}

// wait waits until the process has ended and says how.
func (c *child) wait(ctx context.Context) error {
	err := c.processes.Wait(ctx, c.process.ID)
	if err != nil {
		return err
	}
	c.exit = Exit{Code: -1, How: "it ended, and only the daemon that started it could have learned how"}
	if c.started.Exit != nil {
		c.exit = c.started.Exit()
	}
	c.exit.Trouble = logTail(c.dir, c.logFrom)
	c.exit.Memory = c.oom.Cause(c.exit.Trouble)
	if c.exit.Code == control.ExitBusy && c.started.Messages == nil {
		c.exit.Obstacle = &obstacle.Obstacle{Kind: obstacle.Busy, Path: control.LockPath(c.dir), Text: "another worker trains in the job's directory"}
	}
	if c.exit.Code == 0 && c.scratch != "" {
		_ = os.RemoveAll(c.scratch) // costs space and nothing else
	}
	close(c.ended)
	return nil
}

// clear removes the directory of a tuning of no job.
func (c *child) clear() error {
	if c.temporary == "" {
		return nil
	}
	return os.RemoveAll(c.temporary)
}

// Events implements Agent.
func (l *Local) Events(ctx context.Context, p Process, each func(Event)) error {
	c, err := l.find(p)
	if err != nil {
		return err
	}
	var one sync.Mutex
	emit := func(e Event) {
		one.Lock()
		defer one.Unlock()
		e.Process = p
		each(e)
	}
	unreadable := c.follow(ctx, emit)
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	l.mu.Lock()
	delete(l.children, p)
	l.mu.Unlock()
	exit := c.exit
	if unreadable != nil {
		exit.How = unreadable.Error()
	}
	emit(Event{Exit: &exit})
	return c.clear()
}

// follow emits what is seen of the process until it has ended or ctx has. An error is about what it printed.
func (c *child) follow(ctx context.Context, emit func(Event)) (unreadable error) {
	defer c.client.Close()
	alive, ended := context.WithCancel(ctx)
	defer ended()
	reading, cut := context.WithCancel(ctx)
	defer cut()
	var polls, streams sync.WaitGroup
	if c.started.Messages != nil {
		streams.Go(func() { unreadable = c.readMessages(reading, emit) })
	} else {
		polls.Go(func() { c.pollStatus(alive, emit) })
		streams.Go(func() { c.streamEvents(reading, alive.Done(), emit) })
	}
	select {
	case <-c.ended:
	case <-ctx.Done():
	}
	ended()
	polls.Wait()
	timer := time.AfterFunc(drainGrace, cut)
	streams.Wait()
	timer.Stop()
	return unreadable
}

// pollStatus emits the worker's status again and again, and how long polls took that failed. A poll and its pause count for no
// longer than they may take: when they took longer, it was this process that did not run.
func (c *child) pollStatus(ctx context.Context, emit func(Event)) {
	answered := false
	for began := time.Now(); ; began = time.Now() {
		pause := PollStatus
		s, err := c.client.Status(ctx)
		if err == nil {
			answered = true
			emit(Event{Status: &s})
		} else if !answered {
			pause = pollSocket
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
		if err != nil {
			emit(Event{Silent: min(time.Since(began), control.AskTimeout+pause)})
		}
	}
}

// streamEvents emits the worker's events, each once; whom it refused concerns this node alone. It follows the stream across breaks until the worker has ended.
func (c *child) streamEvents(ctx context.Context, ended <-chan struct{}, emit func(Event)) {
	var last uint64
	for {
		// A broken stream and a socket that is not there yet look the same and are handled so: try again.
		_ = c.client.Events(ctx, last, func(e control.Event) {
			switch {
			case e.Seq <= last:
				return
			case e.Kind != control.Refused:
				emit(Event{Worker: &e})
			case c.refused != nil:
				c.refused(c.process.Job, e.From, e.Error)
			}
			last = e.Seq
		})
		select {
		case <-ended:
			return
		case <-ctx.Done():
			return
		case <-time.After(pollSocket):
		}
	}
}

// readMessages emits what a tuning prints. One that prints something else is killed: what it says is of no use.
func (c *child) readMessages(ctx context.Context, emit func(Event)) error {
	messages := c.started.Messages
	defer messages.Close()                                                                   //nolint:errcheck // only read
	stop := context.AfterFunc(ctx, func() { _ = messages.SetReadDeadline(time.Unix(1, 0)) }) // fails once it is closed
	defer stop()
	lines := bufio.NewScanner(messages)
	lines.Buffer(nil, maxMessage)
	err := error(nil)
	for err == nil && lines.Scan() {
		var m control.TuneMessage
		if err = json.Unmarshal(lines.Bytes(), &m); err != nil {
			err = fmt.Errorf("what it printed is no message of a tuning, %.80q: %w", lines.Text(), err)
		} else {
			emit(Event{Tuning: &m})
		}
	}
	if err == nil && ctx.Err() == nil && lines.Err() != nil {
		err = fmt.Errorf("read what it printed: %w", lines.Err())
	}
	if err != nil {
		_ = c.processes.Kill(c.process.ID)   // its end is seen
		_, _ = io.Copy(io.Discard, messages) // until it is gone
	}
	return err
}
