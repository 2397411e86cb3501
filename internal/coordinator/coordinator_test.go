package coordinator_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"

	"github.com/avgpipe/avgpipe/internal/agent"
	"github.com/avgpipe/avgpipe/internal/agent/agenttest"
	"github.com/avgpipe/avgpipe/internal/cluster"
	"github.com/avgpipe/avgpipe/internal/coordinator"
	"github.com/avgpipe/avgpipe/internal/shard"
	"github.com/avgpipe/avgpipe/internal/spec"
	"github.com/avgpipe/avgpipe/internal/worker/control"
)

// memoryRaft is the replicated state of a cluster of one that loses nothing.
type memoryRaft struct {
	mu      sync.Mutex
	state   *cluster.State
	changed chan struct{}
	failed  chan struct{}
}

func (r *memoryRaft) State() *cluster.State {
	s, _ := r.Changed()
	return s
}

func (r *memoryRaft) Changed() (*cluster.State, <-chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.state, r.changed
}

func (r *memoryRaft) Apply(_ context.Context, c cluster.Command) (cluster.Result, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	next, result, err := r.state.Apply(r.state.Index+1, c)
	r.state = next
	close(r.changed)
	r.changed = make(chan struct{})
	return result, err
}

func (r *memoryRaft) Failed() <-chan struct{} { return r.failed }

// fragile is an agent that is slow to say that a worker was told to end and, once damaging, cuts each shard short before its length
// is looked at for the first time.
type fragile struct {
	*agent.Local
	state    string // the state directory
	damaging atomic.Bool
	seen     sync.Map // digests
}

// Stop returns a second after the worker was told to end, which has ended by then.
func (f *fragile) Stop(ctx context.Context, p agent.Process) error {
	defer time.Sleep(time.Second)
	return f.Local.Stop(ctx, p)
}

func (f *fragile) Shards(job string) agent.Shards { return fragileShards{f.Local.Shards(job), f, job} }

type fragileShards struct {
	agent.Shards
	of  *fragile
	job string
}

func (s fragileShards) Size(ctx context.Context, d shard.Digest) (int64, error) {
	if _, again := s.of.seen.LoadOrStore(d, true); !again && s.of.damaging.Load() {
		if err := os.Truncate(filepath.Join(control.ShardDir(agent.JobDir(s.of.state, s.job)), shard.File(d)), 10); err != nil {
			return 0, err
		}
	}
	return s.Shards.Size(ctx, d)
}

// rig is a coordinator of a node with one core, whose processes are fake.
type rig struct {
	t     *testing.T
	raft  *memoryRaft
	agent *fragile
	stop  func()
	*coordinator.Coordinator
}

func newRig(t *testing.T) *rig {
	state := t.TempDir()
	r := &rig{
		t: t, agent: &fragile{Local: agenttest.Open(t, state, agenttest.NewProcesses(t)), state: state},
		raft: &memoryRaft{state: cluster.NewState(), changed: make(chan struct{}), failed: make(chan struct{})},
	}
	r.start()
	return r
}

// start runs a new coordinator of the same state and the same processes.
func (r *rig) start() {
	r.Coordinator = coordinator.New(coordinator.Config{
		Node: "a", Cores: []int{0}, Agent: r.agent, Raft: r.raft, DriftHold: time.Second, Log: zap.NewNop(),
		Limits: func() coordinator.Limits {
			return coordinator.Limits{ResponseTimeout: 30 * time.Second, RetryLimit: 3, RetryFirst: time.Second, RetryLongest: time.Minute}
		},
	})
	ctx, cancel := context.WithCancel(r.t.Context())
	r.stop = cancel
	if err := r.Adopt(ctx); err != nil {
		r.t.Fatal(err)
	}
	go r.Run(ctx)
}

func (r *rig) submit(name string, rounds uint64) string {
	a := agenttest.Assignment("", name, 0, rounds)
	j := &a.Spec.Job
	j.Schedule, j.Train.Steps, j.Center.CommitEvery, j.Devices.CPU.Threads = "1f1b", int(rounds), 100, 1
	text, err := spec.Encode(&a.Spec)
	if err != nil {
		r.t.Fatal(err)
	}
	result, err := r.raft.Apply(r.t.Context(), &cluster.SubmitJob{Name: name, Spec: text, Submitted: time.Now()})
	if err != nil {
		r.t.Fatal(err)
	}
	return result.Job
}

