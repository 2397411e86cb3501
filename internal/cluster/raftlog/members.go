package raftlog

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/hashicorp/raft"
)

// Member is a node of Raft's own configuration.
type Member struct {
	Name    string
	Address string
	Voter   bool
}

// Members returns Raft's configuration as this node has it, in the order that nodes were added.
func (l *Log) Members() ([]Member, error) {
	future := l.raft.GetConfiguration()
	if err := future.Error(); err != nil {
		return nil, l.explain("members", err)
	}
	var all []Member
	for _, s := range future.Configuration().Servers {
		all = append(all, Member{string(s.ID), string(s.Address), s.Suffrage == raft.Voter})
	}
	return all, nil
}

// Leadership tells whenever this node begins to lead, true, or does not any more, false. One reader reads it. It holds the last value: a reader that is
// slow may get true twice, and was out of the lead in between.
func (l *Log) Leadership() <-chan bool { return l.raft.LeaderCh() }

// Leading waits until this node leads and everything that was committed before is in State.
func (l *Log) Leading(ctx context.Context) error {
	term := l.Term()
	err := l.wait(ctx, "begin to lead", func() error { return l.raft.Barrier(applyTimeout).Error() })
	if t, is := l.config.Transport.(*Transport); is && err == nil && l.Term() == term {
		t.contacts.lead(term)
	}
	return err
}

// ledAt is when this node is known to have led last; zero: nobody knows.
func (l *Log) ledAt() time.Time {
	t, is := l.config.Transport.(*Transport)
	if !is {
		return time.Time{}
	}
	others, own, err := l.voters()
	if err != nil {
		return time.Time{}
	}
	return t.contacts.ledAt(others, (len(others)+own)/2+1-own)
}

// voters are the other nodes that vote; own is 1 where this one does.
func (l *Log) voters() (others []raft.ServerID, own int, err error) {
	members, err := l.Members()
	for _, m := range members {
		switch {
		case !m.Voter:
		case m.Name == l.config.NodeID:
			own = 1
		default:
			others = append(others, raft.ServerID(m.Name))
		}
	}
	return others, own, err
}

// Age is how long ago this node last heard from the node that leads, or led itself: 0 on that one. It is the time since the log was opened where none was
// heard of yet.
func (l *Log) Age() time.Duration {
	if l.IsLeader() {
		return 0
	}
	last := l.raft.LastContact()
	if led := l.ledAt(); led.After(last) {
		last = led
	}
	if last.IsZero() {
		last = l.opened
	}
	return time.Since(last)
}

// StateAge is how old State is: how long ago it had everything that the node which led had committed. ok is false where it never had since the log was
// opened: then nobody knows.
func (l *Log) StateAge() (age time.Duration, ok bool) {
	t, is := l.config.Transport.(*Transport)
	if !is {
		return l.Age(), true
	}
	at := t.contacts.agreedAt()
	if led := l.ledAt(); led.After(at) && l.has(l.raft.CommitIndex()) { // while it led, it knew what was committed
		at = led
	}
	return time.Since(at), !at.IsZero()
}

// Term is Raft's current term.
func (l *Log) Term() uint64 { return l.raft.CurrentTerm() }

// AddNode has a node follow, or changes its address; with voter it votes as well. It is for the node that leads. A new voter is added once every voter that answers
// knows of it: of those that do not, none gives its vote to one of which it does not know that it votes, and if this node were lost then, nobody could lead.
func (l *Log) AddNode(ctx context.Context, name, address string, voter bool) error {
	what := fmt.Sprintf("add node %s at %s", name, address)
	if !voter {
		return l.wait(ctx, what, func() error {
			return l.raft.AddNonvoter(raft.ServerID(name), raft.ServerAddress(address), 0, applyTimeout).Error()
		})
	}
	term, entry := l.Term(), make(chan uint64, 1)
	err := l.wait(ctx, what, func() error {
		future := l.raft.AddVoter(raft.ServerID(name), raft.ServerAddress(address), 0, applyTimeout)
		if err := future.Error(); err != nil {
			return err
		}
		entry <- future.Index()
		return nil
	})
	if err != nil {
		return err
	}
	return l.known(ctx, what, raft.ServerID(name), term, <-entry)
}

// errUnheard is wrapped where a node votes and its vote is of no use yet.
var errUnheard = errors.New("it votes now, and not all voters are known to know of it")

