package raftlog

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
	autopilot "github.com/hashicorp/raft-autopilot"
	"go.uber.org/zap"
)

// Progress is how far a node follows the one that leads, as it says itself.
type Progress struct {
	LastContact time.Duration `json:"last_contact"` // since it last heard of the leader, ns
	Term        uint64        `json:"term"`         // of the last entry in its log
	Index       uint64        `json:"index"`        // of that entry
}

// Progress is that of this node.
func (l *Log) Progress() Progress {
	p := Progress{LastContact: l.Age(), Index: l.raft.LastIndex()}
	p.Term, _ = strconv.ParseUint(l.raft.Stats()["last_log_term"], 10, 64) // the library's only way to ask
	return p
}

// Server is a node as the caller of RunAutopilot knows it.
type Server struct {
	Name     string
	Alive    bool // by gossip; or it answers
	Draining bool // it gets no vote; one that it has it keeps
	Known    bool // Progress is known
	Progress Progress
}

// AutopilotConfig configures RunAutopilot.
type AutopilotConfig struct {
	// Servers are the nodes of the cluster, this one too. It is called concurrently and does not block. Required.
	Servers func() []Server
	// Prepare makes a node ready to vote, before it does. One that fails gets no vote for ten seconds, and another one may. Required.
	Prepare func(ctx context.Context, name string) error
	// Stable is how long a node must be healthy before it votes, unless this node leads for less. Default 5 s.
	Stable time.Duration
	// ReplaceAfter is how long a voter must be dead before another one gets its vote. Default 10 s: a daemon is restarted in less.
	ReplaceAfter time.Duration
	// Every is how often the servers are judged. Default 1 s.
	Every time.Duration
	// Log is told who votes and who does not, and why. Default: none.
	Log *zap.Logger
}

func (c AutopilotConfig) withDefaults() AutopilotConfig {
	c.Stable, c.ReplaceAfter = cmp.Or(c.Stable, 5*time.Second), cmp.Or(c.ReplaceAfter, 10*time.Second)
	c.Every, c.Log = cmp.Or(c.Every, time.Second), cmp.Or(c.Log, zap.NewNop())
	return c
}

// Bounds of a healthy follower.
const (
	maxSilence   = 5 * time.Second  // since it heard of the leader, together with the age of what it said
	maxTrailing  = 1000             // entries
	prepareAgain = 10 * time.Second // a node that has just joined may not have started yet
	changeBound  = 30 * time.Second // of one change of Raft's configuration
)

// RunAutopilot decides who votes, until ctx ends. It is for the node that leads. It never removes a node: that is for whoever asked for it.
func (l *Log) RunAutopilot(ctx context.Context, c AutopilotConfig) error {
	if c.Servers == nil || c.Prepare == nil {
		return errors.New("autopilot: Servers and Prepare are required")
	}
	c = c.withDefaults()
	p := &pilot{Raft: l.raft, log: l, config: c, ctx: ctx, unready: map[string]time.Time{}}
	logger := hclog.NewInterceptLogger(&hclog.LoggerOptions{Level: hclog.Off})
	logger.RegisterSink(debugSink{zapSink{c.Log}})
	a := autopilot.New(p, p, autopilot.WithPromoter(p), autopilot.WithLogger(logger), autopilot.WithUpdateInterval(c.Every), autopilot.WithReconcileInterval(c.Every))
	a.Start(context.WithoutCancel(ctx))
	<-ctx.Done()
	<-a.Stop()
	return nil
}

// debugSink passes the library's log on at debug level: what matters of it, the pilot says.
type debugSink struct{ zapSink }

func (s debugSink) Accept(name string, _ hclog.Level, msg string, args ...any) {
	s.zapSink.Accept(name, hclog.Debug, msg, args...)
}

// pilot implements the library's interfaces over a log: autopilot.Raft, ApplicationIntegration and Promoter. The library changes Raft's configuration
// from one goroutine, which also asks for the changes.
type pilot struct {
	*raft.Raft
	log    *Log
	config AutopilotConfig
	ctx    context.Context //nolint:containedctx // of RunAutopilot: the interfaces pass none

	why     string               // of the change that was asked for last
	unready map[string]time.Time // when Prepare failed, by node
}

// AddVoter implements autopilot.Raft.
func (p *pilot) AddVoter(id raft.ServerID, address raft.ServerAddress, _ uint64, _ time.Duration) raft.IndexFuture {
	name := string(id)
	ctx, cancel := context.WithTimeout(p.ctx, changeBound)
	defer cancel()
	if err := p.config.Prepare(ctx, name); err != nil {
		p.unready[name] = time.Now()
		return p.done("a node is to vote and is not ready to", name, fmt.Errorf("prepare node %s to vote: %w", name, err))
	}
	return p.done("a node votes", name, p.log.AddNode(ctx, name, string(address), true))
}

// DemoteVoter implements autopilot.Raft.
func (p *pilot) DemoteVoter(id raft.ServerID, _ uint64, _ time.Duration) raft.IndexFuture {
	if members, err := p.log.Members(); err == nil && !slices.Contains(Voters(members), string(id)) {
		return ended{} // the library asks twice where the number of voters is odd
	}
	ctx, cancel := context.WithTimeout(p.ctx, changeBound)
	defer cancel()
	return p.done("a node votes no more", string(id), p.log.Demote(ctx, string(id)))
}