// until waits until a job is as wanted.
func (r *rig) until(id, what string, holds func(*cluster.Job) bool) *cluster.Job {
	r.t.Helper()
	for range 6000 {
		if j, err := r.raft.State().Job(id); err != nil {
			r.t.Fatal(err)
		} else if holds(j) {
			return j
		}
		time.Sleep(100 * time.Millisecond)
	}
	j, _ := r.raft.State().Job(id)
	r.t.Fatalf("after 10 minutes, job %s is not so: %s: %+v", id, what, j)
	return nil
}

func ended(j *cluster.Job) bool { return j.State.Ended() }

func committed(j *cluster.Job) bool { return j.State == cluster.Running && j.CommittedRound() > 0 }

// end stops the coordinator and what it started.
func (r *rig) end() {
	r.stop()
	synctest.Wait()
	time.Sleep(time.Minute)
}

func TestAJobIsBroughtToItsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		defer r.end()
		id := r.submit("good", 450)
		next := r.submit("next", 50)
		j := r.until(id, "ends", ended)
		if j.State != cluster.Done || j.CommittedRound() != 450 || j.Generation != 1 {
			t.Errorf("%s at round %d, generation %d: %s", j.State, j.CommittedRound(), j.Generation, j.Reason)
		}
		if want := `[{"stage":0,"node":"a","device":0,"cores":[0]}]`; string(j.Placement) != want {
			t.Errorf("placed %s, want %s", j.Placement, want)
		}
		if m := j.LastCommitted(); len(m.Shards) != 1 || m.Shards[0].Nodes[0] != "a" {
			t.Errorf("the last round is %+v", m)
		}
		if j := r.until(next, "ends", ended); j.State != cluster.Done {
			t.Errorf("the job behind it is %s: %s", j.State, j.Reason)
		}
		if n := r.Counts.Commits.Load(); n < 2 {
			t.Errorf("%d commits were counted", n)
		}
		if n := r.Counts.Deaths.Load(); n != 0 {
			t.Errorf("%d workers died that were told to end", n)
		}
	})
}

func TestALostWorkerIsReplaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		defer r.end()
		id := r.submit("long", 1e6)
		before := r.until(id, "commits", committed).CommittedRound()
		running, err := r.agent.Processes(t.Context())
		if err != nil || len(running) != 1 {
			t.Fatal(running, err)
		}
		if err := r.agent.Kill(t.Context(), running[0].Process); err != nil {
			t.Fatal(err)
		}
		j := r.until(id, "trains again", func(j *cluster.Job) bool { return j.State == cluster.Running && j.Generation == 2 })
		if !strings.Contains(j.Reason, "signal: killed; resumed from round") || j.CommittedRound() < before {
			t.Errorf("round %d, %d before: %s", j.CommittedRound(), before, j.Reason)
		}
		if v := r.Published().Jobs[id]; !v.Lives || v.Status == nil {
			t.Errorf("published %+v", v)
		}
	})
}

// A coordinator that comes after another takes the running workers over, and kills those of another generation.
func TestRunningWorkersAreAdopted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		id := r.submit("long", 1e6)
		before := r.until(id, "commits", committed).CommittedRound()
		close(r.raft.failed) // it ends, and leaves the worker
		synctest.Wait()
		r.stop()
		if err := r.agent.Record(t.Context(), &cluster.Job{ID: "7"}, false); err != nil {
			t.Fatal(err)
		}
		if _, err := r.agent.Start(t.Context(), agenttest.Assignment("7", "long", 4, 1e6)); err != nil { // of no job
			t.Fatal(err)
		}
		r.raft.failed = make(chan struct{})
		r.start()
		defer r.end()
		j := r.until(id, "commits further", func(j *cluster.Job) bool { return j.CommittedRound() > before })
		running, err := r.agent.Processes(t.Context())
		if err != nil || len(running) != 1 || running[0].Process.Job != id || j.Generation != 1 {
			t.Errorf("generation %d, running %+v, %v", j.Generation, running, err)
		}
	})
}

// A job is cancelled, and the shard of the round at which it ends is damaged before that is committed. The worker still has the round,
// and writes it again.
func TestADamagedShardIsWrittenAgainBeforeItIsCommitted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		defer r.end()
		id := r.submit("long", 1e6)
		before := r.until(id, "commits", committed).CommittedRound()
		r.agent.damaging.Store(true)
		if _, err := r.raft.Apply(t.Context(), &cluster.RequestCancel{Job: id, Reason: "cancelling"}); err != nil {
			t.Fatal(err)
		}
		j := r.until(id, "ends", ended)
		if j.State != cluster.Cancelled || j.CommittedRound() <= before || !strings.Contains(j.Reason, "is committed") {
			t.Errorf("%s at round %d, %d before: %s", j.State, j.CommittedRound(), before, j.Reason)
		}
	})
}
