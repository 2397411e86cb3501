package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/prometheus/procfs"

	"github.com/avgpipe/avgpipe/bench/internal/report"
	"github.com/avgpipe/avgpipe/bench/internal/rig"
	"github.com/avgpipe/avgpipe/internal/api"
	"github.com/avgpipe/avgpipe/internal/worker/control"
)

// repeats is how often each fault is measured; a figure is the median.
const repeats = 3

// endless is a job on two hosts that does not end while something is measured.
var endless = kind{name: "endless", source: strings.NewReplacer("name: spread", "name: endless", "steps: 1600", "steps: 2000000").Replace(onSeveral)}

// pulse is how far the training of a job has come, as its workers say themselves, whatever becomes of daemons.
type pulse struct {
	mu    sync.Mutex
	steps map[int]uint64 // by host, as its worker said last
	beats []time.Time    // when a worker was seen to have done more than before
}

func newPulse() *pulse { return &pulse{steps: map[int]uint64{}} }

// lookAt asks the workers of a job all the time.
func (p *pulse) lookAt(ctx context.Context, w *testbed, j *trialJob) {
	var clients []control.Client
	dial := func(ctx context.Context, socket string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", socket)
	}
	for _, h := range w.hosts {
		clients = append(clients, control.NewClient(h.jobDir(j), dial))
	}
	for ; ctx.Err() == nil; rig.Pause(ctx, 5*time.Millisecond) {
		for i, c := range clients {
			if s, err := c.Status(ctx); err == nil {
				p.see(i, s.Progress.Step)
			}
		}
	}
	for _, c := range clients {
		c.Close()
	}
}

func (p *pulse) see(host int, step uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if before, known := p.steps[host]; known && step > before { // less, once a round was gone back to
		p.beats = append(p.beats, time.Now())
	}
	p.steps[host] = step
}

// pause is the longest time without a step from a moment on, once steps have followed each other again for a second.
func (p *pulse) pause(ctx context.Context, from time.Time) (time.Duration, error) {
	var longest time.Duration
	err := rig.Poll(ctx, jobBound, "training again", func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		i, _ := slices.BinarySearchFunc(p.beats, from, time.Time.Compare)
		last, resumed := from, time.Time{}
		longest = 0
		for _, at := range p.beats[i:] {
			if gap := at.Sub(last); gap > longest {
				longest, resumed = gap, at
			}
			last = at
		}
		return !resumed.IsZero() && last.Sub(resumed) > time.Second
	})
	return longest, err
}

// measurement is a fault whose pause is measured.
type measurement struct {
	metric string
	bar    float64 // seconds
	aim    float64
	// leads: the host that leads must be among those that train. Else leadership is moved first, which does not pause training.
	leads  bool
	strike func(ctx context.Context, leader *host, with []*host) (undo func() error, err error)
}

var workerKilled = measurement{
	metric: "pause of training after SIGKILL of a worker", bar: 1, aim: 0.3,
	strike: func(_ context.Context, _ *host, with []*host) (func() error, error) {
		return kill(with[len(with)-1].processes(asWorker)...)
	},
}

var measurements = []measurement{
	workerKilled,
	{metric: "pause of training after SIGKILL of all of a host", bar: 5, aim: 2, strike: func(ctx context.Context, leader *host, with []*host) (func() error, error) {
		return down(ctx, with[slices.IndexFunc(with, func(h *host) bool { return h != leader })])
	}},
	{metric: "pause of training after SIGKILL of all of the host that leads and has a stage", bar: 5, aim: 2, leads: true, strike: func(ctx context.Context, leader *host, _ []*host) (func() error, error) {
		return down(ctx, leader)
	}},
	{metric: "pause of training after SIGKILL of the daemon that leads", bar: 0.1, aim: 0.05, strike: func(ctx context.Context, leader *host, _ []*host) (func() error, error) {
		return nil, leader.daemon.End(ctx, syscall.SIGKILL)
	}},
}

// measure measures pauses on a cluster that does nothing else.
func measure(ctx context.Context, o options) (figures []report.Figure, err error) {
	w, err := newTestbed(ctx, o, 0)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, w.end(ctx), w.remove(ctx)) }()
	if err := w.start(ctx); err != nil {
		return nil, err
	}
	idle, err := w.memory()
	if err != nil {
		return nil, err
	}
	conditions := map[string]any{"hosts": o.hosts, "processor": processor()}
	figures = append(figures, report.Figure{Metric: "memory of an idle daemon", Value: idle / 1e6, Unit: "MB", Bar: 60, Aim: 40, AtMost: true, Conditions: conditions})
	return figures, w.whileTraining(ctx, func(j *trialJob, p *pulse) error {
		for _, m := range measurements {
			pauses, err := w.pauses(ctx, j, p, m)
			if err != nil {
				return err
			}
			figures = append(figures, report.Figure{
				Metric: m.metric, Value: report.Median(pauses), Unit: "s", Bar: m.bar, Aim: m.aim, AtMost: true,
				Conditions: map[string]any{"hosts": o.hosts, "processor": processor(), "all": pauses},
			})
		}
		return nil
	})
}