// known waits until the other voters have an entry of this node's, which leads in a term. It waits for none that has not answered lately, but for the one that is named.
func (l *Log) known(ctx context.Context, what string, named raft.ServerID, term, entry uint64) error {
	t, ok := l.config.Transport.(*Transport)
	if !ok { // inside one process nobody asks who has what
		return nil
	}
	again := time.NewTicker(l.config.HeartbeatTimeout) // one that is silent stops to count, and nothing tells of it
	defer again.Stop()
	for l.Term() == term && l.IsLeader() {
		others, _, err := l.voters()
		if err != nil {
			return err
		}
		lack, changed := t.contacts.lacking(others, named, term, time.Now().Add(-maxSilence), entry)
		if len(lack) == 0 {
			return nil
		}
		select {
		case <-changed:
		case <-again.C:
		case <-l.closing:
			return fmt.Errorf("raft: %s: %w: %v do not know of it: %w", what, errUnheard, lack, ErrClosed)
		case <-ctx.Done():
			return fmt.Errorf("raft: %s: %w: %v do not know of it: %w", what, errUnheard, lack, ctx.Err())
		}
	}
	return fmt.Errorf("raft: %s: %w: this node leads no more", what, errUnheard)
}

// ErrOnlyVoter is wrapped where the only node that votes is to go.
var ErrOnlyVoter = errors.New("no other node votes: add one first")

// RemoveNode ends that a node follows and votes. It is for the node that leads. That one does not remove itself: it has another voter lead, and the
// error wraps ErrNotLeader, or ErrOnlyVoter where there is none; the other one is then to be asked.
func (l *Log) RemoveNode(ctx context.Context, name string) error {
	if name != l.config.NodeID || !l.IsLeader() {
		return l.wait(ctx, "remove node "+name, func() error { return l.raft.RemoveServer(raft.ServerID(name), 0, applyTimeout).Error() })
	}
	members, err := l.Members()
	if err != nil {
		return err
	}
	if others := Voters(members); len(others) < 2 {
		return fmt.Errorf("raft: remove node %s, which leads: %w", name, ErrOnlyVoter)
	}
	if err := l.Transfer(ctx); err != nil {
		return fmt.Errorf("raft: remove node %s, which leads: %w", name, err)
	}
	return fmt.Errorf("raft: remove node %s: another node leads from now on: %w", name, ErrNotLeader)
}

// Verify asks a majority of those that vote whether this node leads still, for reads that must be current. Its error wraps ErrNotLeader where it does
// not. Only answers to questions from after the call count.
func (l *Log) Verify(ctx context.Context) error {
	since, term := time.Now(), l.Term()
	for {
		if err := l.wait(ctx, "verify that this node leads", func() error { return l.raft.VerifyLeader().Error() }); err != nil {
			return err
		}
		if done, err := l.followed(ctx, term, since); done || err != nil {
			return err
		}
	}
}

// verifyAgain is how long answers of a majority are waited for before it is asked again.
const verifyAgain = 50 * time.Millisecond

// followed waits until a majority has answered what this node, as the leader of a term, has asked since then; or not for long.
func (l *Log) followed(ctx context.Context, term uint64, since time.Time) (bool, error) {
	t, ok := l.config.Transport.(*Transport)
	if !ok { // inside one process, an answer is not older than the question
		return true, nil
	}
	again := time.NewTimer(verifyAgain)
	defer again.Stop()
	for {
		others, own, err := l.voters()
		if err != nil {
			return false, err
		}
		count, changed := t.contacts.followed(others, term, since)
		if own+count > (len(others)+own)/2 {
			return true, nil
		}
		select {
		case <-changed:
		case <-again.C:
			return false, nil
		case <-ctx.Done():
			return false, fmt.Errorf("raft: verify that this node leads: %w", ctx.Err())
		}
	}
}

// Demote ends that a node votes; it follows.
func (l *Log) Demote(ctx context.Context, name string) error {
	return l.wait(ctx, "demote node "+name, func() error { return l.raft.DemoteVoter(raft.ServerID(name), 0, applyTimeout).Error() })
}

// Transfer has another voter lead.
func (l *Log) Transfer(ctx context.Context) error {
	return l.wait(ctx, "let another node lead", func() error { return l.raft.LeadershipTransfer().Error() })
}

// Voters are the names of those of members that vote.
func Voters(members []Member) (names []string) {
	for _, m := range members {
		if m.Voter {
			names = append(names, m.Name)
		}
	}
	slices.Sort(names)
	return names
}
