package coordinator

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"github.com/avgpipe/avgpipe/internal/agent"
	"github.com/avgpipe/avgpipe/internal/api"
	"github.com/avgpipe/avgpipe/internal/cluster"
	"github.com/avgpipe/avgpipe/internal/gpu"
	"github.com/avgpipe/avgpipe/internal/obstacle"
	"github.com/avgpipe/avgpipe/internal/placer"
	"github.com/avgpipe/avgpipe/internal/spec"
	"github.com/avgpipe/avgpipe/internal/worker/control"
	"github.com/avgpipe/avgpipe/job"
	"github.com/avgpipe/avgpipe/tuner"
)

// TestDecide runs the scenarios of testdata/decide. A scenario keeps a snapshot; its commands change it by `key=value`
// arguments, and `decide` prints what is decided about every job.
//
//	node cores=2 stopping now=3s     the node, and the clock
//	job ID key=value...              a job, new at its first mention, with a worker
//	worker ID NODE key=value...      another worker of the job, new at its first mention
//	decide
func TestDecide(t *testing.T) {
	datadriven.Walk(t, "testdata/decide", func(t *testing.T, path string) {
		w := snapshot{now: time.Unix(1000, 0), limits: Limits{
			RetryLimit: 5, RetryFirst: 500 * time.Millisecond, RetryLongest: time.Minute, ResponseTimeout: 30 * time.Second,
		}}
		var other elsewhere
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			switch d.Cmd {
			case "node":
				editNode(t, &w, &other, d.CmdArgs)
			case "job":
				editJob(t, &w, d.CmdArgs)
			case "worker":
				editWorker(t, &w, d.CmdArgs)
			case "decide":
				fill(&w, other)
				return render(w, decide(w))
			default:
				t.Fatalf("%s: unknown command %s", d.Pos, d.Cmd)
			}
			return ""
		})
	})
}

// TestTheOnlyNodeIsSaidToBeDrained: not that a job lacks its cores, which are free.
func TestTheOnlyNodeIsSaidToBeDrained(t *testing.T) {
	w := snapshot{cores: 2, memory: 1 << 30}
	j := &observed{Job: &cluster.Job{ID: "1", State: cluster.Queued}, spec: &spec.Spec{}, cores: 2, memory: 2 << 30}
	left := placer.Node{Name: "a", All: placer.Capacity{Cores: 2, Bytes: 1 << 30}, Excluded: "node a is being drained"}
	if got := lacking(w, j, left); len(got) != 1 || got[0] != left.Excluded {
		t.Errorf("it waits for %q", got)
	}
	left.Excluded = ""
	if got := lacking(w, j, left); len(got) != 2 || got[0] != "needs 2 cores, 0 of 2 are free" {
		t.Errorf("when it takes jobs again, it waits for %q", got)
	}
}

// elsewhere are cores that the jobs of a scenario do not have.
type elsewhere struct {
	reserved int // of tunings that belong to no job
	away     int // of another node, b, which cannot be reached
	spare    int // of a third, c, which nobody uses
	// held is how long somebody else has those of c; 0: nobody.
	held time.Duration
}

