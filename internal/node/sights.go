package node

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/avgpipe/avgpipe/internal/agent"
	"github.com/avgpipe/avgpipe/internal/api"
	"github.com/avgpipe/avgpipe/internal/cluster"
	"github.com/avgpipe/avgpipe/internal/cluster/raftlog"
	"github.com/avgpipe/avgpipe/internal/coordinator"
	"github.com/avgpipe/avgpipe/internal/membership"
)

// How the node that leads looks at the others: what they have, and whether those answer that gossip says are gone.
const (
	seeEvery    = time.Second     // how often it asks each how it is, of up to seeMany
	seeMany     = 100             // more are asked the less often, so that there are as many questions
	seeAtOnce   = 20              // how many it asks at a time, one such part after the other within that time
	seeBound    = 2 * time.Second // how long each may take
	silentAfter = 2 * time.Second // later than it is asked again, without an answer nothing new is placed on a node, whatever gossip says
)

// seen is what the node that leads knows of the others.
type seen struct {
	mu     sync.Mutex
	of     map[string]sight
	looked map[string]bool // those that are being looked at
}

// sight is the last that was seen of a node.
type sight struct {
	begun  time.Time     // it is looked at
	at     time.Time     // it answered; zero: not in this term
	asked  time.Time     // the last question began
	err    error         // of that
	down   bool          // it was, when that ended
	every  time.Duration // it is asked so often; 0: seeEvery
	status nodeReport
	info   agent.Info
}

// nodeReport is what a node says of itself to the one that leads.
type nodeReport struct {
	api.NodeStatus
	Progress raftlog.Progress `json:"progress"`
	Info     *agent.Info      `json:"info,omitempty"` // of its agent; nil: it runs an older program, whose agent is to be asked
}

// get returns what was last seen of a node.
func (s *seen) get(name string) (sight, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	out, ok := s.of[name]
	return out, ok
}

// forget forgets what was seen: it is of an earlier term.
func (s *seen) forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.of, s.looked = map[string]sight{}, map[string]bool{}
}

// before reports whether a node was last asked before a time, or never.
func (s *seen) before(name string, at time.Time) bool {
	last, _ := s.get(name)
	return !last.asked.After(at)
}

// silent is how long a node has not answered.
func (s *sight) silent(now time.Time) time.Duration {
	if s.at.IsZero() {
		return now.Sub(s.begun)
	}
	return now.Sub(s.at)
}

// judge says how a node is: it is down if gossip says that it is gone and it did not answer a question since then. Gossip is a hint, which is wrong
// where datagrams get lost; a question alone does not tell a node that is gone from a slow one.
func judge(heard membership.Member, s sight, now time.Time) (api.NodeState, coordinator.Reach) {
	gone := heard.State == membership.Dead || heard.State == membership.Left
	silent := s.silent(now)
	switch {
	case s.begun.IsZero():
		return api.NodeSuspect, coordinator.Reach{Since: now, Why: "it has not answered the node that leads now"}
	case gone && s.err != nil && s.asked.After(heard.Since):
		return api.NodeDown, coordinator.Reach{
			Since: heard.Since, Down: true, Why: fmt.Sprintf("by gossip it is %s for %v, and it does not answer: %v", heard.State, now.Sub(heard.Since).Round(time.Second), s.err),
		}
	case s.at.IsZero() || silent > cmp.Or(s.every, seeEvery)+silentAfter:
		why := fmt.Sprintf("it has not answered for %v", silent.Round(time.Second))
		if s.err != nil {
			why += ": " + s.err.Error()
		}
		return api.NodeSuspect, coordinator.Reach{Since: now.Add(-silent), Why: why}
	case gone || heard.State == membership.Suspect:
		return api.NodeSuspect, coordinator.Reach{}
	}
	return api.NodeAlive, coordinator.Reach{}
}

// seeing is how often each of so many nodes is asked.
func seeing(nodes int) time.Duration { return seeEvery * time.Duration(max(nodes, seeMany)) / seeMany }

// begin reports whether nobody looks at a node yet. Then somebody does, until end.
func (s *seen) begin(name string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.looked[name] {
		return false
	}
	s.looked[name] = true
	return true
}

func (s *seen) end(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.looked, name)
}

