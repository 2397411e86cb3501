package coordinator

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"time"

	"github.com/avgpipe/avgpipe/internal/agent"
	"github.com/avgpipe/avgpipe/internal/api"
	"github.com/avgpipe/avgpipe/internal/cluster"
	"github.com/avgpipe/avgpipe/internal/obstacle"
	"github.com/avgpipe/avgpipe/internal/shard"
	"github.com/avgpipe/avgpipe/internal/worker/control"
)

// Times of simulated workers.
const (
	simLoad    = 200 * time.Millisecond
	simRound   = 150 * time.Millisecond
	simHop     = 20 * time.Millisecond // that a later stage is behind the first
	simWrite   = 60 * time.Millisecond // of a shard
	simPoll    = 250 * time.Millisecond
	simPatient = 4 * time.Second  // of links whose other end says nothing
	simOrphan  = 40 * time.Second // without a daemon
	simBatch   = 4                // samples
)

// content is what a shard holds: not weights, but what made them.
type content struct {
	job        string
	generation uint64
	trained    string // by which processes
	stage      int
	round      uint64
	samples    uint64       // that were consumed before, all together
	from       shard.Digest // the shard of this stage that the generation began with
}

// digest names a content.
func (c *content) digest() shard.Digest {
	sum := sha256.Sum256(fmt.Append(nil, *c))
	return shard.Digest(hex.EncodeToString(sum[:]))
}

// trainer is a worker that pretends to train.
type trainer struct {
	w       *world
	at      *simNode
	process agent.Process
	stages  []int
	peers   []string // by stage: the node that has it
	restore *cluster.Manifest

	group  []*trainer // by stage, once links are up
	since  time.Duration
	links  bool
	round  uint64
	start  uint64 // the round that it went on from
	final  uint64 // where training ends
	steps  uint64 // of the whole job
	base   map[int]*content
	wanted map[uint64]bool
	said   bool // that it has finished

	hangs    bool
	apart    time.Duration // since when a peer is out of reach; 0: none is
	heard    time.Duration // when a daemon asked something last
	watched  bool          // the daemon of its host asks how it is
	events   []agent.Event
	ended    bool
	forgot   bool // nobody knows any more how it ended
	watchers []*task
}

// start begins a worker in the job's directory, where there is no other one then.
func (n *simNode) start(w *world, a *control.Assignment) agent.Process {
	for _, other := range n.living() {
		if other.process.Job == a.JobID {
			other.exit(-1, "signal: killed")
		}
	}
	n.pids++
	t := &trainer{
		w: w, at: n, process: agent.Process{Job: a.JobID, Node: n.name, Generation: a.Generation},
		restore: a.Restore, wanted: map[uint64]bool{}, base: map[int]*content{}, since: w.at, heard: w.at, watched: true,
		steps: a.Spec.Budget.Steps, final: a.Spec.Budget.Steps,
	}
	t.process.ID.PID = n.pids
	for k, s := range a.Stages {
		t.peers = append(t.peers, s.Node)
		if s.Node == n.name {
			t.stages = append(t.stages, k)
		}
	}
	n.trainers = append(n.trainers, t)
	w.after(simLoad, t.load)
	w.after(simPoll, t.poll)
	return t.process
}

// load reads what training goes on from, and then waits for the workers of the other stages.
func (t *trainer) load() {
	if t.ended {
		return
	}
	if m := t.restore; m != nil {
		t.round = m.Round
		for k, s := range m.Shards {
			if !slices.Contains(t.stages, k) {
				continue
			}
			c := t.at.shards[s.Digest]
			if c == nil || c.damaged {
				t.fail(fmt.Sprintf("stage %d: shard %.8s is not here, or damaged", k, s.Digest))
				return
			}
			t.base[k] = c.content
		}
	}
	t.start = t.round
	t.w.train(t)
}

// connect opens the links once the workers of all stages wait for them.
func (w *world) train(t *trainer) {
	if t.ended || t.links {
		return
	}
	all := make([]*trainer, len(t.peers))
	for k, node := range t.peers {
		for _, other := range w.node(node).living() {
			if other.process.Job == t.process.Job && other.process.Generation == t.process.Generation && (other == t || other.w.loaded(other)) && !other.links {
				all[k] = other
			}
		}
		if all[k] == nil || !w.reach(t.at, all[k].at) {
			if w.at-t.since > 10*time.Second {
				t.fail("no link to node " + node)
				return
			}
			w.after(100*time.Millisecond, func() { w.train(t) })
			return
		}
	}
	for _, one := range all {
		one.group, one.links = all, true
		one.say(agent.Event{Worker: &control.Event{Kind: control.Started}})
		one.finish()
	}
	w.after(simRound, all[0].advance)
}

// loaded reports whether a worker waits for its peers.
func (w *world) loaded(t *trainer) bool { return w.at-t.since >= simLoad }

// advance makes a step of the first stage, and the others a little later.
func (t *trainer) advance() {
	if t.ended {
		return
	}
	defer t.w.after(simRound, t.advance)
	stuck := false
	for _, one := range t.group {
		switch {
		case one.ended:
			t.failAll("the worker of another stage has ended")
			return
		case one.hangs, one.round < t.round: // it is not where the first stage is
			stuck = true
		case !t.w.reach(t.at, one.at):
			stuck = true
			if t.apart == 0 {
				t.apart = t.w.at
			} else if t.w.at-t.apart > simPatient {
				t.failAll("node " + one.at.name + " says nothing")
				return
			}
		}
	}
	if stuck || t.round >= t.final {
		return
	}
	t.apart = 0
	t.pass()
	for _, one := range t.group {
		if one != t {
			t.w.after(simHop, one.follow)
		}
	}
}

