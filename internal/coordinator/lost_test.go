package coordinator_test

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/avgpipe/avgpipe/internal/agent"
	"github.com/avgpipe/avgpipe/internal/cluster"
	"github.com/avgpipe/avgpipe/internal/coordinator"
	"github.com/avgpipe/avgpipe/internal/shard"
	"github.com/avgpipe/avgpipe/internal/worker/control"
	"github.com/avgpipe/avgpipe/job"
)

// gate is the way from the coordinator to a node, which may be cut.
type gate struct {
	mu  sync.Mutex
	cut chan struct{} // closed when the way is cut; nil: it never was
}

func (g *gate) shut() chan struct{} {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.cut == nil {
		g.cut = make(chan struct{})
	}
	return g.cut
}

// reach takes a moment where the way is cut.
func (g *gate) reach(ctx context.Context) error {
	select {
	case <-g.shut():
	default:
		return nil
	}
	select {
	case <-time.After(50 * time.Millisecond):
	case <-ctx.Done():
	}
	return fmt.Errorf("no answer: %w", agent.ErrUnreachable)
}

// partition cuts the way, and heal mends it.
func (g *gate) partition() { close(g.shut()) }

func (g *gate) heal() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.cut = nil
}

func (f *fragile) Processes(ctx context.Context) ([]agent.Running, error) {
	if err := f.reach(ctx); err != nil {
		return nil, err
	}
	all, err := f.Local.Processes(ctx)
	if f.mute.Add(-1) >= 0 {
		for i := range all {
			all[i].Status, all[i].Process.Generation = nil, 0
		}
	}
	return all, err
}

func (f *fragile) Events(ctx context.Context, p agent.Process, each func(agent.Event)) error {
	if err := f.reach(ctx); err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	shut := f.shut()
	go func() {
		select {
		case <-shut:
			cancel(fmt.Errorf("the connection broke: %w", agent.ErrUnreachable))
		case <-ctx.Done():
		}
	}()
	return f.Local.Events(ctx, p, each)
}

func (f *fragile) Status(ctx context.Context, p agent.Process) (control.Status, error) {
	if err := f.reach(ctx); err != nil {
		return control.Status{}, err
	}
	return f.Local.Status(ctx, p)
}

func (f *fragile) Commit(ctx context.Context, p agent.Process, r control.CommitRequest) (control.CommitResponse, error) {
	if err := f.reach(ctx); err != nil {
		return control.CommitResponse{}, err
	}
	return f.Local.Commit(ctx, p, r)
}

func (f *fragile) Kill(ctx context.Context, p agent.Process) error {
	if err := f.reach(ctx); err != nil {
		return err
	}
	return f.Local.Kill(ctx, p)
}

func (f *fragile) Record(ctx context.Context, j *cluster.Job, started bool) error {
	if err := f.reach(ctx); err != nil {
		return err
	}
	if before := f.records.Load(); before != nil {
		(*before)(j)
	}
	return f.Local.Record(ctx, j, started)
}

// members are the nodes as of now.
func (r *rig) members() []coordinator.Node {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.nodes)
}

// change changes a node.
func (r *rig) change(node int, how func(*coordinator.Node)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	how(&r.nodes[node])
}

// at is the agent of a node, with the way to it.
func (r *rig) at(node int) *fragile { return r.members()[node].Agent.(*fragile) }

// workers are the processes on a node, whatever the way to it.
func (r *rig) workers(node int) []agent.Running { return r.workersOf(r.members()[node]) }

func (r *rig) workersOf(n coordinator.Node) []agent.Running {
	r.t.Helper()
	all, err := n.Agent.(*fragile).Local.Processes(r.t.Context())
	if err != nil {
		r.t.Fatal(err)
	}
	return all
}

func twoStages(j *job.Job) { j.Stages = 2 }