// done logs a change and returns how it ended.
func (p *pilot) done(what, name string, err error) raft.IndexFuture {
	switch {
	case err == nil:
		p.config.Log.Info(what, zap.String("member", name), zap.String("why", p.why))
	case errors.Is(err, errUnheard):
		p.config.Log.Warn(what, zap.String("member", name), zap.String("why", p.why), zap.Error(err))
	case p.ctx.Err() == nil:
		p.config.Log.Warn("who votes is not changed", zap.String("member", name), zap.String("why", p.why), zap.Error(err))
	}
	return ended{err}
}

// ended is the future of what has ended.
type ended struct{ err error }

func (e ended) Error() error { return e.err }
func (ended) Index() uint64  { return 0 }

// AutopilotConfig implements autopilot.ApplicationIntegration.
func (p *pilot) AutopilotConfig() *autopilot.Config {
	return &autopilot.Config{LastContactThreshold: maxSilence, MaxTrailingLogs: maxTrailing, ServerStabilizationTime: p.config.Stable}
}

// NotifyState implements autopilot.ApplicationIntegration.
func (p *pilot) NotifyState(*autopilot.State) {}

// RemoveFailedServer implements autopilot.ApplicationIntegration. The configuration turns it off: a node that is dead stays a member.
func (p *pilot) RemoveFailedServer(*autopilot.Server) {}

// KnownServers implements autopilot.ApplicationIntegration.
func (p *pilot) KnownServers() map[raft.ServerID]*autopilot.Server {
	out := map[raft.ServerID]*autopilot.Server{}
	for _, s := range p.config.Servers() {
		known := &autopilot.Server{ID: raft.ServerID(s.Name), Name: s.Name, NodeStatus: autopilot.NodeFailed, IsLeader: s.Name == p.log.config.NodeID, Ext: s.Draining}
		if s.Alive || known.IsLeader {
			known.NodeStatus = autopilot.NodeAlive
		}
		out[known.ID] = known
	}
	return out
}

// FetchServerStats implements autopilot.ApplicationIntegration. One of which nothing is known is unhealthy.
func (p *pilot) FetchServerStats(context.Context, map[raft.ServerID]*autopilot.Server) map[raft.ServerID]*autopilot.ServerStats {
	out := map[raft.ServerID]*autopilot.ServerStats{}
	for _, s := range p.config.Servers() {
		progress := s.Progress
		switch {
		case s.Name == p.log.config.NodeID:
			progress = p.log.Progress()
		case !s.Known:
			progress.LastContact = -1
		}
		out[raft.ServerID(s.Name)] = &autopilot.ServerStats{LastContact: progress.LastContact, LastTerm: progress.Term, LastIndex: progress.Index}
	}
	return out
}

// GetServerExt implements autopilot.Promoter.
func (p *pilot) GetServerExt(_ *autopilot.Config, s *autopilot.ServerState) any { return s.Server.Ext }

// GetStateExt implements autopilot.Promoter.
func (p *pilot) GetStateExt(*autopilot.Config, *autopilot.State) any { return nil }

// GetNodeTypes implements autopilot.Promoter.
func (p *pilot) GetNodeTypes(*autopilot.Config, *autopilot.State) map[raft.ServerID]autopilot.NodeType {
	return nil
}

// IsPotentialVoter implements autopilot.Promoter.
func (p *pilot) IsPotentialVoter(autopilot.NodeType) bool { return true }

// FilterFailedServerRemovals implements autopilot.Promoter.
func (p *pilot) FilterFailedServerRemovals(*autopilot.Config, *autopilot.State, *autopilot.FailedServers) *autopilot.FailedServers {
	return &autopilot.FailedServers{}
}

// CalculatePromotionsAndDemotions implements autopilot.Promoter.
func (p *pilot) CalculatePromotionsAndDemotions(c *autopilot.Config, s *autopilot.State) (out autopilot.RaftChanges) {
	members, err := p.log.Members() // the library's state may be from before its last change
	if err != nil {
		return out
	}
	now, stable, voters := time.Now(), s.ServerStabilizationTime(c), Voters(members)
	var all []server
	for id, of := range s.Servers {
		draining, _ := of.Server.Ext.(bool)
		lasting := now.Sub(of.Health.StableSince)
		failed, tried := p.unready[string(id)]
		all = append(all, server{
			name: string(id), voter: slices.Contains(voters, string(id)), leader: of.State == autopilot.RaftLeader, healthy: of.Health.Healthy, lasting: lasting, draining: draining,
			stable: of.Health.IsStable(now, stable), gone: !of.Health.Healthy && of.Server.NodeStatus == autopilot.NodeFailed && lasting >= p.config.ReplaceAfter,
			unready: tried && now.Sub(failed) < prepareAgain,
		})
	}
	promote, demote, why := chooseVoters(all)
	if p.why = why; promote != "" {
		out.Promotions = []raft.ServerID{raft.ServerID(promote)}
	}
	if demote != "" {
		out.Demotions = []raft.ServerID{raft.ServerID(demote)}
	}
	return out
}
