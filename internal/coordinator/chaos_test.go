package coordinator_test

import (
	"flag"
	"math/rand/v2"
	"runtime/debug"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/avgpipe/avgpipe/internal/cluster"
	"github.com/avgpipe/avgpipe/internal/coordinator"
	"github.com/avgpipe/avgpipe/job"
)

var runs = flag.Int("chaos-runs", 4, "how many runs TestWhateverBreaks makes")

// TestWhateverBreaks: nodes are cut off, workers die and leaders change at random. No committed round is lost, the job ends at its last
// round, and no worker is left.
func TestWhateverBreaks(t *testing.T) {
	before := debug.SetGCPercent(800) // a run keeps little and makes much
	t.Cleanup(func() { debug.SetGCPercent(before) })
	for seed := range *runs {
		t.Run(strconv.Itoa(seed), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) { breakThings(t, rand.New(rand.NewPCG(uint64(seed), 1))) })
		})
	}
}

func breakThings(t *testing.T, random *rand.Rand) {
	const rounds = 20_000
	r := newRig(t, "a", "b", "c")
	defer func() { r.end() }()
	id := r.submitWith("good", rounds, func(j *job.Job) { j.Stages, j.Center.Replicas = 2, 2 })
	var durable, generation uint64
	look := func() *cluster.Job {
		j, err := r.raft.State().Job(id)
		if err != nil {
			t.Fatal(err)
		}
		if j.CommittedRound() < durable || j.Generation < generation || j.State == cluster.Failed {
			t.Fatalf("%s: round %d in generation %d, before %d in %d: %s", j.State, j.CommittedRound(), j.Generation, durable, generation, j.Reason)
		}
		durable, generation = j.CommittedRound(), j.Generation
		return j
	}
	heal := func(i int) {
		r.at(i).heal()
		r.change(i, func(n *coordinator.Node) { n.Reach = coordinator.Reach{} })
	}
	for range 20 {
		i := 1 + random.IntN(2) // the coordinator's own is always reached
		select {
		case <-r.at(i).shut():
			heal(i)
		default:
			switch random.IntN(4) {
			case 0:
				r.at(i).partition()
				if random.IntN(2) == 0 {
					r.change(i, func(n *coordinator.Node) {
						n.Reach = coordinator.Reach{Since: time.Now(), Down: true, Why: "it is gone"}
					})
				}
			case 1:
				for _, w := range r.workers(i) {
					if err := r.at(i).Local.Kill(t.Context(), w.Process); err != nil {
						t.Fatal(err)
					}
				}
			case 2:
				r.leave()
				time.Sleep(time.Duration(random.IntN(3)) * time.Second)
				r.start()
			case 3:
				r.change(i, func(n *coordinator.Node) { n.Draining = !n.Draining })
			}
		}
		time.Sleep(time.Duration(random.IntN(4000)) * time.Millisecond)
		look()
	}
	for i := 1; i < 3; i++ {
		heal(i)
		r.change(i, func(n *coordinator.Node) { n.Draining = false })
	}
	r.until(id, "ends", ended)
	if j := look(); j.State != cluster.Done || j.CommittedRound() != rounds {
		t.Errorf("%s at round %d: %s", j.State, j.CommittedRound(), j.Reason)
	}
	time.Sleep(time.Minute)
	for i := range r.nodes {
		if left := r.workers(i); len(left) > 0 {
			t.Errorf("on %s: %+v", r.nodes[i].Name, left)
		}
	}
}

// TestEveryWaitHasABound that is positive and explained.
func TestEveryWaitHasABound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, "a", "b")
		defer r.end()
		id := r.submit("long", 1e6)
		r.until(id, "commits", committed)
		all := r.Timeouts(id)
		if len(all) < 10 {
			t.Errorf("%d waits", len(all))
		}
		measured := map[string]bool{}
		for i, one := range all {
			measured[one.Name] = one.Measured
			if i > 0 && one.ValueS < all[i-1].ValueS {
				t.Errorf("%s, %v s, comes after %s, %v s", one.Name, one.ValueS, all[i-1].Name, all[i-1].ValueS)
			}
			if one.ValueS <= 0 || one.Name == "" || one.From == "" || one.Then == "" {
				t.Errorf("%+v", one)
			}
		}
		for _, name := range []string{"response", "lost", "stuck", "commit", "link 0-1"} {
			if !measured[name] {
				t.Errorf("the bound %s is not measured: %+v", name, all)
			}
		}
	})
}
