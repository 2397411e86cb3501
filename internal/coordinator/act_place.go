package coordinator

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"

	"go.uber.org/zap"

	"github.com/avgpipe/avgpipe/internal/agent"
	"github.com/avgpipe/avgpipe/internal/cluster"
	"github.com/avgpipe/avgpipe/internal/obstacle"
	"github.com/avgpipe/avgpipe/internal/worker/control"
	"github.com/avgpipe/avgpipe/schedule"
)

// errNoRoom is that of a job whose room somebody else was given in the meantime.
var errNoRoom = errors.New("the room that it needs is not free any more")

// place begins the job's next generation: its workers resume from the newest committed round whose shards are whole.
func (a *act) place(ctx context.Context) (func(*observed), error) {
	if len(a.taking) == 0 {
		err := errNoRoom
		if a.why != "" {
			err = fmt.Errorf("%w: %s", errNoRoom, a.why)
		}
		return nil, fmt.Errorf("place job %s: %w", a.ID, err)
	}
	from, reason, err := a.chooseRound(ctx)
	if err != nil {
		return nil, err
	}
	a.lie(from)
	plan, _, err := a.spec.Plan()
	if err != nil {
		return nil, fmt.Errorf("place job %s: %w", a.ID, err)
	}
	// The directory is made after its rounds were found: it may be on a mount that is late.
	if err := a.Record(ctx, a.ID, a.taking.nodes()...); err != nil {
		return nil, fmt.Errorf("place job %s: %w", a.ID, err)
	}
	if err := a.bring(ctx, from); err != nil {
		return nil, fmt.Errorf("place job %s: %w", a.ID, err)
	}
	if a.why != "" && len(a.nodes()) > 1 {
		reason += "; " + a.why
	}
	start := uint64(0)
	if from != nil {
		start = from.Round
	}
	where, err := json.Marshal(a.taking)
	if err != nil {
		return nil, fmt.Errorf("place job %s: %w", a.ID, err)
	}
	result, err := a.raft.Apply(ctx, &cluster.BeginGeneration{
		Job: a.ID, Generation: a.Generation, Placement: where, From: start, Reason: reason,
	})
	if err != nil {
		return nil, fmt.Errorf("place job %s: %w", a.ID, err)
	}
	// Nothing of the generations before can be committed any more, and what was is known here: who does not lead any more has not come this far.
	a.collect(ctx, math.MaxUint64, nil)
	a.Say(a.ID, "starting a worker", zap.Uint64("generation", result.Generation), zap.String("reason", reason))
	g := newGeneration()
	ports, err := a.listen(ctx, result.Generation)
	for _, node := range a.taking.nodes() {
		w := &worker{process: agent.Process{Job: a.ID, Node: node}, phase: loading}
		g.workers = append(g.workers, w)
		var p agent.Process
		if err == nil {
			p, err = a.at(w.process).Start(ctx, a.assignment(result.Generation, plan, node, ports, from))
		}
		if err != nil { // those that were started are ended like any whose peer is gone
			w.phase, w.ended, w.cause, w.obstacle = exited, a.now(), err.Error(), obstacle.Of(err)
			w.died = w.obstacle == nil
			break
		}
		w.process = p
	}
	return func(o *observed) { //nolint:contextcheck // what follows a process outlives the act
		if !g.lives() {
			g.status = o.status
		}
		o.generation = g
		o.settle(a.now()) // where none was started
		for _, w := range g.living() {
			a.follow(w)
		}
	}, err
}

// listen has every node open the port of its worker's links, where there are several, so that all addresses are known before a worker runs.
func (a *act) listen(ctx context.Context, generation uint64) (ports map[string]string, err error) {
	ports = map[string]string{}
	nodes := a.taking.nodes()
	for _, node := range nodes {
		if len(nodes) > 1 && err == nil {
			ports[node], err = a.at(agent.Process{Node: node}).Listen(ctx, a.ID, generation)
		}
	}
	return ports, err
}

// assignment tells the worker on a node everything.
func (a *act) assignment(generation uint64, plan schedule.Plan, node string, ports map[string]string, from *cluster.Manifest) control.Assignment {
	groups := make([][]control.StagePlace, a.spec.Groups())
	for _, at := range a.taking {
		groups[at.Group] = append(groups[at.Group], control.StagePlace{Node: at.Node, GPU: at.GPU, Address: ports[at.Node]})
	}
	group := a.taking.groupOf(node)
	to := control.Assignment{
		JobID: a.ID, Generation: generation,
		Spec: *a.spec, Stages: groups[group], Plan: plan.Lines(), Cores: a.taking.cores(node), Restore: from,
	}
	to.NoiseAcross = slices.ContainsFunc(groups[group], func(p control.StagePlace) bool { return p.Node != node })
	if len(groups) > 1 {
		to.Groups, to.Group = groups, group
	}
	return to
}