// keepMembers looks at the other nodes, and keeps Raft's configuration that of the members, while this node leads.
func (n *node) keepMembers(ctx context.Context) {
	var looks sync.WaitGroup
	defer looks.Wait()
	var due time.Time // when the next part of the nodes is looked at
	var configured []*cluster.Node
	for part := 0; ctx.Err() == nil; {
		state, changed := n.raft.Changed()
		members, heard, now := state.Nodes(), n.member.gossip.members(), time.Now()
		every, parts := seeing(len(members)), max(1, (len(members)+seeAtOnce-1)/seeAtOnce)
		next := !now.Before(due)
		if next {
			part, due = (part+1)%parts, now.Add(every/time.Duration(parts))
		}
		for i, other := range members {
			wanted := next && i%parts == part || n.seen.before(other.Name, heard[other.Name].Since)
			if other.Name != n.id && wanted && n.seen.begin(other.Name) {
				looks.Go(func() {
					n.look(ctx, other.Name, every)
					n.seen.end(other.Name)
					if n.seen.before(other.Name, n.member.gossip.memberOf(other.Name).Since) { // there was news meanwhile
						n.member.gossip.tell()
					}
				})
			}
		}
		if part == 0 || !sameNodes(configured, members) {
			err := n.configureRaft(ctx)
			if configured = members; err != nil && ctx.Err() == nil {
				configured = nil
				n.log.Warn("the members of Raft are not those of the cluster yet", zap.Error(err))
			}
		}
		n.awaitLook(ctx, time.Until(due), members, changed)
	}
}

// awaitLook waits until it is time to look at nodes: at all of them after a while, and at some at once when the members are others, or when gossip says
// something of one. Most of what changes the state is of jobs.
func (n *node) awaitLook(ctx context.Context, most time.Duration, members []*cluster.Node, changed <-chan struct{}) {
	t := time.NewTimer(most)
	defer t.Stop()
	for {
		select {
		case <-t.C:
			return
		case <-changed:
			var state *cluster.State
			if state, changed = n.raft.Changed(); !sameNodes(state.Nodes(), members) {
				return
			}
		case <-n.member.gossip.wake:
			return
		case <-ctx.Done():
			return
		}
	}
}

// look asks a node how it is, as is done so often.
func (n *node) look(ctx context.Context, name string, every time.Duration) {
	asked := time.Now()
	bounded, cancel := context.WithTimeout(ctx, seeBound)
	defer cancel()
	var status nodeReport
	var info agent.Info
	err := n.ask(bounded, name, http.MethodGet, pathStatus, nil, &status)
	if err == nil && status.Info != nil {
		info, status.Info = *status.Info, nil
	} else if err == nil {
		info, err = n.member.agent(name, n.raft.Term).Info(bounded)
	}
	if ctx.Err() != nil { // the question was given up
		return
	}
	now, heard := time.Now(), n.member.gossip.memberOf(name)
	n.seen.mu.Lock()
	before := n.seen.of[name]
	after := before
	if after.asked, after.err, after.every = asked, err, every; after.begun.IsZero() {
		after.begun = asked
	}
	if err == nil {
		after.at, after.status, after.info = now, status, info
	}
	state, reach := judge(heard, after, now)
	after.down = state == api.NodeDown
	n.seen.of[name] = after
	n.seen.mu.Unlock()
	switch {
	case err == nil && (before.at.IsZero() || before.down):
		n.log.Info("a node answers", zap.String("member", name), zap.String("version", status.Version))
	case after.down && !before.down:
		n.log.Warn("a node is down", zap.String("member", name), zap.String("why", reach.Why))
	}
}

// other is the status of another node. Only the node that leads asks the others; for the rest it is as gossip says.
func (n *node) other(name string, heard membership.Member, now time.Time) api.NodeStatus {
	seen, known := n.seen.get(name)
	if !n.Leads() || !known {
		return api.NodeStatus{State: hearsay(heard.State), AgeS: lastHeard(heard, sight{}, now), RoundTripS: heard.RTT.Seconds(), Version: heard.Version}
	}
	s := seen.status.NodeStatus
	state, reach := judge(heard, seen, now)
	s.State, s.Reason = state, reach.Why
	s.AgeS, s.RoundTripS = lastHeard(heard, seen, now), heard.RTT.Seconds()
	return s
}

// lastHeard is how long ago a node answered this one a question or a probe, in seconds, also before this one led; 0: it never did, as far as this one
// knows.
func lastHeard(heard membership.Member, seen sight, now time.Time) float64 {
	at := seen.at
	if heard.Answered.After(at) {
		at = heard.Answered
	}
	if at.IsZero() {
		return 0
	}
	return now.Sub(at).Seconds()
}

// hearsay is the state of a node that was not asked.
func hearsay(s membership.State) api.NodeState {
	return map[membership.State]api.NodeState{
		membership.Alive: api.NodeAlive, membership.Suspect: api.NodeSuspect, membership.Dead: api.NodeDown, membership.Left: api.NodeDown, "": api.NodeUnknown,
	}[s]
}
