package node

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/avgpipe/avgpipe/internal/agent"
	"github.com/avgpipe/avgpipe/internal/api"
	"github.com/avgpipe/avgpipe/internal/cluster"
	"github.com/avgpipe/avgpipe/internal/cluster/raftlog"
	"github.com/avgpipe/avgpipe/internal/coordinator"
	"github.com/avgpipe/avgpipe/internal/pki"
	"github.com/avgpipe/avgpipe/internal/server"
)

// How the node that leads looks at the others.
const (
	seeEvery     = time.Second      // how often it asks each how it is
	seeBound     = 2 * time.Second  // how long each may take
	suspectAfter = 3 * time.Second  // without an answer a node is suspect
	downAfter    = 6 * time.Second  // and then down
	replaceAfter = 30 * time.Second // a voter that is down is replaced
)

// seen is what the node that leads knows of the others.
type seen struct {
	mu sync.Mutex
	of map[string]sight
}

// sight is the last that was seen of a node.
type sight struct {
	at     time.Time // it answered; zero: not in this term
	begun  time.Time // it is looked at
	status api.NodeStatus
	info   agent.Info
}

// get returns what was last seen of a node.
func (s *seen) get(name string) (sight, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	out, ok := s.of[name]
	return out, ok
}

// silent is how long a node has not answered.
func (s sight) silent(now time.Time) time.Duration {
	if s.at.IsZero() {
		return now.Sub(s.begun)
	}
	return now.Sub(s.at)
}

// keepMembers looks at the other nodes, and keeps Raft's configuration that of the members, while this node leads.
func (n *node) keepMembers(ctx context.Context) {
	n.seen.mu.Lock()
	n.seen.of = map[string]sight{}
	n.seen.mu.Unlock()
	for ctx.Err() == nil {
		state, changed := n.raft.Changed()
		var looks sync.WaitGroup
		for _, other := range state.Nodes() {
			if other.Name != n.id {
				looks.Go(func() { n.look(ctx, other.Name) })
			}
		}
		looks.Wait()
		if err := n.configureRaft(ctx); err != nil && ctx.Err() == nil {
			n.log.Warn("the members of Raft are not those of the cluster yet", zap.Error(err))
		}
		t := time.NewTimer(seeEvery)
		select {
		case <-t.C:
		case <-changed:
		case <-ctx.Done():
		}
		t.Stop()
	}
}

// look asks a node how it is.
func (n *node) look(ctx context.Context, name string) {
	ctx, cancel := context.WithTimeout(ctx, seeBound)
	defer cancel()
	var s api.NodeStatus
	err := n.ask(ctx, name, http.MethodGet, pathStatus, nil, &s)
	var info agent.Info
	if err == nil {
		info, err = n.member.agent(name, n.raft.Term).Info(ctx)
	}
	now := time.Now()
	n.seen.mu.Lock()
	defer n.seen.mu.Unlock()
	before, known := n.seen.of[name]
	after := before
	if !known {
		after.begun = now
	}
	if err == nil {
		after.at, after.status, after.info = now, s, info
	}
	n.seen.of[name] = after
	switch down := after.silent(now) > downAfter; {
	case err == nil && (!known || before.at.IsZero() || before.silent(now) > downAfter):
		n.log.Info("a node answers", zap.String("member", name), zap.String("version", s.Version))
	case down && before.silent(now) <= downAfter+seeEvery:
		n.log.Warn("a node is down", zap.String("member", name), zap.Error(err))
	}
}

// configureRaft makes one change at most that brings Raft's configuration nearer to what it is to be. The next look makes the next one.
func (n *node) configureRaft(ctx context.Context) error {
	state := n.raft.State()
	members, err := n.raft.Members()
	if err != nil || state.Authority() == nil {
		return err
	}
	for _, m := range members {
		node, err := state.Node(m.Name)
		switch {
		case err != nil && m.Name != n.id:
			n.log.Info("a node takes no part in Raft any more", zap.String("member", m.Name))
			return n.raft.RemoveNode(ctx, m.Name)
		case err == nil && node.Address != m.Address:
			return n.raft.AddNode(ctx, m.Name, node.Address, m.Voter)
		}
	}
	for _, node := range state.Nodes() {
		if !slices.ContainsFunc(members, func(m raftlog.Member) bool { return m.Name == node.Name }) {
			n.log.Info("a node follows", zap.String("member", node.Name), zap.String("address", node.Address))
			return n.raft.AddNode(ctx, node.Name, node.Address, false)
		}
	}
	promote, demote := chooseVoters(members, n.id, n.silences())
	switch {
	case promote != "":
		if err := n.giveKey(ctx, promote); err != nil {
			return err
		}
		node, err := state.Node(promote)
		if err != nil {
			return err
		}
		n.log.Info("a node votes", zap.String("member", promote))
		return n.raft.AddNode(ctx, promote, node.Address, true)
	case demote != "":
		n.log.Info("a node votes no more", zap.String("member", demote))
		return n.raft.Demote(ctx, demote)
	}
	return nil
}

