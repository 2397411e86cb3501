package coordinator_test

import (
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/avgpipe/avgpipe/internal/agent/agenttest"
	"github.com/avgpipe/avgpipe/internal/api"
	"github.com/avgpipe/avgpipe/internal/cluster"
	"github.com/avgpipe/avgpipe/internal/gpu"
	"github.com/avgpipe/avgpipe/job"
)

// gpus are the GPUs of a rig's node: sick or healthy, in order. Nil: there are none.
type gpus struct{ atomic.Pointer[[]gpu.GPU] }

func (g *gpus) set(levels ...gpu.Level) {
	var all []gpu.GPU
	for i, level := range levels {
		one := gpu.GPU{Index: i, UUID: "GPU-" + string(rune('a'+i)), Name: "A100", MemoryBytes: 40 << 30, Health: gpu.Health{Level: level}}
		if level == gpu.Sick {
			one.Health.Reasons = []gpu.Reason{{Code: "xid_79", Level: gpu.Sick, Text: "XID 79"}}
		}
		all = append(all, one)
	}
	g.Store(&all)
}

// newGPURig is a rig whose node has GPUs.
func newGPURig(t *testing.T) (*rig, *gpus) {
	g := &gpus{}
	r := newRig(t, "a")
	r.leave()
	g.set(gpu.Healthy)
	r.nodes[0].GPUs = func() []gpu.GPU { return *g.Load() }
	r.start()
	return r, g
}

// onGPUs makes a job one on so many GPUs.
func onGPUs(n int) func(*job.Job) {
	return func(j *job.Job) { j.Devices.Kind, j.Devices.GPU.Count = job.KindGPU, job.Count(n) }
}

// A job whose GPUs are gone after a restart waits, says what for, keeps its rounds, and goes on when they are back.
func TestAJobWaitsForGPUsThatAreGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, g := newGPURig(t)
		defer r.end()
		id := r.submitWith("long", 1e6, onGPUs(1))
		before := r.until(id, "commits", committed)
		r.leave()
		r.kill(0)
		g.set()
		r.start()
		time.Sleep(time.Second)
		v := r.Published().Jobs[id]
		want := "waits to go on after: the daemon was restarted; it had GPU-a; needs 1 GPU, and jobs may use 0 of this node: "
		if now := r.until(id, "is known", func(*cluster.Job) bool { return true }); !v.Waits || !strings.HasPrefix(v.Note, want) || now.CommittedRound() < before.CommittedRound() {
			t.Errorf("it waits: %t, with round %d: %s", v.Waits, now.CommittedRound(), v.Note)
		}
		cpu := r.submit("cpu", 50)
		if j := r.until(cpu, "ends", ended); j.State != cluster.Done {
			t.Errorf("a job of no GPU is %s behind it: %s", j.State, j.Reason)
		}
		r.leave()
		g.set(gpu.Healthy)
		r.start()
		r.until(id, "goes on", func(j *cluster.Job) bool {
			return j.Generation == before.Generation+1 && j.CommittedRound() > before.CommittedRound()
		})
	})
}

// A job that trains on a GPU that an administrator has taken from jobs commits, as by a stop, and waits for another.
func TestAJobLeavesAGPUThatIsTakenFromJobs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, g := newGPURig(t)
		defer r.end()
		id := r.submitWith("long", 1e6, onGPUs(1))
		before := r.until(id, "commits", committed)
		r.leave()
		g.set()
		r.nodes[0].Excludes = func(uuid string) bool { return uuid == "GPU-a" }
		r.start()
		for len(r.running(0)) > 0 || !r.Published().Jobs[id].Waits {
			time.Sleep(time.Second)
		}
		now := r.until(id, "is known", func(*cluster.Job) bool { return true })
		if now.CommittedRound() <= before.CommittedRound() || r.Counts.Deaths.Load() != 0 {
			t.Errorf("round %d is committed after %d, with %d deaths", now.CommittedRound(), before.CommittedRound(), r.Counts.Deaths.Load())
		}
		const want = "waits to go on after: jobs may not use GPU GPU-a any more, by gpus of the configuration or CUDA_VISIBLE_DEVICES; it had GPU-a; "
		if v := r.Published().Jobs[id]; !strings.HasPrefix(v.Note, want) {
			t.Errorf("the reason is %q, want %q", v.Note, want)
		}
		r.leave()
		g.set(gpu.Healthy)
		r.nodes[0].Excludes = nil
		r.start()
		r.until(id, "goes on", func(j *cluster.Job) bool { return j.CommittedRound() > now.CommittedRound() })
	})
}

