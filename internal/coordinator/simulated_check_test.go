package coordinator

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/avgpipe/avgpipe/internal/accounting"
	"github.com/avgpipe/avgpipe/internal/cluster"
	"github.com/avgpipe/avgpipe/internal/shard"
)

// checker holds a run against what must be so, whatever goes wrong.
type checker struct {
	w                  *world
	violation          string
	begun              map[string]*cluster.Manifest // by job: the round that its generation went on from
	cancelled, damaged bool
	useless            map[*trainer]time.Duration // since when it is seen to be of no use
	follower           *cluster.State             // what another node makes of the log; nil: nobody looks
}

// longestUseless is how long a worker that nobody needs may live on a node that can be reached.
const longestUseless = simOrphan + 5*time.Second

func (c *checker) fault(format string, args ...any) {
	if c.violation == "" {
		c.violation = fmt.Sprintf(format, args...)
		c.w.note("VIOLATION: %s", c.violation)
	}
}

// applied looks at a command that was applied.
func (c *checker) applied(before, next *cluster.State, command cluster.Command, refused error) {
	c.follow(next, command)
	for _, was := range before.Jobs() {
		is, err := next.Job(was.ID)
		switch {
		case err != nil:
			c.fault("job %s is gone after %s", was.ID, cluster.Kind(command))
			return
		case refused != nil && is != was:
			c.fault("%s was refused and changed job %s: %v", cluster.Kind(command), was.ID, refused)
		case is.Generation < was.Generation:
			c.fault("job %s went from generation %d to %d", was.ID, was.Generation, is.Generation)
		}
		c.shrinks(was, is, command)
		c.ends(was, is, command)
	}
	if refused != nil {
		return
	}
	switch command := command.(type) {
	case *cluster.BeginGeneration:
		j, _ := next.Job(command.Job)
		c.begun[j.ID] = j.LastCommitted()
	case *cluster.CommitRound:
		was, _ := before.Job(command.Job)
		is, _ := next.Job(command.Job)
		c.committed(was, is)
	}
}

// follow applies the command to a second state, as it lies in the log, and compares their bytes.
func (c *checker) follow(next *cluster.State, command cluster.Command) {
	if c.follower == nil {
		return
	}
	entry, err := cluster.EncodeCommand(command, "test")
	if err == nil {
		c.follower, _, _ = c.follower.ApplyEntry(next.Index, entry)
	}
	a, errA := next.MarshalBinary()
	b, errB := c.follower.MarshalBinary()
	if err != nil || errA != nil || errB != nil || string(a) != string(b) {
		c.fault("two nodes differ after %s: %v %v %v\n%s\n%s", cluster.Kind(command), err, errA, errB, a, b)
	}
}

// shrinks: a durable round is taken back only where a shard of it is whole nowhere.
func (c *checker) shrinks(was, is *cluster.Job, command cluster.Command) {
	if is.CommittedRound() >= was.CommittedRound() {
		return
	}
	d, named := command.(*cluster.DiscardRound)
	if !named || d.Round != was.CommittedRound() {
		c.fault("%s took job %s from durable round %d to %d", cluster.Kind(command), was.ID, was.CommittedRound(), is.CommittedRound())
		return
	}
	for _, s := range was.LastCommitted().Shards {
		if c.whole(s.Digest, func(*simNode) bool { return true }) == 0 {
			return
		}
	}
	c.fault("durable round %d of job %s was discarded, of which every shard is whole somewhere: %s", d.Round, was.ID, d.Reason)
}

// whole counts the nodes that have a shard whole, of those that count.
func (c *checker) whole(d shard.Digest, counts func(*simNode) bool) (n int) {
	for _, at := range c.w.nodes {
		if k := at.shards[d]; k != nil && !k.damaged && counts(at) {
			n++
		}
	}
	return n
}

// mayBeWhole reports whether a shard is whole on some node, or may be on one that is away: nobody can know what has become of it there.
func (c *checker) mayBeWhole(d shard.Digest) bool {
	return slices.ContainsFunc(c.w.nodes, func(n *simNode) bool {
		k := n.shards[d]
		return k != nil && (!k.damaged || !n.up)
	})
}

// ends: a job ends as it should, once.
func (c *checker) ends(was, is *cluster.Job, command cluster.Command) {
	if _, resumed := command.(*cluster.ResumeJob); was.State.Ended() && is.State != was.State && !resumed {
		c.fault("%s made a job %s that was %s", cluster.Kind(command), is.State, was.State)
	}
	if was.State == is.State || !is.State.Ended() {
		return
	}
	switch {
	case is.State == cluster.Done && is.CommittedRound() != c.w.drill.rounds:
		c.fault("job %s is done at durable round %d of %d: %s", is.ID, is.CommittedRound(), c.w.drill.rounds, is.Reason)
	case is.State == cluster.Cancelled && !was.Cancelling:
		c.fault("job %s is cancelled, and nobody wanted it: %s", is.ID, is.Reason)
	case is.State == cluster.Failed:
		c.fault("job %s has failed, with nothing wrong that does not pass: %s", is.ID, is.Reason)
	}
}

