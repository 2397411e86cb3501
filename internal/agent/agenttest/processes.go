package agenttest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/avgpipe/avgpipe/internal/agent"
	"github.com/avgpipe/avgpipe/internal/process"
	"github.com/avgpipe/avgpipe/internal/worker/control"
)

// Patience is how long a fake worker goes on without a daemon, and other limits that no test reaches.
const Patience = 30 * time.Second

// Open returns the agent of a node whose state directory is dir. Nil processes are those of the operating system, for which the
// program of the test must be that of the fake worker and the fake tuning (Main). Each change is made to its configuration.
func Open(t *testing.T, node, dir string, p agent.Processes, changes ...func(*agent.Config)) *agent.Local {
	t.Helper()
	c := agent.Config{
		Node: node, StateDir: dir, Worker: []string{os.Args[0], "worker"}, Tuning: []string{os.Args[0], "tune"}, Log: zap.NewNop(), Processes: p, Look: look,
		Limits: func() agent.Limits {
			return agent.Limits{OrphanAfter: Patience, LogBytes: 1 << 20, LogFiles: 1, QuarantineFor: Patience}
		},
	}
	for _, change := range changes {
		change(&c)
	}
	a, err := agent.Open(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(a.Close)
	return a
}

// firstPID is more than any process of the operating system has.
const firstPID = 1 << 30

// Processes are goroutines that run the fake worker and the fake tuning. Nothing in them waits for anything outside of a bubble of
// package synctest.
type Processes struct {
	pace time.Duration // of a worker's round

	mu      sync.Mutex
	running map[process.ID]*fakeProcess
	started int
}

// fakeProcess is a goroutine that runs one of the fake programs. Its exit is set once ended is closed.
type fakeProcess struct {
	dir    string
	kill   context.CancelFunc
	ended  chan struct{}
	exit   agent.Exit
	socket pipes
}

// pipes is a listener in memory.
type pipes struct {
	conns  chan net.Conn
	closed chan struct{}
	close  func()
}

func newPipes() pipes {
	closed := make(chan struct{})
	return pipes{make(chan net.Conn), closed, sync.OnceFunc(func() { close(closed) })}
}

func (p pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

func (p pipes) Close() error {
	p.close()
	return nil
}

func (pipes) Addr() net.Addr { return &net.UnixAddr{Name: "memory", Net: "unix"} }

// NewProcesses returns none. They are killed when the test ends.
func NewProcesses(t *testing.T) *Processes {
	p := Pretend(RoundTime)
	t.Cleanup(p.KillAll)
	return p
}

// Pretend returns none, for a program that is no test. Workers take so long for a round. The caller kills them.
func Pretend(round time.Duration) *Processes {
	return &Processes{pace: round, running: map[process.ID]*fakeProcess{}}
}

// KillAll kills all that run.
func (p *Processes) KillAll() {
	for _, x := range p.alive() {
		x.kill()
		<-x.ended
	}
}

// Start implements agent.Processes.
func (p *Processes) Start(what agent.Program) (agent.Started, error) {
	log, err := os.OpenFile(what.Log.Name(), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		return agent.Started{}, err
	}
	ctx, kill := context.WithCancel(context.Background())
	x := &fakeProcess{dir: what.Dir, kill: kill, ended: make(chan struct{}), socket: newPipes()}
	p.mu.Lock()
	p.started++
	s := agent.Started{ID: process.ID{PID: firstPID + p.started}, Exit: func() agent.Exit { return x.exit }}
	p.running[s.ID] = x
	p.mu.Unlock()
	file, run := what.Command[len(what.Command)-1], func(path string) int {
		return worker(ctx, path, s.ID.PID, p.pace, log, func(context.Context, string) (net.Listener, error) { return x.socket, nil })
	}
	if what.Reports {
		in, out := net.Pipe()
		s.Messages, run = in, func(path string) int {
			defer out.Close()
			return tuning(ctx, path, out, log)
		}
	}
	go func() {
		code := run(file)
		x.exit = agent.Exit{Code: code, Known: true, How: fmt.Sprintf("exit status %d", code)}
		if ctx.Err() != nil {
			x.exit.Code, x.exit.How = -1, "signal: killed"
		}
		_ = log.Close() // only a log
		close(x.ended)
	}()
	return s, nil
}

// alive returns those that run.
func (p *Processes) alive() map[process.ID]*fakeProcess {
	p.mu.Lock()
	defer p.mu.Unlock()
	maps.DeleteFunc(p.running, func(_ process.ID, x *fakeProcess) bool {
		select {
		case <-x.ended:
			return true
		default:
			return false
		}
	})
	return maps.Clone(p.running)
}

// Find implements agent.Processes.
func (p *Processes) Find(root string) (map[string][]process.ID, error) {
	found := map[string][]process.ID{}
	for id, x := range p.alive() {
		if filepath.Dir(x.dir) == root {
			found[x.dir] = append(found[x.dir], id)
		}
	}
	return found, nil
}

// Alive implements agent.Processes.
func (p *Processes) Alive(id process.ID) bool { return p.alive()[id] != nil }

// Wait implements agent.Processes.
func (p *Processes) Wait(ctx context.Context, id process.ID) error {
	if x := p.alive()[id]; x != nil {
		select {
		case <-x.ended:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

// Kill implements agent.Processes.
func (p *Processes) Kill(id process.ID) error {
	if x := p.alive()[id]; x != nil {
		x.kill()
		<-x.ended
	}
	return nil
}

// Dial implements agent.Processes.
func (p *Processes) Dial(ctx context.Context, socket string) (net.Conn, error) {
	for _, x := range p.alive() {
		if control.SocketPath(x.dir) != socket {
			continue
		}
		here, there := net.Pipe()
		select {
		case x.socket.conns <- there:
			return here, nil
		case <-x.socket.closed:
		case <-x.ended:
		case <-ctx.Done():
		}
	}
	return nil, errors.New("nothing listens")
}
