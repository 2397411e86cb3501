package coordinator

import (
	"fmt"
	"slices"
	"time"

	"github.com/avgpipe/avgpipe/internal/agent"
	"github.com/avgpipe/avgpipe/internal/api"
	"github.com/avgpipe/avgpipe/internal/words"
	"github.com/avgpipe/avgpipe/internal/worker/control"
)

// Timeouts are the bounds of everything that the coordinator and the workers of a job wait for, from its placement to its end, the shortest first; of a job that is not
// known, those that hold for each. What is measured is as of now. It waits for the coordinator's goroutine.
func (c *Coordinator) Timeouts(job string) (all []api.Timeout) {
	limits := c.config.Limits()
	b := bounds{stop: minStopBound, lost: leastLost, stuck: leastStuck, response: limits.ResponseTimeout}
	err := c.ask(c.background, func() {
		if o := c.jobs[job]; o != nil {
			b.of(o, limits)
		}
	})
	if err != nil {
		return nil // it has ended
	}
	add := func(name string, value time.Duration, measured bool, from, then string) {
		all = append(all, api.Timeout{Name: name, ValueS: value.Seconds(), Measured: measured, From: from, Then: then})
	}
	add("adopt", sweepBound, false, "fixed: each worker of a node is asked for its status", "the node's workers are unseen until it answers")
	add("loading", loadFactor*limits.ResponseTimeout, false, fmt.Sprintf("%d times response_timeout", loadFactor), "workers that load without progress are killed")
	add("response", b.response, true, fmt.Sprintf("%d times the longest gap between answers, and %d of the longest step, from %v up to response_timeout, %v", responseGaps, stuckSteps,
		leastResponse, limits.ResponseTimeout), "a worker that does not answer is killed")
	add("commit", b.stop, true, "3 times the longest commit yet, and the rounds up to where training stops", "training since the last committed round is lost")
	add("copies", copyLeast, false, fmt.Sprintf("and a second for each %d MiB of the largest shard", copySpeed>>20), "the round is committed with the copies that there are")
	add("abort", abortGrace, false, "fixed", "workers that were told to end are killed")
	add("unheard", quietBound, false, fmt.Sprintf("3 times how long a worker is asked, %v, and the pause after it, %v", control.AskTimeout, agent.PollStatus), "the worker's node is taken not to answer")
	add("lost", b.lost, true, fmt.Sprintf("%d times the longest gap between answers, from %v up to response_timeout", lostGaps, leastLost), "workers are given up with their node, unless others go on")
	add("lost, gone", lostDown, false, "fixed: the members agree that the node is gone", "the same")
	add("stuck", b.stuck, true, fmt.Sprintf("%d times the longest step, at least %v", stuckSteps, leastStuck), "workers elsewhere count as waiting for the one that is not heard")
	add("copies after a loss", recopyAfter, false, "fixed: a node that is started anew is back before", "shards are copied to other nodes")
	add("obstacle", probeBound, false, "fixed", "it is looked at again later")
	add("retry", limits.pause(limits.RetryLimit), false, "the configuration; the longest pause between two tries", "the job is placed anew")
	for _, l := range b.links {
		add(fmt.Sprintf("link %d-%d", l.Link, l.Link+1), time.Duration(l.Network.BoundS*float64(time.Second)), true,
			fmt.Sprintf("8 times the longest of the newest round trips, and half a step, from 3s up to 15s; the shortest took %s", words.Seconds(l.Network.RoundTripS)),
			"the link to "+l.Network.Peer+" ends, and with it its workers")
	}
	api.SortTimeouts(all)
	return all
}

// bounds are those of a job that are measured.
type bounds struct {
	stop, lost, stuck, response time.Duration
	links                       []api.LinkStatus // between nodes
}

// of takes those of a job that is placed, each of the worker that is waited for the longest.
func (b *bounds) of(o *observed, limits Limits) {
	b.stop = o.stopBound()
	for i, w := range o.living() {
		if i == 0 {
			b.response = 0
		}
		b.response, b.lost, b.stuck = max(b.response, w.responseAfter(limits)), max(b.lost, w.lostAfter(limits)), max(b.stuck, w.stuckAfter())
	}
	if o.status != nil {
		b.links = slices.DeleteFunc(slices.Clone(o.status.Progress.LinkStatus), func(l api.LinkStatus) bool { return l.Network == nil })
	}
}
