package raftlog

import (
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/raft"
)

// contacts are what a node knows of when it agreed with the others, by the messages of Raft that it sent and received. The library's own times serve
// neither purpose: it counts answers to questions from before Verify, and those of nodes that do not vote, and it says that a node has contact whose
// disk, or start, keeps it from knowing what the leader has committed.
type contacts struct {
	mu       sync.Mutex
	answered map[raft.ServerID]contact // of nodes that follow this one
	changed  chan struct{}             // closed when there is a newer one
	// said is the last message of the leader, and agreed the last one of which State has everything.
	said, agreed contact
	waits        bool                      // said is not agreed yet
	led          uint64                    // the last term in which this node led and had everything that was committed before
	taken        map[raft.ServerID]contact // answers in it
	knows        uint64                    // the last term whose leader is known to know what was committed before
	has          func(commit uint64) bool  // reports whether State has everything up to an entry that is committed; nil: not yet
}

// contact is a message that was exchanged.
type contact struct {
	term   uint64
	commit uint64    // the last entry that the leader knew to be committed
	last   uint64    // the last entry of a node that answered
	at     time.Time // when it was sent by this node, or came
}

func newContacts() *contacts {
	return &contacts{answered: map[raft.ServerID]contact{}, changed: make(chan struct{})}
}

// answer notes that a node has taken a message which this node began to send at some time, and has entries up to the last one.
func (c *contacts) answer(id raft.ServerID, term uint64, at time.Time, last uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.answered[id] = contact{term: term, at: at, last: last}
	if term == c.led {
		c.taken[id] = c.answered[id]
	}
	close(c.changed)
	c.changed = make(chan struct{})
}

// followed counts those of some nodes which have taken a message of a term that was sent since then. changed is closed when that may be more.
func (c *contacts) followed(ids []raft.ServerID, term uint64, since time.Time) (count int, changed <-chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, id := range ids {
		if last := c.answered[id]; last.term == term && !last.at.Before(since) {
			count++
		}
	}
	return count, c.changed
}

// lacking are those of some nodes which have not said that they have an entry of a term. Those that took no message of it which was sent since then do not count, but for
// the one that is named. changed is closed when that may be fewer.
func (c *contacts) lacking(ids []raft.ServerID, named raft.ServerID, term uint64, since time.Time, entry uint64) (lack []raft.ServerID, changed <-chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, id := range ids {
		last := c.answered[id]
		if has := last.term == term && last.last >= entry; !has && (id == named || last.term == term && !last.at.Before(since)) {
			lack = append(lack, id)
		}
	}
	return lack, c.changed
}

// lead notes that this node leads in a term and has everything that was committed before.
func (c *contacts) lead(term uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if term > c.led {
		c.led, c.taken = term, maps.Clone(c.answered)
		maps.DeleteFunc(c.taken, func(_ raft.ServerID, last contact) bool { return last.term != term })
	}
}

// ledAt is when this node is known to have led last: so many of the other voters have taken a message of that term which was sent then, or later. Zero: nobody knows.
func (c *contacts) ledAt(others []raft.ServerID, enough int) time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	var sent []time.Time
	for _, id := range others {
		if last, ok := c.taken[id]; ok {
			sent = append(sent, last.at)
		}
	}
	if enough < 1 || len(sent) < enough {
		return time.Time{}
	}
	slices.SortFunc(sent, func(a, b time.Time) int { return b.Compare(a) })
	return sent[enough-1]
}

// hear notes what the leader says. A heartbeat says nothing of what is committed, nor does a leader at the beginning of its term.
func (c *contacts) hear(q *raft.AppendEntriesRequest) {
	if q.LeaderCommitIndex == 0 {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.settle()
	if knows(q) {
		c.knows = max(c.knows, q.Term)
	}
	if q.Term != c.knows || c.waits { // it leads no more, or does not know yet; or an earlier message is still to be caught up with
		return
	}
	c.said, c.waits = contact{term: q.Term, commit: q.LeaderCommitIndex, at: time.Now()}, true
}

// knows reports whether a message shows that the leader knows what was committed in the terms before its own: it does from the moment on that an entry of
// its own is committed (Ongaro and Ousterhout 2014, section 8).
func knows(q *raft.AppendEntriesRequest) bool {
	return q.PrevLogTerm == q.Term && q.PrevLogEntry <= q.LeaderCommitIndex ||
		slices.ContainsFunc(q.Entries, func(e *raft.Log) bool { return e.Term == q.Term && e.Index <= q.LeaderCommitIndex })
}

// settle takes what the leader said last for agreed once State has it. The caller holds the lock.
func (c *contacts) settle() {
	if c.waits && c.has != nil && c.has(c.said.commit) {
		c.agreed, c.waits = c.said, false
	}
}

// agreedAt is when State had everything that was committed; zero: never.
func (c *contacts) agreedAt() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.settle()
	return c.agreed.at
}

// follow sets what says how much State has.
func (c *contacts) follow(has func(commit uint64) bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.has = has
}

// has reports whether State has everything up to an entry that is committed. Raft counts an entry as applied when it has only been handed over for that,
// and State counts commands alone.
func (l *Log) has(commit uint64) bool {
	if l.Applied() < commit {
		return false
	}
	for index, known := commit, l.State().Index; index > known; index-- {
		var entry raft.Log
		if err := l.store.raftStore.GetLog(index, &entry); err != nil {
			return errors.Is(err, raft.ErrLogNotFound) // it is in the snapshot that State is from
		}
		if entry.Type == raft.LogCommand {
			return false
		}
	}
	return true
}
