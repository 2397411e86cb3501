package coordinator_test

import (
	"cmp"
	"context"
	"errors"
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
	"github.com/avgpipe/avgpipe/internal/obstacle"
	"github.com/avgpipe/avgpipe/internal/shard"
	"github.com/avgpipe/avgpipe/internal/spec"
	"github.com/avgpipe/avgpipe/internal/worker/control"
	"github.com/avgpipe/avgpipe/job"
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

// fragile is an agent that is slow to say that a worker was told to end, starts none while busy and, once damaging, cuts each shard short
// before its length is looked at for the first time.
type fragile struct {
	*agent.Local
	busy     atomic.Int32 // starts that fail
	mute     atomic.Int32 // lists of processes in which none says anything
	state    string       // the state directory
	damaging atomic.Bool
	seen     sync.Map // digests
	collects atomic.Int32
	records  atomic.Pointer[func(*cluster.Job)] // called before each record of a job is written; nil: nothing is
	gate
}

// Stop returns a second after the worker was told to end, which has ended by then.
func (f *fragile) Stop(ctx context.Context, p agent.Process) error {
	if err := f.reach(ctx); err != nil {
		return err
	}
	defer time.Sleep(time.Second)
	return f.Local.Stop(ctx, p)
}

func (f *fragile) Start(ctx context.Context, a control.Assignment) (agent.Process, error) {
	if err := f.reach(ctx); err != nil {
		return agent.Process{}, err
	}
	if f.busy.Add(-1) >= 0 {
		return agent.Process{}, &obstacle.Error{Obstacle: obstacle.Obstacle{Kind: obstacle.Busy, Path: f.state, Text: "it is busy"}, Err: errors.New("busy")}
	}
	return f.Local.Start(ctx, a)
}

func (f *fragile) Shards(job string) agent.Shards { return fragileShards{f.Local.Shards(job), f, job} }

type fragileShards struct {
	agent.Shards
	of  *fragile
	job string
}

func (s fragileShards) Size(ctx context.Context, d shard.Digest) (int64, error) {
	if err := s.of.reach(ctx); err != nil {
		return 0, err
	}
	if _, again := s.of.seen.LoadOrStore(d, true); !again && s.of.damaging.Load() {
		if err := os.Truncate(filepath.Join(control.ShardDir(agent.JobDir(s.of.state, s.job)), shard.File(d)), 10); err != nil {
			return 0, err
		}
	}
	return s.Shards.Size(ctx, d)
}

// rig is a coordinator of nodes with one core each, whose processes are fake.
type rig struct {
	t     *testing.T
	raft  *memoryRaft
	mu    sync.Mutex
	nodes []coordinator.Node
	agent *fragile // of the first
	stop  func()
	ended chan struct{} // closed when the coordinator has

	resplitAfter time.Duration // 0: a minute
	*coordinator.Coordinator
}

func newRig(t *testing.T, nodes ...string) *rig {
	r := &rig{t: t, raft: &memoryRaft{state: cluster.NewState(), changed: make(chan struct{}), failed: make(chan struct{})}}
	for _, name := range nodes {
		state := t.TempDir()
		at := &fragile{Local: agenttest.Open(t, name, state, agenttest.NewProcesses(t), func(c *agent.Config) { c.Peers = r.peer }), state: state}
		r.nodes = append(r.nodes, coordinator.Node{Name: name, Cores: []int{0}, Agent: at})
		if r.agent == nil {
			r.agent = at
		}
	}
	r.start()
	return r
}

// running are the processes on a node.
func (r *rig) running(node int) []agent.Running {
	r.t.Helper()
	all, err := r.nodes[node].Agent.Processes(r.t.Context())
	if err != nil {
		r.t.Fatal(err)
	}
	return all
}

// kill kills the only process on a node.
func (r *rig) kill(node int) {
	r.t.Helper()
	all := r.running(node)
	if len(all) != 1 {
		r.t.Fatalf("processes on %s: %+v", r.nodes[node].Name, all)
	}
	if err := r.nodes[node].Agent.Kill(r.t.Context(), all[0].Process); err != nil {
		r.t.Fatal(err)
	}
}

// leave ends the coordinator as when Raft fails, which leaves the workers.
func (r *rig) leave() {
	close(r.raft.failed)
	<-r.ended
	r.stop()
	r.raft.failed = make(chan struct{})
}

// start runs a new coordinator of the same state and the same processes.
func (r *rig) start() {
	r.Coordinator = coordinator.New(coordinator.Config{
		Nodes: r.members, Raft: r.raft, DriftHold: time.Second, Log: zap.NewNop(),
		Limits: func() coordinator.Limits {
			r.mu.Lock()
			defer r.mu.Unlock()
			return coordinator.Limits{ResponseTimeout: 30 * time.Second, RetryLimit: 3, RetryFirst: time.Second, RetryLongest: time.Minute, ResplitAfter: cmp.Or(r.resplitAfter, time.Minute)}
		},
	})
	ctx, cancel := context.WithCancel(r.t.Context())
	r.stop = cancel
	if err := r.Adopt(ctx); err != nil {
		r.t.Fatal(err)
	}
	running, ended := r.Coordinator, make(chan struct{})
	r.ended = ended
	go func() {
		running.Run(ctx)
		close(ended)
	}()
}

// submit submits a job with a stage for each node.
func (r *rig) submit(name string, rounds uint64) string {
	return r.submitWith(name, rounds, func(*job.Job) {})
}

// submitWith does so with a change.
func (r *rig) submitWith(name string, rounds uint64, change func(*job.Job)) string {
	return r.submitSpec(name, rounds, func(s *spec.Spec) { change(&s.Job) })
}

// submitSpec does so with a change of what was admitted.
func (r *rig) submitSpec(name string, rounds uint64, change func(*spec.Spec)) string {
	a := agenttest.Assignment("", name, 0, rounds)
	j := &a.Spec.Job
	j.Stages, j.Schedule, j.Train.Steps, j.Center.CommitEvery, j.Devices.CPU.Threads = job.Count(len(r.nodes)), "1f1b", int(rounds), 100, 1
	change(&a.Spec)
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
		r := newRig(t, "a")
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
		r := newRig(t, "a")
		defer r.end()
		id := r.submit("long", 1e6)
		before := r.until(id, "commits", committed).CommittedRound()
		r.kill(0)
		j := r.until(id, "trains again", func(j *cluster.Job) bool { return j.State == cluster.Running && j.Generation == 2 })
		if !strings.Contains(j.Reason, "signal: killed; resumed from round") || j.CommittedRound() < before {
			t.Errorf("round %d, %d before: %s", j.CommittedRound(), before, j.Reason)
		}
		if v := r.Published().Jobs[id]; len(v.Nodes) != 1 || v.Status == nil {
			t.Errorf("published %+v", v)
		}
	})
}