// TestAJobThatGoesOnIsLeftAlone while the way to one of its nodes is cut, and commits again when that is mended.
func TestAJobThatGoesOnIsLeftAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, "a", "b")
		defer r.end()
		id := r.submit("long", 1e6)
		r.until(id, "commits", committed)
		r.at(1).partition()
		time.Sleep(20 * time.Second)
		j := r.until(id, "is there", func(*cluster.Job) bool { return true })
		if j.Generation != 1 || len(r.workers(1)) != 1 {
			t.Fatalf("generation %d, workers %v: %s", j.Generation, r.workers(1), j.Reason)
		}
		if s := coordinator.Status(j, nil, r.Published().Jobs[id]); !strings.Contains(s.Reason, "now: node b cannot be reached") || !strings.Contains(s.Reason, "left alone") {
			t.Errorf("the reason is %q", s.Reason)
		}
		before := j.CommittedRound()
		r.at(1).heal()
		j = r.until(id, "commits further", func(j *cluster.Job) bool { return j.CommittedRound() > before })
		if j.Generation != 1 {
			t.Errorf("generation %d", j.Generation)
		}
	})
}

// TestANewLeaderLeavesAJobAloneOfWhichANodeDoesNotAnswer, and adopts the rest of it later.
func TestANewLeaderLeavesAJobAloneOfWhichANodeDoesNotAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, "a", "b")
		id := r.submit("long", 1e6)
		before := r.until(id, "commits", committed).CommittedRound()
		r.leave()
		r.at(1).partition()
		r.start()
		defer r.end()
		time.Sleep(20 * time.Second)
		r.at(1).heal()
		j := r.until(id, "commits further", func(j *cluster.Job) bool { return j.CommittedRound() > before })
		if j.Generation != 1 || len(r.running(0)) != 1 || len(r.running(1)) != 1 {
			t.Errorf("generation %d: %s", j.Generation, j.Reason)
		}
	})
}

// TestARoundOnANodeThatIsGoneIsNotGivenUp: the job waits for the node, without a death, and says so.
func TestARoundOnANodeThatIsGoneIsNotGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, "a", "b", "c")
		defer r.end()
		id := r.submitWith("long", 1e6, twoStages)
		r.until(id, "commits", committed)
		from := 1
		if !strings.Contains(placement(r, id), `"b"`) {
			from = 2
		}
		r.at(from).partition()
		r.change(from, func(n *coordinator.Node) {
			n.Reach = coordinator.Reach{Since: time.Now(), Down: true, Why: "it is gone"}
		})
		for i := range r.nodes {
			if i != from && len(r.running(i)) > 0 {
				r.kill(i) // whose link to it is broken
			}
		}
		before := r.until(id, "waits", func(*cluster.Job) bool { return r.Published().Jobs[id].Waits }).CommittedRound()
		if note := r.Published().Jobs[id].Note; !strings.Contains(note, "cannot be reached") || r.Counts.Deaths.Load() > 0 {
			t.Errorf("%d deaths: %q", r.Counts.Deaths.Load(), note)
		}
		time.Sleep(time.Minute)
		r.at(from).heal()
		r.change(from, func(n *coordinator.Node) { n.Reach = coordinator.Reach{} })
		j := r.until(id, "commits further", func(j *cluster.Job) bool { return j.CommittedRound() > before })
		time.Sleep(time.Minute)
		workers := 0
		for i := range r.nodes {
			for _, w := range r.workers(i) {
				workers++
				if w.Process.Generation != j.Generation {
					t.Errorf("a worker of generation %d on %s, now %d", w.Process.Generation, r.nodes[i].Name, j.Generation)
				}
			}
		}
		if workers != len(placementNodes(j)) {
			t.Errorf("%d workers, placed %s", workers, j.Placement)
		}
	})
}

func placementNodes(j *cluster.Job) (all []string) {
	for _, node := range []string{"a", "b", "c"} {
		if strings.Contains(string(j.Placement), `"node":"`+node+`"`) {
			all = append(all, node)
		}
	}
	return all
}

func placement(r *rig, id string) string {
	j, err := r.raft.State().Job(id)
	if err != nil {
		r.t.Fatal(err)
	}
	return string(j.Placement)
}