// silences are how long each node has not answered; none of those that were not looked at.
func (n *node) silences() map[string]time.Duration {
	n.seen.mu.Lock()
	defer n.seen.mu.Unlock()
	out, now := map[string]time.Duration{}, time.Now()
	for name, s := range n.seen.of {
		out[name] = s.silent(now)
	}
	return out
}

// chooseVoters returns the node that is to vote next, or the one that is to vote no more; "" where all is well. 1, 3 or 5 nodes vote. A voter that
// is down is replaced by a node that answers, and only where the voters that answer stay a majority.
func chooseVoters(members []raftlog.Member, self string, silent map[string]time.Duration) (promote, demote string) {
	wanted := 1
	switch {
	case len(members) >= 5:
		wanted = 5
	case len(members) >= 3:
		wanted = 3
	}
	answers := func(m raftlog.Member) bool {
		s, ok := silent[m.Name]
		return m.Name == self || ok && s <= downAfter
	}
	voters, alive := 0, 0
	var dead, spare string
	for _, m := range members {
		switch {
		case m.Voter:
			voters++
			if answers(m) {
				alive++
			} else if silent[m.Name] > replaceAfter {
				dead = m.Name
			}
		case answers(m) && spare == "":
			spare = m.Name
		}
	}
	switch {
	case spare != "" && (voters < wanted || dead != "" && voters == wanted):
		return spare, ""
	case dead != "" && voters > wanted && 2*alive > voters-1:
		return "", dead
	case voters > wanted && alive == voters: // as after others have left
		for _, m := range slices.Backward(members) {
			if m.Voter && m.Name != self {
				return "", m.Name
			}
		}
	}
	return "", ""
}

// giveKey hands the authority's key to a node that is to vote.
func (n *node) giveKey(ctx context.Context, name string) error {
	key, err := pki.ReadAuthorityKey(n.member.dir)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	return n.ask(ctx, name, http.MethodPost, pathKey, key, &struct{}{})
}

func (n *node) Nodes(context.Context) ([]api.NodeStatus, error) {
	jobs, published := map[string][]string{}, n.coordinator().Published()
	for id, v := range published.Jobs {
		for _, name := range v.Nodes {
			jobs[name] = append(jobs[name], id)
		}
	}
	self := n.self()
	if n.member == nil {
		self.Role, self.Jobs = api.RoleLeader, append(self.Jobs, jobs[n.id]...)
		return []api.NodeStatus{self}, nil
	}
	members, err := n.raft.Members()
	if err != nil {
		return nil, err
	}
	voters, leader, now := raftlog.Voters(members), n.raft.Leader(), time.Now()
	all := []api.NodeStatus{}
	for _, node := range n.raft.State().Nodes() {
		s := self
		if node.Name != n.id {
			s = n.other(node, now)
		}
		s.Role, s.Leader = api.RoleNonVoter, node.Name == leader
		if slices.Contains(voters, node.Name) {
			s.Role = api.RoleVoter
		}
		if s.Leader {
			s.Role = api.RoleLeader
		}
		s.Jobs = slices.Sorted(slices.Values(append([]string{}, jobs[node.Name]...)))
		s.Reason, s.Links = node.Reason, linksOf(published.Links, node.Name, now)
		if node.Draining && s.State == api.NodeAlive {
			if s.State = api.NodeDraining; len(s.Jobs) == 0 && n.Leads() {
				s.State = api.NodeDrained
			}
		}
		all = append(all, s)
	}
	return all, nil
}

// linksOf are the links of a node that were measured, by the other node.
func linksOf(known map[[2]string]coordinator.Link, name string, now time.Time) (all []api.NodeLink) {
	for ends, l := range known {
		if slices.Contains(ends[:], name) {
			other := ends[0]
			if other == name {
				other = ends[1]
			}
			all = append(all, api.NodeLink{Node: other, BitsPerS: l.BitsPerSecond, RoundTripS: l.RoundTrip.Seconds(), AgeS: now.Sub(l.At).Seconds()})
		}
	}
	slices.SortFunc(all, func(a, b api.NodeLink) int { return cmp.Compare(a.Node, b.Node) })
	return all
}

// other is the status of another node. Only the node that leads looks at others.
func (n *node) other(node *cluster.Node, now time.Time) api.NodeStatus {
	seen, known := n.seen.get(node.Name)
	s := seen.status
	s.ID, s.Address, s.Version = node.Name, node.Address, node.Version
	switch silent := seen.silent(now); {
	case !n.Leads() || !known:
		s.State = api.NodeUnknown
	case silent <= suspectAfter && !seen.at.IsZero():
		s.State, s.AgeS = api.NodeAlive, silent.Seconds()
	case silent <= downAfter:
		s.State, s.AgeS = api.NodeSuspect, silent.Seconds()
	default:
		s.State, s.AgeS = api.NodeDown, silent.Seconds()
	}
	return s
}

