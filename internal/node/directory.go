package node

import (
	"context"
	"fmt"
	"math"
	"net"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/avgpipe/avgpipe/internal/agent"
	"github.com/avgpipe/avgpipe/internal/agent/remote"
	"github.com/avgpipe/avgpipe/internal/cluster"
	"github.com/avgpipe/avgpipe/internal/coordinator"
	"github.com/avgpipe/avgpipe/internal/gpu"
	"github.com/avgpipe/avgpipe/internal/membership"
	"github.com/avgpipe/avgpipe/internal/mux"
	"github.com/avgpipe/avgpipe/internal/pki"
	"github.com/avgpipe/avgpipe/internal/spec"
	"github.com/avgpipe/avgpipe/internal/worker/control"
)

// info is what this host has for jobs.
func (n *node) info() agent.Info {
	i := agent.Info{
		Node: n.id, Cores: n.config.Cores, MemoryBytes: n.memory(), GPUs: n.gpus.GPUs(), Version: n.config.Version,
		GFLOPs: math.Float64frombits(n.speed.Load()),
	}
	for _, g := range i.GPUs {
		if n.gpus.Excludes(g.UUID) {
			i.Excluded = append(i.Excluded, g.UUID)
		}
	}
	return i
}

// linkRefused writes down that a worker here refused a connection to its port of links.
func (m *member) linkRefused(job, from, reason string) {
	if m != nil {
		m.door.link(job, from, reason)
	}
}

// memory is what jobs may take of this host's.
func (n *node) memory() int64 {
	if n.config.MemoryBytes > 0 {
		return n.config.MemoryBytes
	}
	return n.host.bytes(time.Now())
}

// hosts are the nodes that stages may lie on. Those that are being drained count only where all are, and those of which nobody knows what they have do
// not; one that was not asked yet, by a node that has just begun to lead, has a memory that is not known.
func (n *node) hosts() (all []spec.Host) {
	nodes := n.nodes()
	stay := slices.DeleteFunc(slices.Clone(nodes), func(at coordinator.Node) bool { return at.Draining })
	if len(stay) == 0 {
		stay = nodes
	}
	for _, at := range stay {
		if seen, _ := n.seen.get(at.Name); len(at.Cores) > 0 || seen.begun.IsZero() {
			all = append(all, spec.Host{Name: at.Name, Cores: len(at.Cores), MemoryBytes: at.MemoryBytes})
		}
	}
	return all
}

// links says where the workers' links listen, and what they identify themselves with; nothing on a node that is alone.
func (m *member) links(ucx string) agent.Links {
	if m == nil {
		return agent.Links{}
	}
	host, _, _ := net.SplitHostPort(m.advertise) // openMember has seen that it is HOST:PORT
	files := pki.FilesOf(m.dir)
	return agent.Links{Host: host, TLS: &control.LinkTLS{Certificate: files.Certificate, Key: files.Key, Authority: files.Authority}, UCX: ucx}
}

// memory is what jobs may take of this host's, as it was read last.
type memory struct {
	mu   sync.Mutex
	at   time.Time
	last int64
}

// memoryAge is how old that may be: a container's limit may change.
const memoryAge = time.Second

func (m *memory) bytes(now time.Time) int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.at.IsZero() || now.Sub(m.at) > memoryAge {
		m.at, m.last = now, spec.HostMemory()
	}
	return m.last
}

// nodes are those that jobs are placed on, this one first.
func (n *node) nodes() []coordinator.Node {
	here := coordinator.Node{
		Name: n.id, Cores: n.config.Cores, MemoryBytes: n.memory(), GPUs: n.gpus.GPUs, Excludes: n.gpus.Excludes, Agent: n.agent,
		GFLOPs: math.Float64frombits(n.speed.Load()),
	}
	all := []coordinator.Node{here}
	if n.member == nil {
		return all
	}
	now, heard := time.Now(), n.member.gossip.members()
	for _, known := range n.raft.State().Nodes() {
		if known.Name == n.id {
			all[0].Draining = known.Draining
		} else {
			all = append(all, n.away(known, heard[known.Name], now))
		}
	}
	return all
}