// TestAJobLeavesANodeThatIsDrained after a commit, and waits where there is no other.
func TestAJobLeavesANodeThatIsDrained(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, "a", "b")
		defer r.end()
		id := r.submitWith("long", 1e6, func(j *job.Job) { j.Stages = 1 })
		before := r.until(id, "commits", committed).CommittedRound()
		on := 0
		if !strings.Contains(placement(r, id), `"a"`) {
			on = 1
		}
		r.change(on, func(n *coordinator.Node) { n.Draining = true })
		r.change(1-on, func(n *coordinator.Node) { n.Draining = true })
		j := r.until(id, "waits", func(*cluster.Job) bool { return r.Published().Jobs[id].Waits })
		if note := r.Published().Jobs[id].Note; j.CommittedRound() <= before || !strings.Contains(note, "drained") {
			t.Errorf("round %d, %d before: %q", j.CommittedRound(), before, note)
		}
		r.change(on, func(n *coordinator.Node) { n.Draining = false })
		r.until(id, "trains again", func(j *cluster.Job) bool { return j.State == cluster.Running && j.Generation == 2 })
		if n := r.Counts.Deaths.Load(); n > 0 {
			t.Errorf("%d deaths", n)
		}
	})
}

// TestAJobLeavesANodeThatIsGone for another one, without a death, and its old worker is ended when the node is back.
func TestAJobLeavesANodeThatIsGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, "a", "b", "c")
		defer r.end()
		id := r.submitWith("long", 1e6, func(j *job.Job) { j.Stages, j.Center.Replicas = 2, 2 })
		r.until(id, "commits", committed)
		from := slices.IndexFunc(r.members(), func(n coordinator.Node) bool { return n.Name != "a" && strings.Contains(placement(r, id), n.Name) })
		if from < 0 {
			t.Fatalf("placed %s", placement(r, id))
		}
		began := time.Now()
		r.at(from).partition()
		r.change(from, func(n *coordinator.Node) {
			n.Reach = coordinator.Reach{Since: time.Now(), Down: true, Why: "it is gone"}
		})
		for i := range r.nodes {
			if i != from && len(r.running(i)) > 0 {
				r.kill(i) // whose link to it is broken
			}
		}
		j := r.until(id, "trains again", func(j *cluster.Job) bool { return j.State == cluster.Running && j.Generation == 2 })
		if took := time.Since(began); took > 5*time.Second {
			t.Errorf("it trains again after %v", took)
		}
		if strings.Contains(string(j.Placement), r.members()[from].Name) || r.Counts.Deaths.Load() > 0 {
			t.Errorf("%d deaths, placed %s: %s", r.Counts.Deaths.Load(), j.Placement, j.Reason)
		}
		if len(r.workers(from)) != 1 {
			t.Fatalf("on the node that is gone: %v", r.workers(from))
		}
		r.at(from).heal()
		r.change(from, func(n *coordinator.Node) { n.Reach = coordinator.Reach{} })
		r.until(id, "has no old worker", func(*cluster.Job) bool { return len(r.workers(from)) == 0 })
	})
}

// TestAJobLeavesANodeThatIsRemoved at once, though all its workers go on; and says which node had its round where no other has it.
func TestAJobLeavesANodeThatIsRemoved(t *testing.T) {
	for replicas, waits := range map[int]bool{1: true, 2: false} {
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t, "a", "b", "c")
			defer r.end()
			id := r.submitWith("long", 1e6, func(j *job.Job) { j.Stages, j.Center.Replicas = 2, replicas })
			r.until(id, "commits", committed)
			from := slices.IndexFunc(r.members(), func(n coordinator.Node) bool { return n.Name != "a" && strings.Contains(placement(r, id), n.Name) })
			gone := r.members()[from]
			defer func() {
				for _, w := range r.workersOf(gone) {
					if err := gone.Agent.(*fragile).Local.Kill(t.Context(), w.Process); err != nil {
						t.Error(err)
					}
				}
			}()
			r.mu.Lock()
			r.nodes = slices.Delete(slices.Clone(r.nodes), from, from+1)
			r.mu.Unlock()
			if waits {
				r.until(id, "waits", func(*cluster.Job) bool { return r.Published().Jobs[id].Waits })
				if note := r.Published().Jobs[id].Note; !strings.Contains(note, "was on node "+gone.Name+", which was removed") {
					t.Errorf("the note is %q", note)
				}
				return
			}
			j := r.until(id, "trains again", func(j *cluster.Job) bool { return j.State == cluster.Running && j.Generation == 2 })
			if strings.Contains(string(j.Placement), gone.Name) || r.Counts.Deaths.Load() > 0 || !strings.Contains(j.Reason, "removed from the cluster") {
				t.Errorf("%d deaths, placed %s: %s", r.Counts.Deaths.Load(), j.Placement, j.Reason)
			}
			r.until(id, "commits further", func(now *cluster.Job) bool { return now.CommittedRound() > j.CommittedRound() })
		})
	}
}