// Record brings the copies of a job up to date: here, where it is placed and where it is about to be.
func (c *Coordinator) Record(ctx context.Context, id string, next ...string) error {
	state := c.raft.State()
	j, err := state.Job(id)
	if err != nil {
		return err
	}
	return c.record(ctx, j, next, state)
}

// record brings the copies of a job up to date, all at the same time. Where it must be, next, an error is one; elsewhere it is enough that a later one succeeds.
func (c *Coordinator) record(ctx context.Context, j *cluster.Job, next []string, state *cluster.State) error {
	have, nodes := hosts(j), c.nodes()
	faults := make([]error, len(nodes))
	var all []func()
	for i, n := range nodes {
		must := i == 0 || slices.Contains(next, n.Name)
		if !must && (!slices.Contains(have, n.Name) || !n.Reach.Since.IsZero()) {
			continue
		}
		all = append(all, func() {
			if err := c.recordAt(ctx, n, j, i == 0, state); must || !errors.Is(err, agent.ErrUnreachable) {
				faults[i] = err
			}
		})
	}
	c.together(all)
	return cmp.Or(faults...)
}

// recordAt brings the copy on a node up to date. Where other jobs have had something there, their directories are expected.
func (c *Coordinator) recordAt(ctx context.Context, n Node, j *cluster.Job, here bool, state *cluster.State) error {
	started := slices.ContainsFunc(state.Jobs(), func(other *cluster.Job) bool {
		return other.Generation > 0 && (here || other.ID != j.ID && isHost(other, n.Name))
	})
	return c.on(n, n.Agent.Record(ctx, j, started))
}

// Hosts are the nodes that have something of a job: those where it runs or ran last, in the order of its stages, then those that keep its rounds.
func Hosts(j *cluster.Job) []string {
	var once []string
	for _, name := range hosts(j) {
		if !slices.Contains(once, name) {
			once = append(once, name)
		}
	}
	return once
}

// isHost reports whether a node is one of those. It looks at the text of a placement before it decodes that: it is asked of all jobs.
func isHost(j *cluster.Job, node string) bool {
	if slices.ContainsFunc(j.Committed, func(m *cluster.Manifest) bool {
		return slices.ContainsFunc(m.Shards, func(s cluster.ShardRef) bool { return slices.Contains(s.Nodes, node) })
	}) {
		return true
	}
	name, err := json.Marshal(node)
	return err == nil && bytes.Contains(j.Placement, name) && slices.Contains(placementOf(j).nodes(), node)
}

// hosts are those nodes, some of them several times.
func hosts(j *cluster.Job) []string {
	all := placementOf(j).nodes()
	for _, m := range j.Committed {
		for _, s := range m.Shards {
			all = append(all, s.Nodes...)
		}
	}
	return all
}

// withRound is the job as it is once a round is committed, of which keep are kept.
func withRound(j *cluster.Job, next *cluster.Manifest, keep int) *cluster.Job {
	now := *j
	now.Committed = append(slices.Clone(j.Committed), next)
	now.Committed = now.Committed[max(0, len(now.Committed)-keep):]
	return &now
}

// remove makes the state forget an ended job, and has its directories deleted.
func (a *act) remove(ctx context.Context) (func(*observed), error) {
	var with []agent.Agent // a directory of the job
	for _, n := range a.nodes() {
		own, err := n.Agent.Retire(ctx, a.Job, a.decision.reason)
		if err != nil {
			return nil, fmt.Errorf("remove job %s: %w", a.ID, err)
		}
		if own {
			with = append(with, n.Agent)
		}
	}
	if err := a.propose(ctx, &cluster.RemoveJob{Job: a.ID}); err != nil {
		return nil, err
	}
	a.log.Info("job removed", zap.String("job", a.ID), zap.String("name", a.Name), zap.String("reason", a.decision.reason))
	done := func(o *observed) { o.remove = "" } // a backup may bring the job back before this is forgotten
	for _, at := range with {
		if err := at.Delete(ctx, a.ID); err != nil { // the next start deletes it
			return done, fmt.Errorf("job %s is removed, but its directory is not: %w", a.ID, err)
		}
	}
	return done, nil
}
