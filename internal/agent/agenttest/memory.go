package agenttest

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/avgpipe/avgpipe/internal/agent"
	"github.com/avgpipe/avgpipe/internal/cluster"
	"github.com/avgpipe/avgpipe/internal/obstacle"
	"github.com/avgpipe/avgpipe/internal/process"
	"github.com/avgpipe/avgpipe/internal/shard"
	"github.com/avgpipe/avgpipe/internal/worker/control"
)

// Memory is an agent whose processes are goroutines, and whose files are in memory. They are those of the fake worker and the fake
// tuning.
type Memory struct {
	Node string

	mu        sync.Mutex
	tasks     sync.WaitGroup
	next      int // process number
	processes map[agent.Process]*pretender
	stores    map[string]*shard.MemStore // by job
	tuned     map[string]bool            // jobs that were tuned before
	logs      map[string][]string        // of jobs
	obstacles map[string]bool            // paths that have not passed
	records   map[string]*cluster.Job
	retired   map[string]bool
	statuses  map[string]*control.Status
}

var _ agent.Agent = (*Memory)(nil)

// pretender is a process.
type pretender struct {
	trainer  *trainer // nil: a tuning
	messages chan control.TuneMessage
	kill     context.CancelFunc
	ended    chan struct{}
	exit     agent.Exit // once ended is closed
}

// NewMemory returns an agent without processes. The caller closes it.
func NewMemory(node string) *Memory {
	return &Memory{
		Node: node, processes: map[agent.Process]*pretender{}, stores: map[string]*shard.MemStore{}, tuned: map[string]bool{},
		logs: map[string][]string{}, obstacles: map[string]bool{}, records: map[string]*cluster.Job{}, retired: map[string]bool{}, statuses: map[string]*control.Status{},
	}
}

// Close kills what runs.
func (m *Memory) Close() {
	m.mu.Lock()
	for _, p := range m.processes {
		p.kill()
	}
	m.mu.Unlock()
	m.tasks.Wait()
}

// Store is where the shards of a job are.
func (m *Memory) Store(job string) *shard.MemStore {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.stores[job] == nil {
		m.stores[job] = shard.NewMemStore()
	}
	return m.stores[job]
}

// JobLog is what was said of a job.
func (m *Memory) JobLog(job string) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return strings.Join(m.logs[job], "\n")
}

// Processes implements agent.Agent.
func (m *Memory) Processes(context.Context) ([]agent.Running, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var all []agent.Running
	for p, x := range m.processes {
		select {
		case <-x.ended:
			continue
		default:
		}
		if p.Job == "" {
			continue
		}
		r := agent.Running{Process: p}
		if x.trainer != nil {
			s := x.trainer.status()
			r.Status = &s
		}
		all = append(all, r)
	}
	slices.SortFunc(all, func(a, b agent.Running) int { return a.Process.ID.PID - b.Process.ID.PID })
	return all, nil
}

// Start implements agent.Agent.
func (m *Memory) Start(_ context.Context, a control.Assignment) (agent.Process, error) {
	m.endOthers(a.JobID)
	a.Version, a.Node = control.Version, m.Node
	a.OrphanAfter = Patience
	x := &pretender{trainer: newTrainer(a, m.Store(a.JobID), io.Discard)}
	//nolint:contextcheck // the process outlives the request
	return m.run(agent.Process{Job: a.JobID, Generation: a.Generation}, x, func(ctx context.Context) (int, string) {
		ctx, x.trainer.end = context.WithCancel(ctx)
		defer x.trainer.end()
		x.trainer.run(ctx)
		return x.trainer.code, x.trainer.words
	}), nil
}

// endOthers kills what works on a job.
func (m *Memory) endOthers(job string) {
	var others []*pretender
	m.mu.Lock()
	for p, x := range m.processes {
		if p.Job == job {
			x.kill()
			others = append(others, x)
		}
	}
	m.mu.Unlock()
	for _, x := range others {
		<-x.ended
	}
}

