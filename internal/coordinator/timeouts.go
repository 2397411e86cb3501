package coordinator

import (
	"fmt"
	"time"

	"github.com/avgpipe/avgpipe/internal/agent"
	"github.com/avgpipe/avgpipe/internal/api"
	"github.com/avgpipe/avgpipe/internal/worker/control"
)

// Timeouts are the bounds of everything that the coordinator waits for about a job, from its placement to its end; of a job that is not known,
// those that hold for each. What is measured is as of now. It waits for the coordinator's goroutine.
func (c *Coordinator) Timeouts(job string) (all []api.Timeout) {
	add := func(name string, value time.Duration, from, then string) {
		all = append(all, api.Timeout{Name: name, ValueS: value.Seconds(), From: from, Then: then})
	}
	limits := c.config.Limits()
	stop, lost, stuck := minStopBound, leastLost, leastStuck
	err := c.ask(c.background, func() {
		o := c.jobs[job]
		if o == nil {
			return
		}
		stop = o.stopBound()
		for _, w := range o.living() {
			lost, stuck = max(lost, w.lostAfter(limits)), max(stuck, w.stuckAfter())
		}
	})
	if err != nil {
		return nil // it has ended
	}
	add("adopt", sweepBound, "fixed: each worker of a node is asked for its status", "the node's workers are unseen until it answers")
	add("loading", loadFactor*limits.ResponseTimeout, fmt.Sprintf("%d times the response timeout", loadFactor), "workers that load without progress are killed")
	add("response", limits.ResponseTimeout, "the configuration", "a worker that does not answer is killed")
	add("commit", stop, "3 times the longest commit yet, and the rounds up to where training stops", "training since the last committed round is lost")
	add("copies", copyLeast, fmt.Sprintf("and a second for each %d MiB of the largest shard", copySpeed>>20), "the round is committed with the copies that there are")
	add("abort", abortGrace, "fixed", "workers that were told to end are killed")
	add("unheard", quietBound, fmt.Sprintf("3 times how long a worker is asked, %v, and the pause after it, %v", control.AskTimeout, agent.PollStatus), "the worker's node is taken not to answer")
	add("lost", lost, fmt.Sprintf("%d times the longest gap between answers, from %v up to the response timeout", lostGaps, leastLost), "workers are given up with their node, unless others go on")
	add("lost, gone", lostDown, "fixed: the members agree that the node is gone", "the same")
	add("stuck", stuck, fmt.Sprintf("%d times the longest step, at least %v", stuckSteps, leastStuck), "workers elsewhere count as waiting for the one that is not heard")
	add("copies after a loss", recopyAfter, "fixed: a node that is started anew is back before", "shards are copied to other nodes")
	add("split anew", limits.ResplitAfter, "the configuration", "a job whose node is gone, and for which no other has room, goes on with fewer stages")
	add("obstacle", probeBound, "fixed", "it is looked at again later")
	add("retry", limits.pause(limits.RetryLimit), "the configuration; the longest pause between two tries", "the job is placed anew")
	return all
}
