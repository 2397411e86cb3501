package node

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/avgpipe/avgpipe/internal/coordinator"
)

// coordinator is that of this node: it runs while the node leads; otherwise it is closed and knows nothing.
func (n *node) coordinator() *coordinator.Coordinator { return n.leading.Load() }

// newCoordinator makes a coordinator of all nodes.
func (n *node) newCoordinator() *coordinator.Coordinator {
	return coordinator.New(coordinator.Config{
		Nodes: n.nodes, Raft: n.raft, DriftHold: n.config.DriftHold, Log: n.log, OnStop: n.notifyStop,
		Limits: func() coordinator.Limits { return n.config.Limits().Jobs }, Spare: n.exports.due,
	})
}

// rest puts a coordinator in place that is closed.
func (n *node) rest() {
	c := n.newCoordinator()
	c.Close()
	n.leading.Store(c)
}

// beginTerm makes a coordinator, which takes the workers over that there are.
func (n *node) beginTerm(ctx context.Context) error {
	c := n.newCoordinator()
	if err := c.Adopt(ctx); err != nil {
		c.Close()
		return err
	}
	now := time.Now()
	n.since.Store(&now)
	n.leading.Store(c)
	return nil
}

// coordinate runs the coordinator until running ends and nothing is left to do, or it is closed, and what belongs to it until then.
func (n *node) coordinate(running, background context.Context) {
	c := n.coordinator()
	background, end := context.WithCancel(background)
	var parts sync.WaitGroup
	parts.Go(func() { c.RetainJobs(background) })
	exporting, stop := context.WithCancel(running)
	parts.Go(func() { n.exports.run(exporting) })
	parts.Go(func() { n.archives.run(exporting) })
	c.Run(running)
	stop()
	end()
	parts.Wait()
}

// retryTerm is the pause after a term that could not begin.
const retryTerm = time.Second

// terms coordinates whenever this node leads, until ctx ends.
func (n *node) terms(ctx context.Context) {
	leads := false
	for ctx.Err() == nil {
		if !leads {
			select {
			case leads = <-n.raft.Leadership():
			case <-ctx.Done():
			case <-n.raft.Failed():
				return
			}
			continue
		}
		leads = n.term(ctx)
	}
}

// term coordinates until this node does not lead any more, and reports whether it leads anew.
func (n *node) term(ctx context.Context) (again bool) {
	term, end := context.WithCancel(ctx)
	defer end()
	var ended atomic.Bool // because leadership changed
	watching := make(chan struct{})
	go func() {
		defer close(watching)
		select {
		case again = <-n.raft.Leadership():
			ended.Store(true)
			end()
		case <-n.raft.Failed():
			end()
		case <-term.Done():
		}
	}()
	defer func() { <-watching }()
	defer end()
	if err := n.prepare(term); err != nil {
		if term.Err() == nil {
			n.log.Error("this node leads and cannot coordinate", zap.Error(err))
			sleep(term, retryTerm)
		}
		end()
		<-watching
		return !ended.Load() && ctx.Err() == nil || again
	}
	n.log.Info("this node leads", zap.Uint64("term", n.raft.Term()))
	n.seen.forget()
	n.leads.Store(true)
	var parts sync.WaitGroup
	parts.Go(func() { n.keepMembers(term) })
	parts.Go(func() { n.keepVoters(term) })
	// A node that is alone stops in order: its jobs commit. Otherwise another node goes on with them.
	stopping, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	parts.Go(func() {
		<-term.Done()
		if ctx.Err() != nil && !ended.Load() && len(n.raft.State().Nodes()) < 2 {
			stop()
			return
		}
		n.leads.Store(false)
		n.coordinator().End()
	})
	n.coordinate(stopping, context.WithoutCancel(ctx))
	end()
	<-watching
	parts.Wait()
	n.leads.Store(false)
	n.rest()
	if ctx.Err() != nil && n.raft.IsLeader() && len(n.raft.State().Nodes()) > 1 {
		n.handOver(ctx)
	}
	n.log.Info("this node leads no more")
	return again
}

// handOverBound is how long another node may take to lead.
const handOverBound = 5 * time.Second

// handOver has another voter lead before this daemon ends.
func (n *node) handOver(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), handOverBound)
	defer cancel()
	if err := n.raft.Transfer(ctx); err != nil {
		n.log.Warn("no other node leads yet", zap.Error(err))
	}
}

// prepare brings the state up to date and begins to coordinate.
func (n *node) prepare(ctx context.Context) error {
	term := n.raft.Term()
	if err := n.raft.Leading(ctx); err != nil {
		return err
	}
	if now := n.raft.Term(); now != term {
		return fmt.Errorf("term %d has begun while this node prepared to lead in term %d", now, term)
	}
	n.ledTerm.Store(term)
	if err := n.beginCluster(ctx); err != nil {
		return err
	}
	return n.beginTerm(ctx)
}

// sleep waits so long, or until ctx ends.
func sleep(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}