// fill says what is free of the node, and who has the rest.
func fill(w *snapshot, other elsewhere) {
	n := placer.Node{Name: "a", Bytes: w.memory, All: placer.Capacity{Cores: w.cores, GPUs: len(gpu.Usable(w.gpus)), Bytes: w.memory}}
	free := w.cores - other.reserved
	w.holders = nil
	for _, j := range w.jobs {
		j.want = placer.Job{Threads: 1, GPUs: j.gpus, Bytes: append([]int64{j.memory}, make([]int64, j.cores)...)}
		j.want.Groups = j.spec.Groups()
		for i := range j.cores / j.spec.Groups() {
			j.want.Devices = append(j.want.Devices, i)
		}
		if j.holdsCores() {
			held := placer.Held{Bytes: j.memory}
			for i := range j.cores {
				held.Cores = append(held.Cores, free-1-i)
			}
			h := placer.Holder{ID: j.ID, Held: map[string]placer.Held{"a": held}}
			if s := j.status; s != nil && s.Progress.ETAS != nil {
				h.Ends = w.now.Add(time.Duration(*s.Progress.ETAS * float64(time.Second)))
			}
			free, n.Bytes, w.holders = free-j.cores, n.Bytes-j.memory, append(w.holders, h)
		}
	}
	for i := range max(0, free) {
		n.Cores = append(n.Cores, i)
	}
	for _, g := range gpu.Usable(w.gpus)[:min(w.freeGPUs, n.All.GPUs)] {
		n.GPUs = append(n.GPUs, g.UUID)
	}
	for _, j := range w.jobs {
		j.want.Unfit = map[string][]string{"a": n.GPUs[:min(j.small, len(n.GPUs))]}
	}
	w.rooms = []placer.Node{n}
	if other.away > 0 {
		w.rooms = append(w.rooms, placer.Node{Name: "b", Excluded: "node b cannot be reached", All: placer.Capacity{Cores: other.away}})
	}
	if n := other.spare; n > 0 {
		c := placer.Node{Name: "c", Cores: make([]int, n), Bytes: w.memory, All: placer.Capacity{Cores: n, Bytes: w.memory}}
		if other.held > 0 {
			w.holders = append(w.holders, placer.Holder{ID: "c's", Held: map[string]placer.Held{"c": {Cores: c.Cores}}, Ends: w.now.Add(other.held)})
			c.Cores = nil
		}
		w.rooms = append(w.rooms, c)
	}
}

func editNode(t *testing.T, w *snapshot, other *elsewhere, args []datadriven.CmdArg) {
	for _, a := range args {
		switch a.Key {
		case "cores":
			w.cores = int(number(t, a))
		case "memory":
			w.memory = int64(number(t, a))
		case "gpus":
			w.gpus = make([]gpu.GPU, number(t, a))
			for i := range w.gpus {
				w.gpus[i] = gpu.GPU{Index: i, Name: "A100", UUID: fmt.Sprintf("GPU-%d", i), Health: gpu.Health{Level: gpu.Healthy}}
			}
		case "sick-gpu":
			w.gpus[number(t, a)].Health = gpu.Health{Level: gpu.Sick, Reasons: []gpu.Reason{{Code: "xid_79", Level: gpu.Sick, Text: "XID 79"}}}
		case "free-gpus":
			w.freeGPUs = int(number(t, a))
		case "stopping":
			w.stopping = true
		case "reserved":
			other.reserved = int(number(t, a))
		case "away":
			other.away = int(number(t, a))
		case "spare":
			other.spare = int(number(t, a))
		case "held":
			other.held = duration(t, a)
		case "now":
			w.now = time.Unix(1000, 0).Add(duration(t, a))
		default:
			t.Fatalf("node: unknown key %s", a.Key)
		}
	}
}

func editJob(t *testing.T, w *snapshot, args []datadriven.CmdArg) {
	id := args[0].Key
	at := slices.IndexFunc(w.jobs, func(j *observed) bool { return j.ID == id })
	if at < 0 {
		j := &observed{Job: &cluster.Job{ID: id, State: cluster.Queued, Submitted: time.Unix(1000, 0)}, spec: &spec.Spec{}, cores: 2, generation: newGeneration(newWorker("a"))}
		j.spec.Job.Stages, j.spec.Job.Pipelines, j.spec.Job.MicroBatches, j.spec.Job.Center.CommitEvery, j.spec.Job.Tuning = 2, 1, 1, 10, job.TuneByProfile
		setSpeed(j, 4)
		w.jobs, at = append(w.jobs, j), len(w.jobs)
	}
	j := w.jobs[at]
	for _, a := range args[1:] {
		if !editReplicated(t, j, a) && !editTuning(t, j, a) && !editObserved(t, w, j, a) && !observe(t, w, j, j.workers[0], a) {
			t.Fatalf("job: unknown key %s", a.Key)
		}
	}
	j.status = joined(j.workers)
}

// newWorker is one that was not started.
func newWorker(node string) *worker {
	return &worker{process: agent.Process{Node: node}, status: &control.Status{Final: 100}}
}