// Drain implements server.Members.
func (n *node) Drain(ctx context.Context, name, reason string, by server.Peer) ([]api.NodeStatus, error) {
	text := by.String() + " drains it"
	if reason != "" {
		text += ": " + reason
	}
	return n.changeNode(ctx, "drain", name, &cluster.DrainNode{Name: name, Reason: text, By: by.String()})
}

// Undrain implements server.Members.
func (n *node) Undrain(ctx context.Context, name string, by server.Peer) ([]api.NodeStatus, error) {
	return n.changeNode(ctx, "resume", name, &cluster.ResumeNode{Name: name})
}

func (n *node) changeNode(ctx context.Context, verb, name string, c cluster.Command) ([]api.NodeStatus, error) {
	if err := n.mustHave(verb, name); err != nil {
		return nil, err
	}
	if _, err := n.raft.Apply(ctx, c); err != nil {
		return nil, fmt.Errorf("%s node %s: %w", verb, name, err)
	}
	return n.Nodes(ctx)
}

// mustHave refuses a name that no node has.
func (n *node) mustHave(verb, name string) error {
	state := n.raft.State()
	if state.Authority() == nil {
		return api.Errorf(http.StatusConflict, "%s node %s: %v", verb, name, cluster.ErrAlone)
	}
	if _, err := state.Node(name); err != nil {
		return api.Errorf(http.StatusNotFound, "%s node %s: there is no such node; avgpipectl nodes lists them", verb, name)
	}
	return nil
}

// RemoveNode implements server.Members.
func (n *node) RemoveNode(ctx context.Context, name string, force bool, by server.Peer) ([]api.NodeStatus, error) {
	if err := n.mustHave("remove", name); err != nil {
		return nil, err
	}
	all, err := n.Nodes(ctx)
	if err != nil {
		return nil, err
	}
	i := slices.IndexFunc(all, func(s api.NodeStatus) bool { return s.ID == name })
	if i < 0 {
		return nil, api.Errorf(http.StatusNotFound, "remove node %s: there is no such node", name)
	}
	if why := notRemovable(all, &all[i], force); why != "" {
		return nil, api.Errorf(http.StatusConflict, "remove node %s: %s", name, why)
	}
	if _, err := n.raft.Apply(ctx, &cluster.RemoveNode{Name: name, Reason: by.String() + " asked for it"}); err != nil {
		return nil, fmt.Errorf("remove node %s: %w", name, err)
	}
	if err := n.configureRaft(ctx); err != nil {
		n.log.Warn("the node that was removed takes part in Raft still; this is tried again", zap.String("member", name), zap.Error(err))
	}
	return n.Nodes(ctx)
}

// notRemovable says why a node cannot be removed; "" where it can.
func notRemovable(all []api.NodeStatus, s *api.NodeStatus, force bool) string {
	if s.Leader {
		return "it leads: stop its daemon, so that another node leads, and ask again"
	}
	if s.Role == api.RoleVoter {
		voters, alive := 0, 0
		for i := range all {
			if v := &all[i]; v.ID != s.ID && (v.Role == api.RoleVoter || v.Leader) {
				if voters++; v.State != api.NodeDown && v.State != api.NodeSuspect {
					alive++
				}
			}
		}
		if 2*alive <= voters {
			return fmt.Sprintf("it votes, and without it %d of %d voters answer, which is no majority: bring others back first", alive, voters)
		}
	}
	switch {
	case force:
		return ""
	case len(s.Jobs) > 0:
		return fmt.Sprintf("it works on jobs %v: drain it first, or say --force", s.Jobs)
	case s.State == api.NodeAlive:
		return "it is alive: drain it first (avgpipectl nodes drain), or say --force"
	}
	return ""
}

// RenewClient implements server.Members.
func (n *node) RenewClient(_ context.Context, csr []byte, by server.Peer) (api.RenewResponse, error) {
	if by.Name == "" || by.Role == "" {
		return api.RenewResponse{}, api.Errorf(http.StatusConflict, "renew a certificate: you ask without one")
	}
	authority, err := n.authority()
	if err != nil {
		return api.RenewResponse{}, err
	}
	der, err := authority.Sign(csr, pki.Subject{Role: string(by.Role), Name: by.Name, UID: by.UID}, time.Now())
	if err != nil {
		return api.RenewResponse{}, api.Errorf(http.StatusBadRequest, "%v", err)
	}
	out := api.RenewResponse{
		Certificate: string(pki.EncodeCertificates(der)), Authority: string(pki.EncodeCertificates(n.raft.State().Authority().Certificates...)), Addresses: []string{},
	}
	for _, node := range n.raft.State().Nodes() {
		out.Addresses = append(out.Addresses, node.Address)
	}
	return out, nil
}