// Tune implements agent.Agent.
func (m *Memory) Tune(_ context.Context, r control.TuneRequest) (agent.Process, error) {
	m.mu.Lock()
	first := !m.tuned[r.JobID]
	m.tuned[r.JobID] = true
	m.mu.Unlock()
	x := &pretender{messages: make(chan control.TuneMessage, 2*tuneSteps)}
	//nolint:contextcheck // the process outlives the request
	return m.run(agent.Process{Job: r.JobID}, x, func(ctx context.Context) (int, string) {
		return pretendToTune(ctx, &r, first, func(m control.TuneMessage) { x.messages <- m })
	}), nil
}

// run runs a process until it returns an exit code and its last words, or is killed.
func (m *Memory) run(p agent.Process, x *pretender, program func(ctx context.Context) (int, string)) agent.Process {
	ctx, cancel := context.WithCancel(context.Background())
	x.kill, x.ended = cancel, make(chan struct{})
	started := make(chan struct{})
	m.mu.Lock()
	m.next++
	p.Node, p.ID = m.Node, process.ID{PID: m.next}
	m.processes[p] = x
	m.mu.Unlock()
	m.tasks.Go(func() {
		defer close(x.ended)
		defer cancel()
		close(started)
		code, words := program(ctx)
		x.exit = agent.Exit{Code: code, Known: true, How: fmt.Sprintf("exit status %d", code), Trouble: words}
		if ctx.Err() != nil {
			x.exit = agent.Exit{Code: -1, Known: true, How: "signal: killed"}
		} else if words == garbage {
			x.exit.How = "what it printed is no message of a tuning"
		}
	})
	<-started
	return p
}

// Events implements agent.Agent.
func (m *Memory) Events(ctx context.Context, p agent.Process, each func(agent.Event)) error {
	x, err := m.find(p)
	if err != nil {
		return err
	}
	var one sync.Mutex
	emit := func(e agent.Event) {
		one.Lock()
		defer one.Unlock()
		e.Process = p
		each(e)
	}
	if x.trainer != nil {
		x.follow(ctx, emit)
	} else {
		x.messagesUntil(ctx, emit)
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	m.mu.Lock()
	delete(m.processes, p)
	m.mu.Unlock()
	emit(agent.Event{Exit: &x.exit})
	return nil
}

// find returns a process whose end nobody was told.
func (m *Memory) find(p agent.Process) (*pretender, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if x := m.processes[p]; x != nil {
		return x, nil
	}
	return nil, fmt.Errorf("%v: %w", p, agent.ErrNoProcess)
}

// worker returns a worker that runs.
func (m *Memory) worker(p agent.Process) (*trainer, error) {
	x, err := m.find(p)
	if err != nil {
		return nil, err
	}
	select {
	case <-x.ended:
		return nil, fmt.Errorf("%v: %w", p, agent.ErrNoProcess)
	default:
		return x.trainer, nil
	}
}

// Status implements agent.Agent.
func (m *Memory) Status(_ context.Context, p agent.Process) (control.Status, error) {
	t, err := m.worker(p)
	if err != nil {
		return control.Status{}, err
	}
	return t.status(), nil
}

// Commit implements agent.Agent.
func (m *Memory) Commit(_ context.Context, p agent.Process, r control.CommitRequest) (control.CommitResponse, error) {
	t, err := m.worker(p)
	if err != nil {
		return control.CommitResponse{}, err
	}
	return t.commit(r), nil
}

// Stop implements agent.Agent.
func (m *Memory) Stop(_ context.Context, p agent.Process) error {
	t, err := m.worker(p)
	if err != nil {
		return err
	}
	t.end()
	return nil
}

// Kill implements agent.Agent.
func (m *Memory) Kill(_ context.Context, p agent.Process) error {
	if x, err := m.find(p); err == nil {
		x.kill()
	}
	return nil
}

// Block has an obstacle at a path not pass until it is unblocked.
func (m *Memory) Block(path string, blocked bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.obstacles[path] = blocked
}

// Passed implements agent.Agent.
func (m *Memory) Passed(_ context.Context, o obstacle.Obstacle) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.obstacles[o.Path] {
		return fmt.Errorf("%s is blocked", o.Path)
	}
	return nil
}

// Log implements agent.Agent.
func (m *Memory) Log(job string, _ zapcore.Level, message string, _ ...zap.Field) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.logs[job] = append(m.logs[job], message)
}
