package coordinator

import (
	"context"
	"errors"
	"math"
	"strings"
	"time"

	"github.com/avgpipe/avgpipe/internal/agent"
	"github.com/avgpipe/avgpipe/internal/cluster"
	"github.com/avgpipe/avgpipe/internal/obstacle"
	"github.com/avgpipe/avgpipe/internal/placer"
	"github.com/avgpipe/avgpipe/internal/spec"
)

// minStopBound is how long at least a commit may take that somebody waits for.
const minStopBound = 10 * time.Second

// observed is a job as the coordinator sees it: what is agreed on and was admitted, as of the last tick, and what the replicated state
// does not know. It belongs to the coordinator's goroutine.
type observed struct {
	*cluster.Job

	spec     *spec.Spec
	cores    int                   // that it computes on, on all nodes together, or is tuned on
	gpus     int                   // that it takes
	want     placer.Job            // the room that it asks for
	sights   map[string]*hostSight // by node: what it has of that the job reads
	hopeless string                // that what it reads from elsewhere will never come; "": it may
	short    bool                  // the nodes have fewer that are large enough and not sick, whoever has them
	small    int                   // of those that nobody has, the ones with too little memory for it
	had      []string              // those of its placement, by UUID
	kept     int                   // of them, the ones that are there and not sick
	sick     string                // why one of those that it has, or is tuned on, must not be used; "": none is sick
	excluded string                // why it must not go on with those that it has; "": it may
	memory   int64                 // bytes of the host that it is promised once it is placed; 0 while it is open
	bereft   string                // which of its nodes are gone, so that it cannot go on as it was; "": none
	forGood  bool                  // they are gone for so long, or were removed, that it may go on with fewer stages
	unsplit  string                // why the last try found no way to go on with fewer groups or stages; "": there was none
	splitAt  time.Time             // no other try is made before
	uncopied string                // which copies the pending commit waits for; "": none
	exported bool                  // an export reads its shards
	placed   placement             // where it runs, of placedOf: see place
	placedOf *cluster.Job

	generation // the current or the last one

	original  *spec.Spec // what it was submitted with, while it has fewer stages since a loss; nil: it has its own
	roomSince time.Time  // since when there is room for all of its stages; zero: there is none
	growing   bool       // somebody looks whether nodes that it would get have its data
	growAt    time.Time  // nobody looks before
	grow      string     // why it is to stop, and to go on with all of its stages; "": it is not

	tuning *tuning       // the current or the last one; nil: none was started here
	took   time.Duration // the longest commit of this job yet, from its round on

	deaths    int       // of workers since the last commit, of tune processes before the first placement
	diedAt    time.Time // the last of them
	stopSince time.Time // when the daemon or a user first asked the job to stop; zero: nobody did
	since     time.Time // when it began to wait for room; zero: it does not
	hold      *hold     // what the job waits for; nil: nothing

	acting    bool      // a choice is being carried out
	choice    choice    // which one, when acting
	taking    placement // the resources that it gives to processes; nil: none
	notBefore time.Time // nothing is done before: the last choice could not be carried out
	failing   time.Time // since when no choice could be; zero: the last one could
	alarmed   bool      // that was logged as an error
	note      string    // the reason of the last choice, for people

	remove string // why the ended job is to be removed; "" when it is not
}

// die counts a death.
func (o *observed) die(now time.Time) {
	o.deaths++
	o.diedAt = now
}

// stopBound is how long a commit may take that somebody waits for: three times the longest one yet, and the rounds up to where the
// worker was told to end, with three more.
func (o *observed) stopBound() time.Duration {
	bound := max(minStopBound, 3*o.took)
	if v := o.speed(); v > 0 {
		left := 3 + max(float64(o.stopAt)-float64(o.round()), 0)
		bound = max(bound, time.Duration(math.Ceil(left/v))*time.Second)
	}
	return bound
}

// placing reports whether a placement, or the beginning of a tuning, is under way.
func (o *observed) placing() bool { return o.acting && (o.choice == place || o.choice == tune) }

// probeBound is how long it may take to find out whether an obstacle has passed, before the job is decided about again.
const probeBound = 5 * time.Second

// hold is an obstacle that a job without a process waits for. It is observed and not replicated: it is a fact about one host,
// Raft may share the disk that is full, and the next daemon meets the same obstacle when it places the job.
type hold struct {
	obstacle obstacle.Obstacle
	node     string    // where it is in the way; "": on the coordinator's
	named    bool      // people are told where that is: the cluster has several nodes
	tries    int       // probes, and placements that met an obstacle again
	probeAt  time.Time // when it is looked at next
	passed   bool
}

// String says what is in the way, and where.
func (h *hold) String() string {
	text := h.obstacle.String()
	if !h.named || strings.HasPrefix(text, "node ") { // what names its nodes by itself
		return text
	}
	return "node " + h.node + ": " + text
}

// waitFor makes the job wait until an obstacle on a node has passed. Pauses grow until the job trains again.
func (o *observed) waitFor(what *obstacle.Obstacle, node string, now time.Time) {
	h := &hold{obstacle: *what, node: node, named: node != "" && len(o.place().nodes()) > 1}
	if o.hold != nil {
		h.tries = o.hold.tries + 1
	}
	h.probeAt = now.Add(obstacle.Pause(h.tries))
	o.hold = h
}

// awaitGPUs makes the job one of those that wait for a place. What it waits for is looked at there.
func (a *act) awaitGPUs(context.Context) (func(*observed), error) {
	what := obstacle.Obstacle{Kind: obstacle.GPU, Text: a.decision.reason}
	return func(o *observed) { o.hold = &hold{obstacle: what, passed: true} }, nil
}

// awaitRoom makes a job that has lost its place, and for which there is no other now, one of those that wait for one.
func (c *Coordinator) awaitRoom(o *observed, why string) {
	o.acting, o.hold = false, &hold{obstacle: obstacle.Obstacle{Kind: obstacle.Node, Text: why}, passed: true}
	c.sayHold(o.ID, nil, o.hold)
}

// waits reports whether the job waits for an obstacle to pass, and has no process meanwhile.
func (o *observed) waits() bool {
	return o.hold != nil && !o.lives() && !o.tunes()
}

// probe looks whether what the job waits for has passed, for a bounded time.
func (a *act) probe(ctx context.Context) (func(*observed), error) {
	ctx, cancel := context.WithTimeout(ctx, probeBound)
	defer cancel()
	err := a.at(agent.Process{Node: a.hold.node}).Passed(ctx, a.hold.obstacle)
	return func(o *observed) {
		if o.hold != a.hold {
			return // somebody has resumed the job meanwhile
		}
		o.hold.passed = err == nil || errors.Is(err, agent.ErrUnreachable) // the job goes elsewhere, or meets it again there
		o.hold.tries++
		o.hold.probeAt = a.now().Add(obstacle.Pause(o.hold.tries))
	}, nil
}
