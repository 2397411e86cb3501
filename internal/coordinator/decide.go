package coordinator

import (
	"fmt"
	"strings"
	"time"

	"github.com/avgpipe/avgpipe/internal/cluster"
	"github.com/avgpipe/avgpipe/internal/gpu"
	"github.com/avgpipe/avgpipe/internal/words"
	"github.com/avgpipe/avgpipe/job"
)

// The rules' numbers.
const (
	abortGrace = 5 * time.Second        // for a worker to end after it was told to
	lead       = time.Second            // a commit is begun about this long before its round
	margin     = 300 * time.Millisecond // what is known of a worker's round may be this old
	loadFactor = 4                      // response timeouts without progress in loading before the worker is killed
	leastPolls = 3                      // that fail one after the other before a worker is taken to be dead
)

// decide says what to do about every job of the snapshot, in order. It is a pure function. Doing what it says, and observing again, brings
// every job to its end.
func decide(w snapshot) []decision {
	all := make([]decision, len(w.jobs))
	var queue []int // jobs that wait for room
	for i, j := range w.jobs {
		switch {
		case j.placing():
			all[i] = decision{reason: "being placed"}
		case j.State.Ended():
			all[i] = decideEnded(w, j)
		case j.waits() && !j.hold.passed:
			all[i] = decideWaiting(w, j)
		case j.State == cluster.Queued || j.waits():
			var over bool
			if all[i], over = decideQueued(w, j); !over {
				queue = append(queue, i)
			}
		case j.State == cluster.Tuning:
			all[i] = decideTuning(w, j)
		default:
			all[i] = decideActive(w, j)
		}
	}
	decideTurns(w, queue, all)
	return all
}

// holdsCores reports whether a job is tuned or placed, or its process has not ended yet. One that waits for an obstacle to pass
// leaves its cores to others: nobody knows how long it will wait.
func (j *observed) holdsCores() bool {
	placed := j.State == cluster.Tuning || j.State == cluster.Starting || j.State == cluster.Running
	return j.placing() || j.lives() || j.tunes() || placed && !j.waits()
}

// decideEnded lets the process of a job go that is over.
func decideEnded(w snapshot, j *observed) decision {
	if j.tunes() {
		return decision{choice: killTune, reason: "the job is over"}
	}
	switch {
	case j.lives():
		return dismiss(w, j, "the job is over")
	case j.remove != "" && j.exported:
		return decision{reason: "to be removed once its export has ended: " + j.remove}
	case j.remove != "":
		return decision{choice: removeJob, reason: j.remove}
	}
	return decision{}
}

// dismiss ends the workers of a job: politely first.
func dismiss(w snapshot, j *observed, why string) decision {
	if j.phase() != aborted {
		return decision{choice: abortWorkers, reason: why}
	}
	if d, ok := decideCut(w, j); ok {
		return d // what a worker that nobody hears has of other nodes is not free before
	}
	if w.now.Sub(j.abortedAt) > abortGrace {
		return decision{choice: killWorkers, reason: fmt.Sprintf("the worker did not end within %v of being told to", abortGrace)}
	}
	return decision{reason: "waiting for the worker to end: " + why}
}

// decideWaiting looks from time to time whether what a job waits for has passed, for as long as it takes.
func decideWaiting(w snapshot, j *observed) decision {
	switch {
	case j.Cancelling:
		return decision{choice: endJob, state: cluster.Cancelled, reason: fmt.Sprintf("cancelled while it waited: %s; %s", j.hold.String(), kept(j))}
	case w.stopping:
		return decision{reason: "the daemon is stopping; " + kept(j)}
	case w.now.Before(j.hold.probeAt):
		return decision{reason: j.hold.String() + "; " + kept(j)}
	}
	return decision{choice: probe, reason: j.hold.String() + "; " + kept(j)}
}

// coreNeed says how many cores a job needs and how many of the node's are free.
func coreNeed(need, free, node int) string {
	if need > node {
		return fmt.Sprintf("asks for %s; the node has %d, which its devices will share, and %d of them are free", coreCount(need), node, max(free, 0))
	}
	return fmt.Sprintf("needs %s, %d of %d are free", coreCount(need), max(free, 0), node)
}

func coreCount(n int) string { return words.Count(n, "core") }

// lacksGPUs reports whether fewer GPUs are free, and large enough, than a job takes.
func (j *observed) lacksGPUs(free int) bool { return j.gpus > 0 && j.gpus > free-j.small }

// gpuNeed says how many GPUs a job needs, what the node has of them, and what is to be done where those are too few.
func gpuNeed(need int, of job.GPU, free int, all []gpu.GPU) string {
	what := words.Count(need, "GPU")
	if of.Memory > 0 {
		what += " with " + words.Bytes(int64(of.Memory)) + " of memory"
	}
	said := []string{fmt.Sprintf("needs %s, %d of the node's %d are free", what, max(free, 0), len(all))}
	if len(all) < need {
		said[0] = fmt.Sprintf("needs %s, and jobs may use %d of this node: see what avgpiped gpus says and what the configuration has as gpus; after a change, "+
			"restart the daemon", what, len(all))
	}
	for _, g := range all {
		switch {
		case g.Health.Level == gpu.Sick:
			said = append(said, fmt.Sprintf("%s is %s", g, g.Health))
		case g.MemoryBytes < int64(of.Memory):
			said = append(said, fmt.Sprintf("%s has %s", g, words.Bytes(g.MemoryBytes)))
		}
	}
	return strings.Join(said, "; ")
}