func editWorker(t *testing.T, w *snapshot, args []datadriven.CmdArg) {
	j := w.jobs[slices.IndexFunc(w.jobs, func(j *observed) bool { return j.ID == args[0].Key })]
	at := slices.IndexFunc(j.workers, func(w *worker) bool { return w.process.Node == args[1].Key })
	if at < 0 {
		j.workers, at = append(j.workers, newWorker(args[1].Key)), len(j.workers)
	}
	for _, a := range args[2:] {
		if !observe(t, w, j, j.workers[at], a) {
			t.Fatalf("worker: unknown key %s", a.Key)
		}
	}
	j.status = joined(j.workers)
}

// setSpeed makes a worker complete so many rounds a second.
func setSpeed(j *observed, speed uint64) {
	j.rounds = []sighting{{time.Unix(0, 0), 0}, {time.Unix(1, 0), speed}}
}

func editReplicated(t *testing.T, j *observed, a datadriven.CmdArg) bool {
	switch a.Key {
	case "state":
		j.State = cluster.JobState(a.Vals[0])
	case "memory":
		j.memory = int64(number(t, a))
	case "cancelled":
		j.Cancelling = true
	case "cores":
		j.cores = int(number(t, a))
	case "open":
		j.spec.Job.Pipelines = job.Auto
	case "resolved":
		j.spec.Job.Pipelines, j.State, j.tuning = 1, cluster.Queued, nil
	case "priority":
		j.spec.Job.Priority = int(number(t, a))
	case "commit-every":
		j.spec.Job.Center.CommitEvery = int(number(t, a))
	case "max-time":
		j.spec.Job.Train.MaxTime = duration(t, a)
	case "committed":
		j.Committed, j.Pending = []*cluster.Manifest{{Round: number(t, a)}}, 0
		clear(j.refused)
	case "begun":
		j.Pending = number(t, a)
		j.forget(j.Pending)
		delete(j.refused, j.Pending)
		j.stopAt = 0
	case "gpus":
		j.gpus = int(number(t, a))
	case "short":
		j.short = true
	case "small":
		j.small = int(number(t, a))
	case "gpu-memory":
		j.spec.Job.Devices.GPU.Memory = job.Factor(number(t, a))
	case "had":
		j.had = a.Vals
	case "kept":
		j.kept = int(number(t, a))
	case "sick":
		j.sick = text(a)
	case "stages":
		j.spec.Job.Stages = job.Count(number(t, a))
	case "min-stages":
		j.spec.Job.MinStages = int(number(t, a))
	case "bereft":
		j.bereft, j.forGood = text(a), true
	case "bereft-of-late":
		j.bereft, j.forGood = text(a), false
	case "groups":
		j.spec.Job.Groups, j.spec.Job.Pipelines, j.spec.Job.Stages = int(number(t, a)), job.Count(number(t, a)), 1 //nolint:gosec // a count
	case "unsplit":
		j.unsplit, j.splitAt = text(a), time.Unix(1000, 0).Add(resplitAgain)
	case "grow":
		j.grow, j.excluded = text(a), text(a)
	case "remove":
		j.remove = text(a)
	case "exported":
		j.exported = len(a.Vals) == 0
	default:
		return false
	}
	return true
}

// editTuning changes what is known of a tune process: it runs, says something, or has ended.
func editTuning(t *testing.T, j *observed, a datadriven.CmdArg) bool {
	switch a.Key {
	case "tunes":
		done := int(number(t, a)) - 1
		j.acting, j.State = false, cluster.Tuning
		j.tuning = &tuning{live: true, progress: api.TuneProgress{Done: done, Total: 4, Text: "candidates"}}
	case "chosen":
		j.tuning.live, j.tuning.report = false, &tuner.Report{}
	case "tune-failure":
		j.tuning.live, j.tuning.failure = false, text(a)
	case "tune-cause":
		j.tuning.live, j.tuning.cause = false, text(a)
	case "tune-silent":
		j.tuning.silent = duration(t, a)
	case "tune-absent":
		j.tuning = nil
	default:
		return false
	}
	return true
}