// committed: a durable round has one shard of each stage, which lies where it is said to, all made by the same workers of the generation that commits
// it, from the round that this generation began with; and every sample up to it counts once.
func (c *checker) committed(was, is *cluster.Job) {
	m := is.LastCommitted()
	if m.Generation != is.Generation || len(m.Shards) != c.w.drill.stages {
		c.fault("round %d of generation %d with %d shards, committed in generation %d with %d stages", m.Round, m.Generation, len(m.Shards), is.Generation, c.w.drill.stages)
	}
	trained, base := "", c.begun[is.ID]
	for k, s := range m.Shards {
		var one *content
		for _, name := range s.Nodes {
			at := c.w.node(name).shards[s.Digest]
			if at == nil {
				c.fault("round %d was committed, and the shard of stage %d is not on node %s", m.Round, k, name)
				return
			}
			one = at.content
		}
		if k == 0 {
			trained = one.trained
		}
		from := shard.Digest("")
		if base != nil {
			from = base.Shards[k].Digest
		}
		switch {
		case one.job != is.ID || one.stage != k || one.round != m.Round || one.generation != m.Generation:
			c.fault("round %d of generation %d was committed with a shard of stage %d that is of stage %d, round %d, generation %d", m.Round, m.Generation, k, one.stage, one.round, one.generation)
		case one.trained != trained:
			c.fault("round %d was committed with shards of workers that never trained together: %s and %s", m.Round, trained, one.trained)
		case one.from != from:
			c.fault("round %d of generation %d does not come from the round that this generation went on from", m.Round, m.Generation)
		case one.samples != m.Round*simBatch || m.SamplesSeen != one.samples:
			c.fault("round %d says %d samples; %d were consumed, of %d", m.Round, m.SamplesSeen, one.samples, m.Round*simBatch)
		}
	}
	if a := accounting.Audit(is, 0); !a.Exact || a.Samples != m.SamplesSeen {
		c.fault("round %d: %v", m.Round, a.Faults)
	}
	if before := was.LastCommitted(); before != nil && before.Generation > m.Generation {
		c.fault("generation %d commits after generation %d", m.Generation, before.Generation)
	}
}

// look looks around from time to time. It reports whether the run is over.
func (c *checker) look() (over bool) {
	over = true
	for _, n := range c.w.nodes {
		for _, t := range n.living() {
			over = false
			j, err := c.w.state.Job(t.process.Job)
			if n.away > 0 || c.w.leader == nil || err == nil && !j.State.Ended() && j.Generation <= t.process.Generation {
				delete(c.useless, t)
				continue
			}
			if since, seen := c.useless[t]; !seen {
				c.useless[t] = c.w.at
			} else if c.w.at-since > longestUseless {
				c.fault("worker %s of generation %d lives, and nobody needs it since %v", t.process, t.process.Generation, since)
			}
		}
	}
	for _, j := range c.w.state.Jobs() {
		over = over && j.State.Ended()
	}
	return over
}

// end: after nothing has gone wrong for long, every job has ended, or waits for a person.
func (c *checker) end() {
	for _, j := range c.w.state.Jobs() {
		if j.State.Ended() {
			continue
		}
		note := "nobody leads"
		if l := c.w.leader; l != nil && l.c != nil && l.c.jobs[j.ID] != nil {
			note = l.c.jobs[j.ID].note
		}
		if c.lost(j) {
			if strings.Contains(note, fmt.Sprintf("--from-round %d`", j.CommittedRound())) {
				c.fault("job %s waits for a node that has its newest round, and is told to go on from that one: %s", j.ID, note)
			}
			continue
		}
		c.fault("job %s is %s for ever, in generation %d at durable round %d: %s; now: %s", j.ID, j.State, j.Generation, j.CommittedRound(), j.Reason, note)
	}
}

// lost reports whether the newest durable round of a job is on a node that is gone, or none is whole, so that a person has to say what becomes of it.
func (c *checker) lost(j *cluster.Job) bool {
	for i, m := range slices.Backward(j.Committed) {
		whole, here := true, true
		for _, s := range m.Shards {
			whole = whole && c.mayBeWhole(s.Digest)
			here = here && c.whole(s.Digest, func(n *simNode) bool { return n.up }) > 0
		}
		if here {
			return false
		}
		if whole || i == 0 {
			return true
		}
	}
	return false
}