// follow makes the step that the first stage has made.
func (t *trainer) follow() {
	if !t.ended && !t.hangs && t.round < t.group[0].round && t.round < t.final {
		t.pass()
	}
}

// pass completes a round.
func (t *trainer) pass() {
	t.round++
	if t.wanted[t.round] {
		t.write(t.round)
	}
	t.finish()
}

// finish says that training has ended, where it has.
func (t *trainer) finish() {
	if t.round == t.final && !t.said {
		t.said = true
		t.say(agent.Event{Worker: &control.Event{Kind: control.Finished, Round: t.round}})
	}
}

// write makes the shards of a round durable, and says so.
func (t *trainer) write(round uint64) {
	delete(t.wanted, round)
	trained := t.group[0].process.String()
	if last := t.group[len(t.group)-1]; last != t.group[0] {
		trained += " and " + last.process.String()
	}
	for _, k := range t.stages {
		c := &content{job: t.process.Job, generation: t.process.Generation, trained: trained, stage: k, round: round}
		c.samples = (round - t.start) * simBatch
		if base := t.base[k]; base != nil {
			c.samples, c.from = c.samples+base.samples, base.digest()
		}
		t.w.after(simWrite, func() {
			if t.ended && !t.at.up {
				return
			}
			d := c.digest()
			t.at.shards[d] = &keptShard{content: c}
			t.say(agent.Event{Worker: &control.Event{Kind: control.Shard, Round: round, Shard: &control.ShardInfo{
				Stage: k, Digest: string(d), Bytes: 10, Cursors: []shard.Cursor{{Step: c.samples / simBatch}}, Meta: control.RoundMeta{SamplesSeen: c.samples},
			}}})
		})
	}
}

// commit answers as the group of a pipeline does.
func (t *trainer) commit(r control.CommitRequest) control.CommitResponse {
	if r.Generation != t.process.Generation {
		return control.CommitResponse{Reason: "another generation"}
	}
	if !t.links {
		return control.CommitResponse{Earliest: t.start + 1}
	}
	last, possible := t.final, t.round+1
	earliest := possible
	if r.Stop {
		earliest = min(possible, last)
		if r.Round < earliest || r.Round > last {
			return control.CommitResponse{Earliest: earliest}
		}
		last = r.Round
	}
	if r.Round > last || r.Round < min(earliest, last) {
		return control.CommitResponse{Earliest: min(earliest, last)}
	}
	t.final = last
	if r.Round < possible {
		t.write(r.Round)
	} else {
		t.wanted[r.Round] = true
	}
	return control.CommitResponse{Accepted: true, Earliest: min(earliest, last)}
}

// status is what it says of itself.
func (t *trainer) status() control.Status {
	s := control.Status{JobID: t.process.Job, Generation: t.process.Generation, Final: t.final}
	p := &s.Progress
	p.State, p.Steps, p.Step, p.Round, p.SamplesSeen = api.Starting, t.steps, t.round, t.round, t.round*simBatch
	if t.links {
		p.State = api.Running
		s.NextCommit = min(t.round+1, t.final)
	} else {
		s.Loading = &control.Loading{CPUSeconds: (t.w.at - t.since).Seconds()}
	}
	for _, k := range t.stages {
		p.StageStatus = append(p.StageStatus, api.StageStatus{Stage: k})
	}
	return s
}

// poll is what the daemon of its host does: it asks how the worker is. One that nobody asks for too long ends.
func (t *trainer) poll() {
	switch {
	case t.ended:
		return
	case t.watched && t.at.daemon && t.hangs:
		t.say(agent.Event{Silent: simPoll})
	case t.watched && t.at.daemon:
		s := t.status()
		t.say(agent.Event{Status: &s})
		t.heard = t.w.at
	case t.w.at-t.heard > simOrphan && !t.hangs:
		t.exit(control.ExitOrphan, "exit status 3")
	}
	t.w.after(simPoll, t.poll)
}

// say tells those who watch.
func (t *trainer) say(e agent.Event) {
	if t.ended {
		return
	}
	e.Process = t.process
	t.events = append(t.events, e)
	t.wake()
}

func (t *trainer) wake() {
	watchers := t.watchers
	t.watchers = nil
	for _, one := range watchers {
		t.w.after(0, func() { t.w.resume(one) })
	}
}

func (t *trainer) failAll(why string) {
	for _, one := range t.group {
		one.fail(why)
	}
}

func (t *trainer) fail(why string) {
	if t.hangs {
		return
	}
	t.say(agent.Event{Worker: &control.Event{Kind: control.FailedNow, Error: why}})
	t.exit(control.ExitFailed, "exit status 1")
}

// exit ends the process.
func (t *trainer) exit(code int, how string) {
	if t.ended {
		return
	}
	t.say(agent.Event{Exit: &agent.Exit{Code: code, Known: true, How: how}})
	t.ended = true
	if t.links && t.group[0] != t { // its peers notice
		first := t.group[0]
		t.w.after(simHop, func() {
			if !first.ended {
				first.failAll("the worker of another stage has ended")
			}
		})
		return
	}
	for _, one := range t.group {
		if one != t {
			t.w.after(simHop, func() { one.fail("the worker of the first stage has ended") })
		}
	}
}

// living are the workers on a node that have not ended.
func (n *simNode) living() []*trainer {
	return slices.DeleteFunc(slices.Clone(n.trainers), func(t *trainer) bool { return t.ended })
}

// errBusy keeps a worker from being started for a while.
func errBusy(node string) error {
	return &obstacle.Error{Obstacle: obstacle.Obstacle{Kind: obstacle.Busy, Text: "it is busy"}, Err: fmt.Errorf("node %s is busy", node)}
}