// whileTraining does something while a job trains that does not end, and cancels that.
func (w *testbed) whileTraining(ctx context.Context, do func(*trialJob, *pulse) error) error {
	id, err := w.submit(ctx, &endless)
	if err != nil {
		return err
	}
	j, p := &trialJob{kind: &endless, id: id}, newPulse()
	looking, stop := context.WithCancel(ctx)
	var eyes sync.WaitGroup
	eyes.Go(func() { p.lookAt(looking, w, j) })
	err = do(j, p)
	stop()
	eyes.Wait()
	return errors.Join(err, w.cancel(ctx, j))
}

// pauses are those of training after a fault that strikes several times, in ascending order, in seconds.
func (w *testbed) pauses(ctx context.Context, j *trialJob, p *pulse, m measurement) (all []float64, err error) {
	for range repeats {
		pause, err := w.strike(ctx, j, p, m)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", m.metric, err)
		}
		w.say("%s: %v", m.metric, pause)
		all = append(all, pause.Seconds())
	}
	slices.Sort(all)
	return all, nil
}

// cancel ends a job.
func (w *testbed) cancel(ctx context.Context, j *trialJob) error {
	return rig.Poll(ctx, jobBound, "the end of the job", func() bool {
		_ = w.any(ctx, func(c *api.Client) error { // it may be cancelled, or not answer, already
			_, err := c.Cancel(ctx, j.id)
			return err
		})
		s, err := w.job(ctx, j.id)
		return err == nil && s.State.Ended() && len(w.processes(asWorker)) == 0
	})
}

// strike waits until a job has two workers and a committed round, applies a fault and returns the pause.
func (w *testbed) strike(ctx context.Context, j *trialJob, p *pulse, m measurement) (pause time.Duration, err error) {
	var with []*host
	var leader *host
	before := uint64(0)
	err = rig.Poll(ctx, jobBound, "a job that trains and commits on a whole cluster", func() bool {
		with = slices.DeleteFunc(slices.Clone(w.hosts), func(h *host) bool { return len(h.processes(asWorker)) == 0 })
		s, err := w.job(ctx, j.id)
		if before == 0 {
			before = s.CommittedRound
		}
		if err != nil || s.State != api.Running || len(with) < 2 || s.CommittedRound <= before || !w.whole(ctx) {
			return false
		}
		leader = w.hosts[0].leader(ctx)
		if !m.leads || slices.Contains(with, leader) {
			return true
		}
		_ = leader.daemon.End(ctx, syscall.SIGKILL) // who leads next is seen in the next turn
		return false
	})
	if err != nil {
		return 0, err
	}
	rig.Pause(ctx, 2*time.Second) // what the last fault left to do
	from := time.Now()
	undo, err := m.strike(ctx, leader, with)
	if err == nil {
		pause, err = p.pause(ctx, from)
	}
	if undo != nil {
		err = errors.Join(err, undo())
	}
	return pause, err
}

// whole reports whether all nodes answer and vote.
func (w *testbed) whole(ctx context.Context) bool {
	alive := 0
	_ = w.any(ctx, func(c *api.Client) error { // who does not answer is none of them
		nodes, err := c.Nodes(ctx)
		for _, n := range nodes {
			if n.Role != api.RoleNonVoter && n.State == api.NodeAlive {
				alive++
			}
		}
		return err
	})
	return alive == len(w.hosts)
}

// memory is the largest resident memory of a daemon, in bytes.
func (w *testbed) memory() (most float64, err error) {
	for _, h := range w.hosts {
		p, err := procfs.NewProc(h.daemon.PID())
		if err != nil {
			return 0, fmt.Errorf("the daemon%s: %w", h.of(), err)
		}
		s, err := p.Stat()
		if err != nil {
			return 0, fmt.Errorf("the daemon%s: %w", h.of(), err)
		}
		most = max(most, float64(s.ResidentMemory()))
	}
	return most, nil
}

// processor is the name of this machine's.
func processor() string {
	fs, err := procfs.NewDefaultFS()
	if err != nil {
		return "unknown"
	}
	all, err := fs.CPUInfo()
	if err != nil || len(all) == 0 {
		return "unknown"
	}
	return fmt.Sprintf("%s, family %s, %d cores", all[0].ModelName, all[0].CPUFamily, len(all))
}
