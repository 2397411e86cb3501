package coordinator

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/avgpipe/avgpipe/internal/agent"
	"github.com/avgpipe/avgpipe/internal/cluster"
	"github.com/avgpipe/avgpipe/internal/gpu"
	"github.com/avgpipe/avgpipe/internal/obstacle"
	"github.com/avgpipe/avgpipe/internal/worker/control"
)

// Node is a host that jobs are placed on.
type Node struct {
	Name  string
	Cores []int // that jobs compute on
	// MemoryBytes is what jobs may take of its memory, all together; 0: not known, and not looked at.
	MemoryBytes int64
	// GPUs are the graphics processors that jobs may use, the sick ones too, as of now. It is called often and concurrently. Nil: there are none.
	GPUs func() []gpu.GPU
	// Excludes reports whether somebody has taken a GPU, by UUID, from jobs. It is called as GPUs is. Nil: nobody has.
	Excludes func(uuid string) bool
	Agent    agent.Agent
	// GFLOPs is what a core does in a second, as measured in the same way on all nodes; 0: not known.
	GFLOPs float64
	// Draining says that nothing new is placed there, and that jobs that are there go elsewhere once they have committed.
	Draining bool
	Reach    Reach
}

// Reach says whether a node can be reached. Zero: it can.
type Reach struct {
	Since time.Time // since when it cannot; zero: it can
	Down  bool      // the members agree that it is gone; else it may only be slow
	Why   string
}

// gpus are the node's, the sick ones too.
func (n *Node) gpus() []gpu.GPU {
	if n.GPUs == nil {
		return nil
	}
	return n.GPUs()
}

// usable are the GPUs that jobs may be given.
func (n *Node) usable() []gpu.GPU { return gpu.Usable(n.gpus()) }

// members are the nodes of the cluster as of a tick. Nothing in it changes afterwards.
type members struct {
	all []Node
	at  map[string]int // by name
}

func newMembers(all []Node) *members {
	m := &members{all: all, at: make(map[string]int, len(all))}
	for i := range all {
		m.at[all[i].Name] = i
	}
	return m
}

// lookAround notes which nodes there are.
func (c *Coordinator) lookAround() { c.members.Store(newMembers(c.config.Nodes())) }

// nodes are those of the cluster as of the last tick, the coordinator's own first.
func (c *Coordinator) nodes() []Node { return c.members.Load().all }

// node returns a node as of the last tick.
func (c *Coordinator) node(name string) (Node, bool) {
	m := c.members.Load()
	i, ok := m.at[name]
	if !ok {
		return Node{}, false
	}
	return m.all[i], true
}

// at is the agent of a process.
func (c *Coordinator) at(p agent.Process) agent.Agent {
	if p.Node == "" {
		return c.here.Agent
	}
	n, ok := c.node(p.Node)
	if !ok {
		return noNode{c.here.Agent, p.Node}
	}
	return n.Agent
}

// nodeError is an error of a node: what is in the way there has passed when it has passed there.
type nodeError struct {
	node string
	err  error
}

func (e *nodeError) Unwrap() error { return e.err }

// Error names the node, unless its agent has done so, as that of another host does.
func (e *nodeError) Error() string {
	named := "node " + e.node + ": "
	return named + strings.TrimPrefix(e.err.Error(), named)
}

// on is an error of a node, which is named where there are several; nil where err is.
func (c *Coordinator) on(n Node, err error) error {
	if err == nil || len(c.nodes()) < 2 {
		return err
	}
	return &nodeError{n.Name, err}
}

// noNode stands for the agent of a node that the cluster does not have any more.
type noNode struct {
	agent.Agent
	name string
}

func (n noNode) err() error {
	return fmt.Errorf("node %s is no member of the cluster: %w", n.name, agent.ErrUnreachable)
}

func (n noNode) Start(context.Context, control.Assignment) (agent.Process, error) {
	return agent.Process{}, n.err()
}

func (n noNode) Events(context.Context, agent.Process, func(agent.Event)) error { return n.err() }

func (n noNode) Status(context.Context, agent.Process) (control.Status, error) {
	return control.Status{}, n.err()
}

func (n noNode) Commit(context.Context, agent.Process, control.CommitRequest) (control.CommitResponse, error) {
	return control.CommitResponse{}, n.err()
}

func (n noNode) Stop(context.Context, agent.Process) error              { return n.err() }
func (n noNode) Kill(context.Context, agent.Process) error              { return n.err() }
func (n noNode) Passed(context.Context, obstacle.Obstacle) error        { return nil } // it is in nobody's way
func (n noNode) Record(context.Context, *cluster.Job, bool) error       { return n.err() }
func (n noNode) Listen(context.Context, string, uint64) (string, error) { return "", n.err() }

// seen is what the coordinator has noticed of a node by itself. It belongs to the coordinator's goroutine.
type seen struct {
	cut      time.Time // since when it does not answer; zero: it does
	why      string
	sweepAt  time.Time // when its processes are looked at next
	sweeping bool

	copies  int       // that it was asked for
	copying bool      // a copy of which there were too few
	copyAt  time.Time // not before
}

// sight returns what was noticed of a node.
func (c *Coordinator) sight(name string) *seen {
	s := c.seen[name]
	if s == nil {
		s = &seen{}
		c.seen[name] = s
	}
	return s
}

// hears notes that a node answers, hearsNot that it does not.
func (c *Coordinator) hears(name string) {
	if s := c.sight(name); !s.cut.IsZero() {
		s.cut, s.why, s.sweepAt = time.Time{}, "", c.now()
	}
}

func (c *Coordinator) hearsNot(name string, why error) {
	if s := c.sight(name); s.cut.IsZero() {
		now := c.now()
		s.cut, s.why, s.sweepAt = now, why.Error(), now
	}
}

// shut says why nothing new is placed on a node; "" where something may be. It is of the coordinator's goroutine.
func (c *Coordinator) shut(n Node) string {
	s := c.seen[n.Name]
	switch {
	case n.Draining:
		return fmt.Sprintf("node %s is being drained", n.Name)
	case !n.Reach.Since.IsZero():
		return fmt.Sprintf("node %s cannot be reached: %s", n.Name, n.Reach.Why)
	case s != nil && !s.cut.IsZero():
		return fmt.Sprintf("node %s cannot be reached: %s", n.Name, s.why)
	}
	return ""
}

// open are the nodes where something new may be placed.
func (c *Coordinator) open() []Node {
	return slices.DeleteFunc(slices.Clone(c.nodes()), func(n Node) bool { return c.shut(n) != "" })
}

// unreached are the nodes that cannot be reached, and why.
func (c *Coordinator) unreached() map[string]string {
	out := map[string]string{}
	for _, n := range c.nodes() {
		n.Draining = false
		if why := c.shut(n); why != "" {
			out[n.Name] = why
		}
	}
	return out
}