func editObserved(t *testing.T, w *snapshot, j *observed, a datadriven.CmdArg) bool {
	switch a.Key {
	case "waits-for":
		j.hold = &hold{obstacle: obstacle.Obstacle{Kind: obstacle.Busy, Text: text(a)}, probeAt: w.now.Add(time.Second)}
	case "awaits-place":
		j.hold = &hold{obstacle: obstacle.Obstacle{Kind: obstacle.Node, Text: text(a)}, passed: true}
	case "awaits-gpus":
		j.hold = &hold{obstacle: obstacle.Obstacle{Kind: obstacle.GPU, Text: text(a)}, passed: true}
	case "passed":
		j.hold.passed = true
	case "rate":
		setSpeed(j, number(t, a))
	case "permanent":
		j.permanent = true
	case "deaths":
		j.deaths, j.diedAt = int(number(t, a)), w.now
	case "placing":
		j.acting, j.choice = true, place
	case "posted":
		j.posted = j.Pending
	case "ends-there":
		j.stopAt = j.Pending
	case "refused":
		j.refuse(j.Pending, number(t, a))
	case "agreed":
		j.agree(number(t, a))
	case "shards":
		j.shards[j.Pending] = map[int]stored{}
		for k := range int(number(t, a)) {
			j.shards[j.Pending][k] = stored{}
		}
	case "stop-since":
		j.stopSince = time.Unix(1000, 0).Add(duration(t, a))
	default:
		return false
	}
	return true
}

// observe changes what is known of a worker.
func observe(t *testing.T, w *snapshot, j *observed, at *worker, a datadriven.CmdArg) bool {
	phases := map[string]phase{
		"absent": absent, "loading": loading, "training": training, "finished": finished, "aborted": aborted, "exited": exited,
	}
	progress := &at.status.Progress
	switch a.Key {
	case "worker":
		var ok bool
		if at.phase, ok = phases[a.Vals[0]]; !ok {
			t.Fatalf("unknown phase %s", a.Vals[0])
		}
		j.abortedAt, at.silent, at.polls = w.now, 0, 0
	case "silent": // of polls that take 2.2 s
		at.silent = duration(t, a)
		at.polls = int(at.silent.Seconds() / 2.2)
	case "stalled":
		at.stalled = duration(t, a)
	case "round":
		progress.Round = number(t, a)
		at.status.NextCommit = progress.Round + 1
	case "eta":
		left := duration(t, a).Seconds()
		progress.ETAS = &left
	case "final":
		at.status.Final = number(t, a)
	case "complete":
		progress.Step, progress.Steps = 1, 1
	case "elapsed":
		progress.ElapsedS = duration(t, a).Seconds()
	case "cause":
		j.cause, at.cause = text(a), text(a)
	default:
		return false
	}
	return true
}

// text is a value in which blanks are written as underscores.
func text(a datadriven.CmdArg) string { return strings.ReplaceAll(strings.Join(a.Vals, " "), "_", " ") }

func number(t *testing.T, a datadriven.CmdArg) uint64 {
	n, err := strconv.ParseUint(a.Vals[0], 10, 64)
	if err != nil {
		t.Fatalf("%s: %v", a.Key, err)
	}
	return n
}

func duration(t *testing.T, a datadriven.CmdArg) time.Duration {
	d, err := time.ParseDuration(a.Vals[0])
	if err != nil {
		t.Fatalf("%s: %v", a.Key, err)
	}
	return d
}

func render(w snapshot, all []decision) string {
	names := [...]string{
		wait: "wait", place: "place", beginCommit: "begin", postCommit: "post", dropCommit: "drop", commitRound: "commit",
		tune: "tune", resolve: "resolve", killTune: "kill-tuning", abortWorkers: "abort", killWorkers: "kill", endJob: "end", setRunning: "running", probe: "probe", awaitGPUs: "await-gpus", awaitPlace: "await-place", resplit: "resplit", regrow: "regrow", removeJob: "remove",
	}
	var b strings.Builder
	for i, d := range all {
		fmt.Fprintf(&b, "%s: %s", w.jobs[i].ID, names[d.choice])
		if d.round > 0 {
			fmt.Fprintf(&b, " round=%d", d.round)
		}
		if d.stop {
			b.WriteString(" stop")
		}
		if d.state != "" {
			fmt.Fprintf(&b, " %s", d.state)
		}
		if d.reason != "" {
			fmt.Fprintf(&b, ": %s", d.reason)
		}
		b.WriteByte('\n')
	}
	return b.String()
}