// peer is the agent of a node, for another one.
func (r *rig) peer(node string) (agent.Agent, error) {
	for _, n := range r.members() {
		if n.Name == node {
			return n.Agent, nil
		}
	}
	return nil, fmt.Errorf("node %s is not known: %w", node, agent.ErrUnreachable)
}

func (s fragileShards) Verify(ctx context.Context, d shard.Digest) (int64, error) {
	if err := s.of.reach(ctx); err != nil {
		return 0, err
	}
	return s.Shards.Verify(ctx, d)
}

func (s fragileShards) Fetch(ctx context.Context, d shard.Digest, bytes int64, from []string) error {
	if err := s.of.reach(ctx); err != nil {
		return err
	}
	return s.Shards.Fetch(ctx, d, bytes, from)
}

func (s fragileShards) Open(ctx context.Context, d shard.Digest) (io.ReadCloser, int64, error) {
	if err := s.of.reach(ctx); err != nil {
		return nil, 0, err
	}
	return s.Shards.Open(ctx, d)
}

// TestShardsAreOnSeveralNodesBeforeARoundIsCommitted, and get new copies when a node is removed.
func TestShardsAreOnSeveralNodesBeforeARoundIsCommitted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, "a", "b", "c")
		defer r.end()
		id := r.submitWith("good", 450, func(j *job.Job) { j.Stages, j.Center.Replicas = 2, 2 })
		j := r.until(id, "ends", ended)
		if j.State != cluster.Done || j.CommittedRound() != 450 {
			t.Fatalf("%s at round %d: %s", j.State, j.CommittedRound(), j.Reason)
		}
		whole := func(j *cluster.Job) bool {
			for _, m := range j.Committed {
				for _, s := range m.Shards {
					count := 0
					for _, n := range r.members() {
						if bytes, err := n.Agent.Shards(id).Verify(t.Context(), s.Digest); err == nil && bytes == s.Bytes && slices.Contains(s.Nodes, n.Name) {
							count++
						}
					}
					if count < 2 {
						return false
					}
				}
			}
			return true
		}
		if !whole(j) {
			t.Fatalf("the last round is %+v", j.LastCommitted())
		}
		r.mu.Lock()
		r.nodes = r.nodes[:2]
		r.mu.Unlock()
		r.until(id, "has copies on the nodes that are left", whole)
	})
}

// TestADamagedCopyIsFetchedAnew where a worker is to start from it, when another node has it whole.
func TestADamagedCopyIsFetchedAnew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, "a", "b")
		defer r.end()
		id := r.submitWith("long", 1e6, func(j *job.Job) { j.Stages, j.Center.Replicas = 2, 2 })
		j := r.until(id, "commits", func(j *cluster.Job) bool { return committed(j) && len(j.LastCommitted().Shards[1].Nodes) == 2 })
		on := slices.IndexFunc(r.nodes, func(n coordinator.Node) bool {
			return strings.Contains(string(j.Placement), `"stage":1,"node":"`+n.Name)
		})
		r.kill(on)
		newest := r.until(id, "is known", func(*cluster.Job) bool { return true }).LastCommitted()
		path := filepath.Join(control.ShardDir(agent.JobDir(r.nodes[on].Agent.(*fragile).state, id)), shard.File(newest.Shards[1].Digest))
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		text[len(text)-1] ^= 1
		if err := os.WriteFile(path, text, 0o600); err != nil {
			t.Fatal(err)
		}
		j = r.until(id, "trains again", func(j *cluster.Job) bool { return j.State == cluster.Running && j.Generation == 2 })
		if _, err := r.nodes[on].Agent.Shards(id).Verify(t.Context(), newest.Shards[1].Digest); err != nil || strings.Contains(j.Reason, "discarded") {
			t.Errorf("%v; %s", err, j.Reason)
		}
		r.until(id, "commits further", func(j *cluster.Job) bool { return j.CommittedRound() > newest.Round })
	})
}
