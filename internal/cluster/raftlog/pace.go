package raftlog

import (
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/raft"
)

// messageShare is how long the node that leads is to have for each message to a node that does not vote, of all of them together: those that vote hear of each entry at
// once, and 200 others would be 200 messages for each.
const messageShare = 2 * time.Millisecond

// pace spaces out what the node that leads says to those that do not vote, the more the more of them there are: what is gathered meanwhile goes in one message. Nothing
// waits for them, but they must not hear nothing for as long as it takes to find a leader gone.
type pace struct {
	closing <-chan struct{} // closed when the transport closes

	mu            sync.Mutex
	configuration func() raft.Configuration // nil: not known yet
	heartbeat     time.Duration             // without any message for so long, a node finds the leader gone
	last          []raft.Server             // those that voters and others are of
	voters        map[raft.ServerID]bool
	others        int
	sent          map[raft.ServerID]time.Time // the last message with entries, or of what is committed, by node that does not vote
}

func newPace(closing <-chan struct{}) *pace {
	return &pace{closing: closing, sent: map[raft.ServerID]time.Time{}}
}

// follow sets what says who votes, and how long a node hears nothing until it finds the leader gone.
func (p *pace) follow(configuration func() raft.Configuration, heartbeat time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.configuration, p.heartbeat = configuration, heartbeat
}

// between is the time between two messages to a node; 0: none.
func (p *pace) between(id raft.ServerID) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.configuration == nil {
		return 0
	}
	if now := p.configuration().Servers; len(now) != len(p.last) || len(now) > 0 && &now[0] != &p.last[0] { // the library makes another one for each change
		p.last, p.voters, p.others = now, map[raft.ServerID]bool{}, 0
		for _, s := range now {
			if s.Suffrage == raft.Voter {
				p.voters[s.ID] = true
			} else {
				p.others++
			}
		}
		maps.DeleteFunc(p.sent, func(id raft.ServerID, _ time.Time) bool {
			return !slices.ContainsFunc(now, func(s raft.Server) bool { return s.ID == id })
		})
	}
	if p.voters[id] {
		return 0
	}
	return min(p.heartbeat*2/5, time.Duration(p.others)*messageShare)
}

// sends notes that a message is sent now.
func (p *pace) sends(id raft.ServerID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.sent[id] = time.Now()
}

// lately reports whether a node was sent a message so long ago at most.
func (p *pace) lately(id raft.ServerID, most time.Duration) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return time.Since(p.sent[id]) <= most
}

// rest waits, unless the transport closes.
func (p *pace) rest(d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-p.closing:
	}
}

// spares waits with a heartbeat for a node that does not vote, and reports whether it can be left out: other messages went there meanwhile. No more than a few are
// under way at a time, so one that does not answer gets no more of them, and heartbeats again.
func (p *pace) spares(id raft.ServerID) bool {
	between := p.between(id)
	late := between + p.heartbeat/5 // a message goes a little later than it may, when there is nothing new but what is committed
	if between == 0 || !p.lately(id, late) {
		return false
	}
	p.rest(between)
	return p.lately(id, late)
}

// isHeartbeat reports whether a message is one, as the library tells them.
func isHeartbeat(q *raft.AppendEntriesRequest) bool {
	return q.PrevLogEntry == 0 && q.PrevLogTerm == 0 && len(q.Entries) == 0 && q.LeaderCommitIndex == 0
}

// pacedPipeline is the library's to a node that does not vote.
type pacedPipeline struct {
	raft.AppendPipeline
	pace *pace
	id   raft.ServerID
	full int // entries of a message that more is to follow at once
	// patience is how long a message waits for its place among those under way. The library waits for ever: where a response has a newer term, it reads no further ones, and nobody else does.
	patience time.Duration
}

// AppendEntries implements raft.AppendPipeline. It returns when the next message may follow.
func (p *pacedPipeline) AppendEntries(q *raft.AppendEntriesRequest, r *raft.AppendEntriesResponse) (raft.AppendFuture, error) {
	p.pace.sends(p.id)
	impatient := time.AfterFunc(p.patience, func() { _ = p.Close() }) // which ends the call
	future, err := p.AppendPipeline.AppendEntries(q, r)
	impatient.Stop()
	if err == nil && len(q.Entries) < p.full {
		p.pace.rest(p.pace.between(p.id))
	}
	return future, err
}
