package coordinator

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"github.com/avgpipe/avgpipe/internal/api"
)

// TestDecide runs the scenarios of testdata/decide. A scenario keeps a snapshot; its commands change it by `key=value`
// arguments, and `decide` prints what is decided about every job.
//
//	node cores=2 stopping now=3s     the node, and the clock
//	job ID key=value...              a job, new at its first mention
//	decide
func TestDecide(t *testing.T) {
	datadriven.Walk(t, "testdata/decide", func(t *testing.T, path string) {
		w := snapshot{now: time.Unix(1000, 0), limits: Limits{
			RetryLimit: 5, RetryFirst: 500 * time.Millisecond, RetryLongest: time.Minute, ResponseTimeout: 30 * time.Second,
		}}
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			switch d.Cmd {
			case "node":
				editNode(t, &w, d.CmdArgs)
			case "job":
				editJob(t, &w, d.CmdArgs)
			case "decide":
				return render(decide(w))
			default:
				t.Fatalf("%s: unknown command %s", d.Pos, d.Cmd)
			}
			return ""
		})
	})
}

func editNode(t *testing.T, w *snapshot, args []datadriven.CmdArg) {
	for _, a := range args {
		switch a.Key {
		case "cores":
			w.cores = int(number(t, a))
		case "memory":
			w.memory = int64(number(t, a))
		case "stopping":
			w.stopping = true
		case "reserved":
			w.reserved = int(number(t, a))
		case "now":
			w.now = time.Unix(1000, 0).Add(duration(t, a))
		default:
			t.Fatalf("node: unknown key %s", a.Key)
		}
	}
}

func editJob(t *testing.T, w *snapshot, args []datadriven.CmdArg) {
	id := args[0].Key
	at := -1
	for i := range w.jobs {
		if w.jobs[i].id == id {
			at = i
		}
	}
	if at < 0 {
		w.jobs = append(w.jobs, jobView{
			id: id, state: api.Queued, stages: 2, cores: 2, commitEvery: 10, stopBound: 10 * time.Second,
			worker: workerView{final: 100, roundsPerS: 4},
		})
		at = len(w.jobs) - 1
	}
	j := &w.jobs[at]
	for _, a := range args[1:] {
		if !editReplicated(t, j, a) && !editTuning(j, a) && !editObserved(t, w, j, a) {
			t.Fatalf("job: unknown key %s", a.Key)
		}
	}
}

func editReplicated(t *testing.T, j *jobView, a datadriven.CmdArg) bool {
	switch a.Key {
	case "state":
		j.state = api.State(a.Vals[0])
	case "generation":
		j.generation = number(t, a)
	case "memory":
		j.memory = int64(number(t, a))
	case "cancelled":
		j.cancelled = true
	case "cores":
		j.cores = int(number(t, a))
	case "open":
		j.open = true
	case "resolved":
		j.open, j.state, j.tuning = false, api.Queued, tuningView{}
	case "commit-every":
		j.commitEvery = number(t, a)
	case "max-time":
		j.maxTime = duration(t, a)
	case "committed":
		j.committed, j.begun = number(t, a), nil
	case "begun":
		j.begun = &begun{round: number(t, a)}
	case "remove":
		j.remove = strings.ReplaceAll(a.Vals[0], "_", " ")
	case "exported":
		j.exported = len(a.Vals) == 0
	default:
		return false
	}
	return true
}

// editTuning changes what is known of a tune process: it runs, says something, or has ended.
func editTuning(j *jobView, a datadriven.CmdArg) bool {
	words := strings.ReplaceAll(strings.Join(a.Vals, " "), "_", " ")
	switch a.Key {
	case "tunes":
		j.placing, j.state, j.tuning = false, api.Tuning, tuningView{live: true, bound: 5 * time.Minute, text: words}
	case "chosen":
		j.tuning.live, j.tuning.chosen = false, true
	case "tune-failure":
		j.tuning.live, j.tuning.failure = false, words
	case "tune-cause":
		j.tuning.live, j.tuning.cause = false, words
	case "tune-absent":
		j.tuning = tuningView{}
	default:
		return false
	}
	return true
}

func editObserved(t *testing.T, w *snapshot, j *jobView, a datadriven.CmdArg) bool {
	phases := map[string]phase{
		"absent": absent, "loading": loading, "training": training, "finished": finished, "aborted": aborted, "exited": exited,
	}
	k := &j.worker
	switch a.Key {
	case "worker":
		var ok bool
		if k.phase, ok = phases[a.Vals[0]]; !ok {
			t.Fatalf("unknown phase %s", a.Vals[0])
		}
		k.abortedAt, k.silent, k.polls = w.now, 0, 0
	case "silent": // of polls that take 2.2 s
		k.silent = duration(t, a)
		k.polls = int(k.silent.Seconds() / 2.2)
	case "stalled":
		k.stalled = duration(t, a)
	case "tune-silent":
		j.tuning.silent = duration(t, a)
	case "waits-for":
		j.hold = holdView{text: strings.ReplaceAll(a.Vals[0], "_", " "), probeAt: w.now.Add(time.Second)}
	case "passed":
		j.hold.passed = true
	case "round":
		k.round = number(t, a)
		k.earliest = k.round + 1
	case "final":
		k.final = number(t, a)
	case "rate":
		k.roundsPerS = float64(number(t, a))
	case "complete":
		k.complete = true
	case "elapsed":
		k.elapsed = duration(t, a)
	case "cause":
		k.cause = strings.ReplaceAll(a.Vals[0], "_", " ")
	case "permanent":
		k.permanent = true
	case "deaths":
		j.deaths = int(number(t, a))
		j.retryAt = w.now.Add(w.limits.pause(j.deaths))
	case "placing":
		j.placing = true
	case "posted":
		j.begun.posted = true
	case "ends-there":
		j.begun.stop = true
	case "refused":
		j.begun.refused = number(t, a)
	case "shards":
		j.begun.shards = int(number(t, a))
	case "stop-since":
		j.stopSince = time.Unix(1000, 0).Add(duration(t, a))
	default:
		return false
	}
	return true
}

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

func render(all []decision) string {
	names := [...]string{
		wait: "wait", place: "place", beginCommit: "begin", postCommit: "post", dropCommit: "drop", commitRound: "commit",
		tune: "tune", resolve: "resolve", killTune: "kill-tuning", abortWorker: "abort", killWorker: "kill", endJob: "end", setRunning: "running", probe: "probe", removeJob: "remove",
	}
	var b strings.Builder
	for _, d := range all {
		fmt.Fprintf(&b, "%s: %s", d.job, names[d.choice])
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