// A job that waits for GPUs can be cancelled.
func TestAJobThatWaitsForGPUsIsCancelled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, g := newGPURig(t)
		defer r.end()
		id := r.submitWith("long", 1e6, onGPUs(1))
		r.until(id, "commits", committed)
		g.set(gpu.Sick)
		time.Sleep(10 * time.Second)
		if v := r.Published().Jobs[id]; !v.Waits || !strings.Contains(v.Note, "GPU 0 (A100, GPU-a) is sick: XID 79") {
			t.Errorf("it waits: %t: %s", v.Waits, v.Note)
		}
		if _, err := r.raft.Apply(t.Context(), &cluster.RequestCancel{Job: id, Reason: "cancelling", By: "somebody"}); err != nil {
			t.Fatal(err)
		}
		if j := r.until(id, "ends", ended); j.State != cluster.Cancelled || j.CommittedRound() == 0 {
			t.Errorf("%s at round %d: %s", j.State, j.CommittedRound(), j.Reason)
		}
	})
}

// A job that was admitted to larger GPUs than the host has now waits for such.
func TestAJobWaitsForGPUsThatAreLargeEnough(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, g := newGPURig(t)
		defer r.end()
		id := r.submitWith("long", 1e6, func(j *job.Job) {
			onGPUs(1)(j)
			j.Devices.GPU.Memory = 60 << 30
		})
		time.Sleep(5 * time.Second)
		want := "queued: needs 1 GPU with 64.4 GB of memory, 1 of the node's 1 are free; GPU 0 (A100, GPU-a) has 42.9 GB"
		if v := r.Published().Jobs[id]; v.Note != want {
			t.Errorf("the reason is %q, want %q", v.Note, want)
		}
		large := gpu.GPU{Index: 1, UUID: "GPU-b", Name: "A100", MemoryBytes: 80 << 30, Health: gpu.Health{Level: gpu.Healthy}}
		all := append(slices.Clone(*g.Load()), large)
		g.Store(&all)
		j := r.until(id, "commits", committed)
		if !strings.Contains(string(j.Placement), `"gpu":"GPU-b"`) {
			t.Errorf("placed %s", j.Placement)
		}
	})
}

// A tuning on a GPU that becomes sick is ended, and counts as little as a worker's end.
func TestATuningOnASickGPUIsEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, g := newGPURig(t)
		defer r.end()
		id := r.submitWith("tunehangs", 100, func(j *job.Job) {
			onGPUs(1)(j)
			j.Pipelines, j.Tuning = job.Auto, job.TuneByProfile
		})
		for range 5 {
			r.until(id, "is tuned", func(j *cluster.Job) bool { return j.State == cluster.Tuning && len(r.running(0)) == 1 })
			g.set(gpu.Sick)
			time.Sleep(5 * time.Second)
			if v := r.Published().Jobs[id]; len(r.running(0)) != 0 || !v.Waits || !strings.Contains(v.Note, "XID 79") {
				t.Fatalf("%d processes are on a sick GPU; it waits: %t: %s", len(r.running(0)), v.Waits, v.Note)
			}
			g.set(gpu.Healthy)
		}
	})
}

func TestATuningOfNoJobOnASickGPUIsEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, g := newGPURig(t)
		defer r.end()
		time.AfterFunc(5*time.Second, func() { g.set(gpu.Sick) })
		s := agenttest.Assignment("", "tunehangs", 0, 100).Spec
		s.Job.Devices.CPU.Threads, s.Job.Pipelines = 1, job.Auto
		onGPUs(1)(&s.Job)
		if _, err := r.Tune(t.Context(), &s, func(api.TuneUpdate) error { return nil }); err == nil || !strings.Contains(err.Error(), "GPU 0 (A100, GPU-a) is sick: XID 79") {
			t.Errorf("a tuning of no job ended with %v", err)
		}
	})
}

// A worker that is killed for a sick GPU is no death: a job survives more of them than its retry limit.
func TestWorkersOfSickGPUsAreNoDeaths(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, g := newGPURig(t)
		defer r.end()
		id := r.submitWith("long", 1e6, func(j *job.Job) {
			onGPUs(1)(j)
			j.Center.CommitEvery = 1e5 // so that nothing is committed between
		})
		trains := func(j *cluster.Job) bool { return j.State == cluster.Running && len(r.running(0)) == 1 }
		for range 5 {
			r.until(id, "trains", trains)
			g.set(gpu.Sick)
			time.Sleep(5 * time.Second)
			if n := len(r.running(0)); n != 0 {
				t.Fatalf("%d workers are on a sick GPU", n)
			}
			g.set(gpu.Healthy)
		}
		r.until(id, "trains", trains)
		if n := r.Counts.Deaths.Load(); n != 0 {
			t.Errorf("%d deaths", n)
		}
	})
}