// A coordinator that comes after another takes the running workers over, and kills those of another generation.
func TestRunningWorkersAreAdopted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, "a")
		id := r.submit("long", 1e6)
		before := r.until(id, "commits", committed).CommittedRound()
		r.leave()
		if err := r.agent.Record(t.Context(), &cluster.Job{ID: "7"}, false); err != nil {
			t.Fatal(err)
		}
		if _, err := r.agent.Start(t.Context(), agenttest.Assignment("7", "long", 4, 1e6)); err != nil { // of no job
			t.Fatal(err)
		}
		r.start()
		defer r.end()
		j := r.until(id, "commits further", func(j *cluster.Job) bool { return j.CommittedRound() > before })
		if running := r.running(0); len(running) != 1 || running[0].Process.Job != id || j.Generation != 1 {
			t.Errorf("generation %d, running %+v", j.Generation, running)
		}
	})
}

// A coordinator that comes after another asks a worker again that does not answer at once, as on a busy host. One that never does is replaced.
func TestAWorkerThatIsSlowToAnswerIsAdopted(t *testing.T) {
	for slow, generation := range map[int32]uint64{2: 1, 1e6: 2} {
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t, "a")
			id := r.submit("long", 1e6)
			before := r.until(id, "commits", committed).CommittedRound()
			r.leave()
			r.agent.mute.Store(slow)
			r.start()
			defer r.end()
			if j := r.until(id, "commits further", func(j *cluster.Job) bool { return j.CommittedRound() > before }); j.Generation != generation {
				t.Errorf("silent in %d lists: generation %d, expected %d: %s", slow, j.Generation, generation, j.Reason)
			}
		})
	}
}

// A job is cancelled, and the shard of the round at which it ends is damaged before that is committed. The worker still has the round,
// and writes it again.
func TestADamagedShardIsWrittenAgainBeforeItIsCommitted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, "a")
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

// Where every commit fails, the job's log and its status say so, the tries become rarer, and what they wrote is deleted.
func TestCommitsThatFailAreSaidAndBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, "a")
		defer r.end()
		id := r.submit("long", 1e6)
		before := r.until(id, "commits", committed).CommittedRound()
		r.agent.damaging.Store(true)
		time.Sleep(time.Minute)
		j := r.until(id, "commits no further", committed)
		log, err := os.ReadFile(control.LogPath(agent.JobDir(r.agent.state, id)))
		if n := strings.Count(string(log), "a commit failed and is made again"); err != nil || n < 3 || n > 15 {
			t.Errorf("after a minute the log has %d failures (%v)", n, err)
		}
		files, err := os.ReadDir(control.ShardDir(agent.JobDir(r.agent.state, id)))
		if err != nil || len(files) > len(j.Committed)+1 {
			t.Errorf("%d files for %d rounds (%v)", len(files), len(j.Committed), err)
		}
		s := coordinator.Status(j, nil, r.Published().Jobs[id])
		if !strings.Contains(s.Reason, "; now: commit round ") || !strings.Contains(s.Reason, "has 10 bytes, expected") {
			t.Errorf("the reason is %q", s.Reason)
		}
		r.agent.damaging.Store(false)
		j = r.until(id, "commits again", func(now *cluster.Job) bool { return now.CommittedRound() > max(before, j.CommittedRound()) })
		time.Sleep(time.Second)
		if s := coordinator.Status(j, nil, r.Published().Jobs[id]); strings.Contains(s.Reason, "now:") {
			t.Errorf("the reason is still %q", s.Reason)
		}
	})
}
