package coordinator_test

import (
	"context"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/avgpipe/avgpipe/internal/cluster"
	"github.com/avgpipe/avgpipe/internal/coordinator"
	"github.com/avgpipe/avgpipe/internal/shard"
	"github.com/avgpipe/avgpipe/job"
)

func (s fragileShards) Collect(ctx context.Context, c shard.Collection) ([]shard.Digest, error) {
	if err := s.of.reach(ctx); err != nil {
		return nil, err
	}
	s.of.collects.Add(1)
	return s.Shards.Collect(ctx, c)
}

// TestShardsAreCollectedWhereThereMayBeSome: on nodes that use some, once on each that did before, and on all by a coordinator that knows nothing of them.
func TestShardsAreCollectedWhereThereMayBeSome(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, "a", "b", "c")
		defer r.end()
		id := r.submitWith("long", 1e6, func(j *job.Job) { j.Stages = 1 })
		commits := func(count int) {
			for range count {
				last := r.until(id, "is known", func(*cluster.Job) bool { return true }).CommittedRound()
				r.until(id, "commits", func(j *cluster.Job) bool { return j.CommittedRound() > last })
			}
		}
		node := func() int {
			return slices.IndexFunc(r.members(), func(n coordinator.Node) bool { return strings.Contains(placement(r, id), `"`+n.Name+`"`) })
		}
		asked := func() (all [3]int32) {
			for i := range all {
				all[i] = r.at(i).collects.Load()
			}
			return all
		}
		commits(4)
		first := node()
		for i, n := range asked() {
			if (n > 0) != (i == first) {
				t.Fatalf("it was never but on node %d, and they were asked %v times", first, asked())
			}
		}

		r.change(first, func(n *coordinator.Node) { n.Draining = true })
		r.until(id, "trains elsewhere", func(j *cluster.Job) bool { return j.State == cluster.Running && j.Generation == 2 })
		commits(6)
		second, before := node(), asked()
		commits(3)
		for i, n := range asked() {
			if more := n > before[i]; more != (i == second) {
				t.Errorf("long after it went from node %d to %d, node %d was asked %d times more", first, second, i, n-before[i])
			}
		}
		if third := 3 - first - second; asked()[third] > 0 {
			t.Errorf("node %d, which never had any, was asked", third)
		}

		r.leave()
		r.start()
		before = asked()
		commits(2)
		for i, n := range asked() {
			if n == before[i] {
				t.Errorf("a new coordinator does not ask node %d", i)
			}
		}
		before = asked()
		commits(2)
		for i, n := range asked() {
			if more := n > before[i]; more != (i == second) {
				t.Errorf("once it knows, it asks node %d %d times more", i, n-before[i])
			}
		}
	})
}

// TestANodeThatCannotBeReachedIsAskedLater for what it was to give up.
func TestANodeThatCannotBeReachedIsAskedLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, "a", "b")
		defer r.end()
		id := r.submitWith("long", 1e6, func(j *job.Job) { j.Stages = 1 })
		r.until(id, "commits", committed)
		on := slices.IndexFunc(r.members(), func(n coordinator.Node) bool { return strings.Contains(placement(r, id), `"`+n.Name+`"`) })
		r.change(on, func(n *coordinator.Node) { n.Draining = true })
		j := r.until(id, "trains elsewhere", func(j *cluster.Job) bool { return j.State == cluster.Running && j.Generation == 2 })
		r.at(on).partition()
		before := r.at(on).collects.Load()
		r.until(id, "commits what supersedes all", func(now *cluster.Job) bool {
			return len(now.Committed) > 1 && now.Committed[0].Round > j.CommittedRound()
		})
		if n := r.at(on).collects.Load(); n != before {
			t.Fatalf("it was asked %d times", n-before)
		}
		r.at(on).heal()
		last := r.until(id, "is known", func(*cluster.Job) bool { return true }).CommittedRound()
		r.until(id, "commits thrice", func(j *cluster.Job) bool { return j.CommittedRound() >= last+30 })
		if n := r.at(on).collects.Load(); n == before {
			t.Error("it is not asked any more")
		}
	})
}

// TestAManifestDoesNotWaitForRecords, which take a second here on both nodes, and are written at the same time.
func TestAManifestDoesNotWaitForRecords(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, "a", "b")
		defer r.end()
		id := r.submit("long", 1e6)
		first := r.until(id, "commits", committed).CommittedRound()
		var last atomic.Uint64
		var writing, most atomic.Int32
		slow := func(j *cluster.Job) {
			most.Store(max(most.Load(), writing.Add(1)))
			time.Sleep(time.Second)
			writing.Add(-1)
			now, err := r.raft.State().Job(id)
			if err != nil || now.CommittedRound() < j.CommittedRound() {
				t.Errorf("%v: round %d is recorded, and round %d is committed", err, j.CommittedRound(), now.CommittedRound())
			}
			last.Store(j.CommittedRound())
		}
		for i := range 2 {
			r.at(i).records.Store(&slow)
		}
		r.until(id, "has recorded further rounds", func(*cluster.Job) bool { return last.Load() > first+20 })
		if most.Load() != 2 {
			t.Errorf("%d records were written at the same time", most.Load())
		}
	})
}