// away is another node, as this one last saw it.
func (n *node) away(known *cluster.Node, heard membership.Member, now time.Time) coordinator.Node {
	seen, _ := n.seen.get(known.Name)
	out := coordinator.Node{
		Name: known.Name, Cores: seen.info.Cores, MemoryBytes: seen.info.MemoryBytes, Agent: n.member.agent(known.Name, n.raft.Term), Draining: known.Draining,
		GFLOPs: seen.info.GFLOPs,
		GPUs: func() []gpu.GPU {
			s, _ := n.seen.get(known.Name)
			return s.info.GPUs
		},
		Excludes: func(uuid string) bool {
			s, _ := n.seen.get(known.Name)
			return slices.Contains(s.info.Excluded, uuid)
		},
	}
	_, out.Reach = judge(heard, seen, now)
	return out
}

// agent returns the agent of another node.
func (m *member) agent(name string, term func() uint64) *remote.Client {
	m.mu.Lock()
	defer m.mu.Unlock()
	a := m.agents[name]
	if a == nil {
		a = remote.New(remote.Config{Node: name, Term: term, Dial: func(ctx context.Context) (net.Conn, error) {
			known, err := m.raft.Load().State().Node(name)
			if err != nil {
				return nil, err
			}
			return m.dial(ctx, mux.ProtocolAgent, name, known.Address)
		}})
		m.agents[name] = a
	}
	return a
}

// peer is the agent of a node, for agents that read from each other.
func (n *node) peer(name string) (agent.Agent, error) {
	if n.member == nil {
		return nil, fmt.Errorf("node %s: %w: this node is alone", name, agent.ErrUnreachable)
	}
	if name == n.id {
		return n.agent, nil
	}
	if err := n.knows(name, memberWait); err != nil {
		return nil, fmt.Errorf("%w: %w", agent.ErrUnreachable, err)
	}
	return n.member.agent(name, n.raft.Term), nil
}

// A daemon that has just started answers the node that leads as soon as that has been heard of, and may have the state of the cluster a moment later.
const (
	startsFor  = 10 * time.Second // after its start it waits for members that it does not know
	memberWait = 2 * time.Second  // for each question
)

// knows returns nil where a node is a member, after a wait where this one has just started.
func (n *node) knows(name string, wait time.Duration) error {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	for {
		state, changed := n.raft.Changed()
		_, err := state.Node(name)
		if err == nil || n.Leads() || time.Since(n.started) > startsFor {
			return err
		}
		select {
		case <-changed:
		case <-timer.C:
			return err
		case <-n.raft.Failed():
			return err
		}
	}
}

// What the statuses of workers cost the node that leads, which gets those of all, is bounded: they come every 0.2 s from each, and the more nodes there are, the fewer of
// those that only say how far a worker is are told.
const (
	statusShare = 5 * time.Millisecond // of each node
	statusRare  = time.Second          // at least so often
)

// between is how much time lies between two such statuses.
func (n *node) between() time.Duration {
	return min(time.Duration(len(n.raft.State().Nodes()))*statusShare, statusRare)
}

// agentHandler answers the node that leads.
func (n *node) agentHandler() *remote.Handler {
	return remote.NewHandler(n.agent, remote.HandlerConfig{
		Node: n.id, Refused: n.member.door.question, Between: n.between,
		Caller: func(r *http.Request) (string, error) {
			name, _ := r.Context().Value(askerKey{}).(string)
			if name == "" {
				return "", errNoNode
			}
			return name, nil
		},
		Allow: func(name string, term uint64) error {
			if leader := n.raft.Leader(); name != leader || term < n.raft.Term() {
				return fmt.Errorf("node %s asks in term %d; here node %q leads, in term %d", name, term, leader, n.raft.Term())
			}
			return nil
		},
	})
}
